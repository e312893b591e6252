#include "../guarded.h"
#include "trie.h"

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
