#include "../guarded.h"
#include "probing.h"
#include "trie.h"

using sottovoce::guarded;
using sottovoce::ctc::Probing;
using sottovoce::ctc::ProbingTable;
using sottovoce::ctc::Trie;

// The log-probabilities (n,) of words (n,) after states (n,), and the next states (n,).
SV_API void sv_trie_follow(const Trie* trie, int64_t n, const int64_t* states, const int64_t* words, float* scores,
                           int64_t* next) {
    for (int64_t i = 0; i < n; ++i) {
        uint64_t after;
        scores[i] = trie->follow(static_cast<uint64_t>(states[i]), static_cast<uint32_t>(words[i]), after);
        next[i] = static_cast<int64_t>(after);
    }
}

SV_API Probing* sv_probing_new(const uint8_t* unigrams, int64_t unigram_size, const ProbingTable* tables, int n_tables,
                               uint32_t end_word) {
    return guarded([&] { return new Probing(unigrams, unigram_size, tables, n_tables, end_word); });
}
SV_API void sv_probing_free(Probing* probing) { delete probing; }
SV_API int64_t sv_probing_begin(Probing* probing, uint32_t word) { return probing->begin(word); }

// As `sv_trie_follow`.
SV_API void sv_probing_follow(const Probing* probing, int64_t n, const int64_t* states, const int64_t* words,
                              float* scores, int64_t* next) {
    for (int64_t i = 0; i < n; ++i) {
        const Probing::Answer answer = probing->follow(states[i], static_cast<uint32_t>(words[i]));
        scores[i] = answer.score;
        next[i] = answer.state;
    }
}
