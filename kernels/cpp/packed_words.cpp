#include "packed_words.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace sottovoce {

namespace {

// What one word of an output is worth, so that no sum of its words times activations overflows.
float scale_of(const float* weights, int n) {
    const double most = std::numeric_limits<int32_t>::max() / kMostActivation - (n + 1) / 2 - 1;
    double largest = 0.0, sum = 0.0;
    for (int k = 0; k < n; ++k) {
        largest = std::max(largest, static_cast<double>(std::fabs(weights[k])));
        sum += std::fabs(weights[k]);
    }
    const double scale = std::max(largest / std::numeric_limits<int16_t>::max(), sum / most);
    return scale > 0.0 ? static_cast<float>(scale) : 1.0f;
}

}  // namespace

void pack_words(const PackedShape& shape, const float* rows, const float* bias, int first, int n, uint8_t* memory) {
    auto* values = reinterpret_cast<int16_t*>(memory);
    auto* scales = reinterpret_cast<float*>(memory + shape.scales());
    auto* biases = reinterpret_cast<float*>(memory + shape.biases());
    const int depth = shape.depth();
    std::vector<int16_t> words(depth);
    for (int r = 0; r < n; ++r) {
        const int output = first + r;
        const float* row = rows + static_cast<size_t>(r) * shape.n_in;
        scales[output] = scale_of(row, shape.n_in);
        biases[output] = bias ? bias[r] : 0.0f;
        for (int k = 0; k < shape.n_in; ++k) words[k] = static_cast<int16_t>(nearest_whole(row[k] / scales[output]));
        int16_t* to = values + static_cast<size_t>(output / kPanel) * kPanel * depth + output % kPanel * 2;
        for (int k = 0; k < depth; k += 2)
            std::memcpy(to + static_cast<size_t>(k) * kPanel, &words[k], 2 * sizeof(int16_t));
    }
}

WordTable table_in_words(const PackedShape& shape, const uint8_t* memory) {
    return {reinterpret_cast<const int16_t*>(memory), reinterpret_cast<const float*>(memory + shape.scales()),
            reinterpret_cast<const float*>(memory + shape.biases()), shape.n_out, shape.n_in};
}

void lay_key(const EncoderKernels& kernels, const WordShape& shape, const float* key, int t, WordPlaces to) {
    const int d = shape.d_head, d_pad = shape.d_pad();
    int16_t words[kWidestHead] = {};  // so that the last pair of an odd head is whole
    for (int head = 0; head < shape.n_head; ++head) {
        to.scales[head * shape.n_scales() + t] = kernels.fill(key + head * d, d, most_word(d_pad), words);
        int16_t* block = to.words + head * shape.head_size() + static_cast<size_t>(t / kKeyBlock) * kKeyBlock * d_pad;
        for (int i = 0; i < d; i += 2)
            std::memcpy(block + (i / 2 * kKeyBlock + t % kKeyBlock) * 2, words + i, 2 * sizeof(int16_t));
    }
}

void lay_value(const EncoderKernels& kernels, const WordShape& shape, const float* value, int t, WordPlaces to) {
    const int d = shape.d_head, d_pad = shape.d_pad();
    int16_t words[kWidestHead];
    for (int head = 0; head < shape.n_head; ++head) {
        to.scales[head * shape.n_scales() + t] = kernels.fill(value + head * d, d, kMostValue, words);
        int16_t* pair = to.words + head * shape.head_size() + static_cast<size_t>(t / 2) * d_pad * 2 + t % 2;
        for (int i = 0; i < d; ++i) pair[2 * i] = words[i];
    }
}

std::vector<float> key_biases(const WordShape& shape, const float* bias, float unit) {
    std::vector<float> all(shape.n_scales(), kNoKey);
    for (int t = 0; t < shape.n_frames; ++t) all[t] = bias ? unit * bias[t] : 0.0f;
    return all;
}

}  // namespace sottovoce
