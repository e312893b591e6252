// Tables, keys and values of the encoder in words of 16 bits, laid out for the kernels.
#pragma once

#include <vector>

#include "encoder_kernels.h"
#include "packed.h"

namespace sottovoce {

// The same as `pack_bytes`, in words: each output has the largest whose sums cannot overflow.
void pack_words(const PackedShape& shape, const float* rows, const float* bias, int first, int n, uint8_t* memory);

WordTable table_in_words(const PackedShape& shape, const uint8_t* memory);

// How keys and values of a page of frames lie: layer by layer and head by head, see `WordHead`.
struct PageShape {
    int n_layer, n_head, d_head;

    int d_pad() const { return padded(d_head, kKeyBlock); }
    size_t head_bytes() const { return 2 * kKeyPage * (d_pad() * sizeof(int16_t) + sizeof(float)); }
    size_t at(int layer, int head) const { return (static_cast<size_t>(layer) * n_head + head) * head_bytes(); }
    size_t bytes() const { return at(n_layer, 0); }
};

// Lay the key and the value (n_head * d_head) of frame t in one layer; what pads heads must be zeros already.
void lay_frame(const EncoderKernels& kernels, const PageShape& shape, int layer, const float* key, const float* value,
               int t, char* const* pages);

// Copy frame `from` of some pages, in all layers, to frame `to` of others.
void copy_frame(const PageShape& shape, const char* const* pages, int from, char* const* others, int to);

// Biases of n_frames keys, padded to whole blocks. bias: (n_frames), times `unit`, or nothing: zeros.
std::vector<float> key_biases(int n_frames, const float* bias, float unit);

}  // namespace sottovoce
