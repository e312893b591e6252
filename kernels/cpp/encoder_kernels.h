// What one instruction set computes for the encoder, beside what kernels.h has: products in bfloat16 over many rows,
// and attention in tiles. A pair is two numbers of a row: two of bfloat16 where the processor multiplies them, else
// two floats. A row's numbers depend on no other row, bit by bit.
#pragma once

#include "kernels.h"

namespace sottovoce {

constexpr int kTileKeys = 256;  // keys whose logits are there at a time

// A table in bfloat16: (n_out / 32, n_pairs, 32, 2), outputs padded to whole panels.
struct PairTable {
    const uint16_t* values;
    const float* bias;
    int n_out, n_pairs;

    int n_panels() const { return (n_out + kPanel - 1) / kPanel; }
};

// out[r, n] (=, +=, = gelu of) sum over k of x[r, k] * table[n, k], plus bias[n]; rows may overlap.
struct PairProduct {
    PairTable table;
    const void* rows;
    size_t stride;  // pairs from row to row
    int n_rows;
    float* out;
    size_t out_stride;
    Epilogue epilogue;
};

// Queries over all keys of one head of one window, laid out as audio.h says. Queries are scaled to logits of base 2.
struct TileAttention {
    const void* queries;  // n_queries rows of d_pad / 2 pairs
    size_t query_stride;  // pairs from row to row
    const uint16_t* keys;
    const uint16_t* values;
    const float* bias;  // (n_frames), added to logits of base 2, or nothing
    int n_queries, n_frames, d_head, d_pad;
    float* out;
    size_t out_stride;
};

struct EncoderKernels {
    size_t bytes_a_pair;
    void (*fill)(const float* x, int n, float scale, void* pairs);  // n numbers, times scale, to (n + 1) / 2 pairs
    void (*multiply)(const PairProduct& product, int first_panel, int last_panel);
    void (*attend)(const TileAttention& attention);
};

}  // namespace sottovoce
