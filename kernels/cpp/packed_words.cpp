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

// Where one frame lies in the page of a head: its pairs of numbers are a block apart, its numbers two.
struct FramePlaces {
    int16_t *key, *value;
    float *key_scale, *value_scale;
};

FramePlaces places(const PageShape& shape, char* head, int t) {
    const WordHead in{&head, 0, shape.d_pad()};
    const int place = t % kKeyPage;
    return {const_cast<int16_t*>(in.keys(place)), const_cast<int16_t*>(in.values(place / 2 * 2)) + place % 2,
            const_cast<float*>(in.key_scales(place)), const_cast<float*>(in.value_scales(place))};
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

void lay_frame(const EncoderKernels& kernels, const PageShape& shape, int layer, const float* key, const float* value,
               int t, char* const* pages) {
    const int d = shape.d_head;
    int16_t words[kWidestHead] = {};  // so that the last pair of an odd head is whole
    for (int head = 0; head < shape.n_head; ++head) {
        const FramePlaces to = places(shape, pages[t / kKeyPage] + shape.at(layer, head), t);
        *to.key_scale = kernels.fill(key + head * d, d, most_word(shape.d_pad()), words);
        for (int i = 0; i < d; i += 2) std::memcpy(to.key + i * kKeyBlock, words + i, 2 * sizeof(int16_t));
        *to.value_scale = kernels.fill(value + head * d, d, kMostValue, words);
        for (int i = 0; i < d; ++i) to.value[2 * i] = words[i];
    }
}

void copy_frame(const PageShape& shape, const char* const* pages, int from, char* const* others, int to) {
    for (size_t at = 0; at < shape.bytes(); at += shape.head_bytes()) {
        const FramePlaces source = places(shape, const_cast<char*>(pages[from / kKeyPage]) + at, from);
        const FramePlaces copy = places(shape, others[to / kKeyPage] + at, to);
        for (int i = 0; i < shape.d_pad(); i += 2)
            std::memcpy(copy.key + i * kKeyBlock, source.key + i * kKeyBlock, 2 * sizeof(int16_t));
        for (int i = 0; i < shape.d_pad(); ++i) copy.value[2 * i] = source.value[2 * i];
        *copy.key_scale = *source.key_scale;
        *copy.value_scale = *source.value_scale;
    }
}

std::vector<float> key_biases(int n_frames, const float* bias, float unit) {
    std::vector<float> all(padded(n_frames, kKeyBlock), kNoKey);
    for (int t = 0; t < n_frames; ++t) all[t] = bias ? unit * bias[t] : 0.0f;
    return all;
}

}  // namespace sottovoce
