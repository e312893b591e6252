// The frame loop of the CTC prefix beam search: the same search as `PrefixSearch` of Python, rule by rule. Prefixes are
// nodes of a tree, so that a pruned prefix that is found again is the same node. Upper bounds on the scores of beams and
// labels skip candidates that cannot enter the beam.
#pragma once

#include <cstdint>
#include <vector>

#include "candidates.h"
#include "scorer.h"

namespace sottovoce::ctc {

// initial_symbol precedes every prefix. n_tokens: labels of a frame that extend beams. max_homophones: kept of each
// group; 0: all. threshold: nats below the best at which beams are dropped, or infinity.
struct SearchSettings {
    int64_t blank, initial_symbol, n_labels, beam_size, n_tokens, max_homophones;
    float threshold;
};

// The arrays of a `PrefixState` of B utterances with K beams, written in place: (B, K), and the states (B, K, s).
// symbols: (B, K, n_symbols) before, histories: (B, K, n_histories) after.
struct BeamArrays {
    int64_t n_symbols, n_histories;
    float *blank, *token, *lm, *adjustment, *merged;
    int64_t *length, *last;
    const int64_t* symbols;
    int64_t* histories;
    int64_t* scores;
};

// log(exp(a) + exp(b)), to the precision of a float32.
float log_add(float a, float b);

// A tree of prefixes, whose node 0 is the empty one.
class Tree {
public:
    struct Node {
        int64_t symbol;
        int parent, child, sibling;  // the newest child; the next older child of the parent; -1: none
        int slot;                    // the node's beam, or -1
    };
    std::vector<Node> nodes;

    void clear() { nodes.assign(1, {0, -1, -1, -1, -1}); }
    // The node of a prefix extended by a symbol, made if it is new.
    int add(int node, int64_t symbol);
};

struct Beam {
    int64_t last;
    float blank, token, lm, adjustment, merged;  // see `PrefixState`
    int length, node, spelling;  // its node, and that of its labels
    int last_token;
    float score;               // for ranking, and whether it appended a symbol
    bool is_new;
    int parent, child, next;   // beams: one symbol shorter, one longer, and the next of that parent; -1: none
    float total;               // log-probability of all its paths
    float stay_blank, stay_token, stay_total;  // the same if it appends nothing
    float most_inside, most;   // upper bounds of scores: of labels but the separator, and of any
};

// Advances utterances one after the other, with the same memory.
class Search {
public:
    Search(const SearchSettings& settings, const Scorer& scorer);

    // Advance utterance `row` over frames (n_frames, n_labels).
    void run(const BeamArrays& beams, int64_t row, const float* frames, int64_t n_frames);

private:
    const SearchSettings settings_;
    const Scorer& scorer_;
    const int n_states_;
    std::vector<Beam> beams_, next_;
    std::vector<int64_t> states_, next_states_;  // (K, s)
    std::vector<int64_t> after_;
    Tree prefixes_, spellings_;
    Candidates candidates_;
    Labels labels_;

    void load(const BeamArrays& beams, int64_t row);
    void store(const BeamArrays& beams, int64_t row);
    void stay(const float* frame);
    void extend(const float* frame);
    void extend_all(bool in_order);
    void extend_by(int beam, int token, float log_prob);
    void choose();
    void append(Beam& beam, const Candidate& chosen, const int64_t* state, int64_t* state_after);
    bool is_pruned(const Beam& beam);
    void set_bounds(Beam& beam, const int64_t* state);
    bool merges() const { return settings_.max_homophones > 0; }
    const int64_t* state_of(int beam) const { return states_.data() + static_cast<size_t>(beam) * n_states_; }
};

}  // namespace sottovoce::ctc
