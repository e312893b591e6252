// Language models and a lexicon, as the CTC search scores with them. They read arrays of their owner, which must stay
// where they are. States are rows of 64-bit integers: the lexicon's node, if there is one, then the state of each
// model over words, then of each model over tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "probing.h"
#include "trie.h"

namespace sottovoce::ctc {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kRoot = 0, kUnknownNode = 1;

// A language model as arrays of its owner; what a kind does not need is null.
//
// Tables with back-off: node 0 is the root, which has every id. keys: (n_arcs,) node * n_ids + id, ascending; first:
// (n_nodes + 1,) the first of each node. weights, targets: (n_arcs,). A node without an arc for an id backs off to its
// parent, at a cost. root_weights, root_targets: (n_ids,). ends: (n_nodes,) scores of ending, or null: 0.
// Tries and probing tables: root_weights bound the score of every id from above.
struct ModelArrays {
    int64_t n_nodes, n_ids;
    int64_t silent;  // the id that is scored implicitly before the tokens `begins`
    const int64_t* first;
    const int64_t* keys;
    const float* weights;
    const int64_t* targets;
    const float* backoff;
    const int64_t* parent;
    const float* root_weights;
    const int64_t* root_targets;
    const float* ends;
    const int64_t* ids;     // (n_tokens,) the model's id of every token
    const uint8_t* begins;  // (n_tokens,) or null
    const Trie* trie;
    const Probing* probing;
    float weight;  // of all scores
};

struct Step {
    float score;
    int64_t state;
};

inline float weighted(float score, float weight) { return score == kNever ? score : score * weight; }

// A weighted model over the search's tokens, or over words. A kind of model is a case of `step`, and of `end` and
// `bounds` where these differ.
class Model {
public:
    explicit Model(const ModelArrays& arrays) : a_(arrays) {}

    // The weighted score of a token after a state, and the next state.
    Step follow(int64_t state, int token) const {
        if (!a_.begins || !a_.begins[token]) return scaled(step(state, a_.ids[token]));
        const Step between = scaled(step(state, a_.silent)), after = scaled(step(between.state, a_.ids[token]));
        return {between.score + after.score, after.state};
    }
    // The weighted score of ending after a state.
    float end(int64_t state) const;
    // Add an upper bound of the score of each token, after any state, to bounds (n_tokens,).
    void add_bounds(float* bounds, int n_tokens) const;

private:
    ModelArrays a_;

    Step step(int64_t state, int64_t id) const {
        if (a_.trie) return walk(state, id);
        return a_.probing ? probe(state, id) : back_off(state, id);
    }
    Step walk(int64_t state, int64_t id) const {
        uint64_t next;
        const float score = a_.trie->follow(static_cast<uint64_t>(state), static_cast<uint32_t>(id), next);
        return {score, static_cast<int64_t>(next)};
    }
    Step scaled(Step step) const { return {weighted(step.score, a_.weight), step.state}; }
    Step probe(int64_t state, int64_t id) const {
        const Probing::Answer answer = a_.probing->follow(state, static_cast<uint32_t>(id));
        return {answer.score, answer.state};
    }
    Step back_off(int64_t node, int64_t id) const;
    float most_backing_off(float sign) const;
};

// A tree of spellings. Nodes from 2 on are numbered as their keys (n_nodes - 2,), parent * n_tokens + token, ascending.
// first_word, n_words: (n_nodes,) of `words`, which end there. ahead: (n_nodes,) look-ahead. word_scores: (n_words,).
// unknown: the unknown word, or -1. separator: the token between words, or -1. may_begin, may_go_on: (n_tokens,)
// tokens that begin and continue an unknown word without a separator.
struct LexiconArrays {
    int64_t n_nodes, n_words, unknown, separator, n_homophones;
    const int64_t* keys;
    const int64_t* words;
    const int64_t* first_word;
    const int64_t* n_words_of;
    const float* ahead;
    const float* word_scores;
    const uint8_t* may_begin;
    const uint8_t* may_go_on;
};

// node -1: no such arc. mark: the word that it ends plus 1, 0 for none; see `PrefixState`.
struct Arc {
    int node;
    int64_t mark;
};

class Lexicon {
public:
    Lexicon(const LexiconArrays& arrays, int n_tokens);

    struct Node {
        int first, first_word, n_words;
        float ahead;
        float inside, ending;  // the most that a step from here gains that ends no word, and that ends one
    };
    const LexiconArrays a;
    std::vector<Node> nodes;  // and one that marks the end of the children

    // The node of a prefix of a word extended by a token, or -1.
    int child(int node, int token) const;
    // Arcs of a token are numbered as in `Lexicon.arcs` of Python; `next` skips those that no node has.
    Arc arc(int node, int child, int token, int number) const;
    int next(int number, int child, int token) const;
    // The way number `number` to end at a node; mark -1: there is none.
    int64_t ending(int node, int number) const;
    int n_arcs() const;
    int n_endings() const { return has_separator() ? static_cast<int>(a.n_homophones) : 1; }
    // words_most: (n_words,) upper bounds of the score of each word.
    void bound_endings(const std::vector<float>& words_most);
    bool has_separator() const { return a.separator >= 0; }

private:
    std::vector<int32_t> tokens_;  // of the children

    Arc separated(int node, int child, int token, int number) const;
    Arc open(int node, int child, int token, int number) const;
};

// The models, lexicon and boosting of a search. Without a lexicon, models are over tokens alone.
class Scorer {
public:
    Scorer(int n_tokens, const LexiconArrays* lexicon, const ModelArrays* words, int n_word_models,
           const ModelArrays* tokens, int n_token_models);

    std::unique_ptr<Lexicon> lexicon;

    int n_states() const { return first_token_model() + static_cast<int>(tokens_.size()); }
    int n_arcs() const { return lexicon ? lexicon->n_arcs() : 1; }
    int n_endings() const { return lexicon ? lexicon->n_endings() : 1; }
    int64_t separator() const { return lexicon ? lexicon->a.separator : -1; }

    int child(const int64_t* state, int token) const {
        return lexicon ? lexicon->child(static_cast<int>(state[0]), token) : -1;
    }
    Arc arc(const int64_t* state, int child, int token, int number) const {
        return lexicon ? lexicon->arc(static_cast<int>(state[0]), child, token, number) : Arc{kRoot, 0};
    }
    int next(int number, int child, int token) const {
        return lexicon ? lexicon->next(number, child, token) : number + 1;
    }
    // The score of an arc after a state; writes the state after it.
    float score(const int64_t* state, int token, Arc arc, int64_t* after) const;
    // Upper bounds of the scores after a state: of an arc, of tokens but the separator, and of any token.
    float most(const int64_t* state, Arc arc) const;
    float most_inside(const int64_t* state) const;
    float most_of_any(const int64_t* state) const;
    // Endings of a state: scores and marks (n_endings(),); -inf: no such ending.
    void end(const int64_t* state, float* scores, int64_t* marks) const;

    // The best word sequences of labels (n,) from a start state, at most `most` and best first: scores (most,), -inf
    // for missing ones; symbols (most, stride); and the marks (most,) of the words that the ends complete.
    void expand(const int64_t* labels, int n, const int64_t* start, int most, int64_t stride, float* scores,
                int64_t* symbols, int64_t* marks) const;

private:
    int n_tokens_;
    std::vector<Model> words_, tokens_;
    std::vector<float> words_most_;  // of each word, with its own score
    float bound_ = 0.0f;             // no token scores more, except for word ends and look-ahead

    int first_token_model() const { return lexicon ? 1 + static_cast<int>(words_.size()) : 0; }
    float score_word(const int64_t* state, int64_t mark, int64_t* after) const;
    bool is_word(int64_t mark) const { return mark > 0 && mark <= static_cast<int64_t>(words_most_.size()); }
};

}  // namespace sottovoce::ctc
