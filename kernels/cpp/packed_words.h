// Tables, keys and values of the encoder in words of 16 bits, laid out for the kernels.
#pragma once

#include <vector>

#include "encoder_kernels.h"
#include "packed.h"

namespace sottovoce {

// The same as `pack_bytes`, in words: each output has the largest whose sums cannot overflow.
void pack_words(const PackedShape& shape, const float* rows, const float* bias, int first, int n, uint8_t* memory);

WordTable table_in_words(const PackedShape& shape, const uint8_t* memory);

// How keys and values of one window lie: head by head, see `WordHead`.
struct WordShape {
    int n_head, d_head, n_frames;

    int d_pad() const { return padded(d_head, kKeyBlock); }
    size_t n_scales() const { return padded(n_frames, kKeyBlock); }  // of a head
    size_t head_size() const { return n_scales() * d_pad(); }
};

// Keys, or values, of all heads in words.
struct WordPlaces {
    int16_t* words;
    float* scales;
};

// Lay the key or value (n_head * d_head) of frame t; what pads heads and the last block must be zeros already.
void lay_key(const EncoderKernels& kernels, const WordShape& shape, const float* key, int t, WordPlaces to);
void lay_value(const EncoderKernels& kernels, const WordShape& shape, const float* value, int t, WordPlaces to);

// Biases of all keys, n_scales() of them. bias: (n_frames), times `unit`, or nothing: zeros.
std::vector<float> key_biases(const WordShape& shape, const float* bias, float unit);

}  // namespace sottovoce
