// What one instruction set computes for the encoder, beside what kernels.h has: products of words of 16 bits over many
// rows, and attention in tiles. A row's numbers depend on no other row, bit by bit.
#pragma once

#include "kernels.h"

namespace sottovoce {

constexpr int kKeyBlock = 32;   // keys that lie together, and what numbers of a head are padded to
constexpr int kKeyPage = 128;     // keys of all heads and layers that windows share
constexpr int kWidestHead = 256;  // numbers of a head, padded
constexpr int kTileKeys = 256;  // keys whose logits are there at a time
constexpr float kNoKey = -1e30f;  // the logit of what is no key

// Words are so small that no sum of their products leaves 31 bits.
constexpr int kMostActivation = 8191;  // the words of a table are as large as that allows
constexpr int kMostShare = 4095;       // kTileKeys products of shares and values
constexpr int kMostValue = 2047;

// The largest word of queries and keys of a head.
inline int most_word(int d_pad) { return d_pad <= 64 ? 5792 : d_pad <= 128 ? 4095 : 2895; }

// A table in words: value[n, k] is scales[n] * values[n, k]; (n_out / 32, n_pairs, 32, 2), outputs padded to panels.
struct WordTable {
    const int16_t* values;
    const float* scales;
    const float* bias;
    int n_out, n_in;

    int n_pairs() const { return (n_in + 1) / 2; }
    int n_panels() const { return (n_out + kPanel - 1) / kPanel; }
};

// out[r, n] (=, +=, = gelu of) sum over k of x[r, k] * table[n, k], plus bias[n]; x[r, k] is scales[r] * rows[r, k].
struct WordProduct {
    WordTable table;
    const int16_t* rows;  // (n_rows, 2 * n_pairs of the table)
    const float* scales;
    int n_rows;
    float* out;
    size_t out_stride;
    Epilogue epilogue;
};

// Keys and values of one head of a window, in pages of kKeyPage frames. In each lie, behind each other, the words of keys
// (kKeyPage / 32, d_pad / 2, 32, 2) and of values (kKeyPage / 2, d_pad, 2), then the scales of keys and of values. Frames
// of the last block that are not there may be any finite ones.
struct WordHead {
    const char* const* pages;
    size_t at;  // where the head lies in each page, in bytes
    int d_pad;

    size_t n_words() const { return static_cast<size_t>(kKeyPage) * d_pad; }
    const int16_t* page(int t) const { return reinterpret_cast<const int16_t*>(pages[t / kKeyPage] + at); }
    const float* scales(int t) const { return reinterpret_cast<const float*>(page(t) + 2 * n_words()) + t % kKeyPage; }

    // From frame t on, in its page.
    const int16_t* keys(int t) const {
        return page(t) + t % kKeyPage / kKeyBlock * kKeyBlock * d_pad + t % kKeyBlock * 2;
    }
    const int16_t* values(int t) const { return page(t) + n_words() + t % kKeyPage * d_pad; }
    const float* key_scales(int t) const { return scales(t); }
    const float* value_scales(int t) const { return scales(t) + kKeyPage; }
};

// Queries over all keys of a head.
struct WordAttention {
    const float* queries;
    size_t query_stride;
    float scale;  // of queries, to logits of base 2
    WordHead head;
    const float* bias;  // added to logits of base 2; (n_frames) padded to whole blocks, where it is kNoKey
    int n_queries, n_frames, d_head;
    float* out;
    size_t out_stride;
};

struct EncoderKernels {
    float (*fill)(const float* x, int n, int most, int16_t* words);  // returns what one of the words is worth
    void (*multiply)(const WordProduct& product, int first_panel, int last_panel);
    void (*attend)(const WordAttention& attention);
};

}  // namespace sottovoce
