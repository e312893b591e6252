// Cross-attention keys and values of one window in bfloat16, packed for the kernels. The memory is the
// caller's; keys are (n_head, n_blocks, d_pad / 2, 16, 2) and values (n_head, 8 * n_blocks, d_pad, 2).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace sottovoce {

constexpr int kPadHead = 16;  // numbers of a head are padded to a multiple of it

// The keys and values of a window in every decoder layer.
struct Audio {
    std::vector<const uint16_t*> keys, values;
    int n_frames;
};

// How the keys and values of one layer lie.
struct AudioShape {
    int n_head, d_head, n_frames;

    int d_pad() const { return padded(d_head, kPadHead); }
    int n_blocks() const { return (n_frames + kBlock - 1) / kBlock; }
    size_t head_size() const { return static_cast<size_t>(n_blocks()) * kBlock * d_pad(); }
};

// Pack frames [first, last) of keys and values, rows of `stride` numbers whose heads follow each other. Frames of the
// last block that are not there, and the numbers that pad heads, must be zeros already.
void pack_keys(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* keys);
void pack_values(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* values);

}  // namespace sottovoce
