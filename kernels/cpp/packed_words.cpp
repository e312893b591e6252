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

PackedWords::PackedWords(const float* weight, const float* bias, int n_out, int n_in, int width)
    : n_out_(n_out), n_in_(n_in * width) {
    const int n_pairs = depth() / 2, n_padded = padded(n_out, kPanel), n_inputs = n_in * width;
    values_ = Block(static_cast<size_t>(n_padded) * depth() * sizeof(int16_t));
    scales_.assign(n_padded, 0.0f);
    bias_.assign(n_padded, 0.0f);
    if (bias) std::copy(bias, bias + n_out, bias_.begin());
    int16_t* values = values_.as<int16_t>();
    std::memset(values, 0, values_.size());
    std::vector<int16_t> words(depth());
    for (int n = 0; n < n_out; ++n) {
        const float* row = weight + static_cast<size_t>(n) * n_inputs;
        scales_[n] = scale_of(row, n_inputs);
        for (int place = 0; place < width; ++place)
            for (int i = 0; i < n_in; ++i)
                words[place * n_in + i] = static_cast<int16_t>(nearest_whole(row[i * width + place] / scales_[n]));
        int16_t* to = values + (static_cast<size_t>(n / kPanel) * kPanel * n_pairs + n % kPanel) * 2;
        for (int k = 0; k < depth(); k += 2)
            std::memcpy(to + static_cast<size_t>(k) * kPanel, &words[k], 2 * sizeof(int16_t));
    }
}

WordTable PackedWords::table() const {
    return {values_.as<int16_t>(), scales_.data(), bias_.data(), n_out_, depth() / 2};
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
