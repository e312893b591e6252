// Silero VAD's network for 16 kHz: spectrum, four convolutions, an LSTM cell, and the probability of speech.
#pragma once

#include <algorithm>
#include <vector>

#include "packed.h"

namespace sottovoce {

constexpr int kSpeechWindow = 512;   // samples of a window
constexpr int kSpeechContext = 64;   // samples before it that it sees
constexpr int kSpeechState = 128;    // numbers of the hidden state, and of the cell
constexpr int kFloatPanel = 16;      // outputs of a table that lie together

// A table (n_in, n_out) of floats, packed as (n_out / 16, n_in, 16).
struct FloatTable {
    Block memory;
    std::vector<float> bias;
    int n_in = 0, n_out = 0;

    FloatTable() = default;
    FloatTable(const float* rows, const float* bias_, int n_in_, int n_out_)
        : memory(sizeof(float) * n_in_ * n_out_), bias(n_out_), n_in(n_in_), n_out(n_out_) {
        float* to = memory.as<float>();
        for (int first = 0; first < n_out; first += kFloatPanel)
            for (int k = 0; k < n_in; ++k, to += kFloatPanel)
                std::copy_n(rows + static_cast<size_t>(k) * n_out + first, kFloatPanel, to);
        if (bias_) bias.assign(bias_, bias_ + n_out);
    }

    const float* values() const { return memory.as<float>(); }
};

struct Silero {
    FloatTable cosines, sines;  // of half a frame, folded: (128, 144) and (128, 128)
    FloatTable layers[4];       // (3 * 129, 128), (3 * 128, 64), (2 * 64, 64) and (64, 128)
    FloatTable input, recurrent;  // of the cell: (128, 512), in the order input, forget, candidate, output
    std::vector<float> output;
    float output_bias = 0.0f;
};

// Windows that follow one another. samples: kSpeechContext and n_windows * kSpeechWindow numbers.
struct SpeechWindows {
    const float* samples;
    int n_windows;
    float* hidden;  // (128), changed, as is the cell
    float* cell;
    float* probabilities;  // (n_windows), written
};

}  // namespace sottovoce
