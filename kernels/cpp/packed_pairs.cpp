#include <algorithm>
#include <cstring>

#include "encoder.h"

namespace sottovoce {

PackedPairs::PackedPairs(const float* weight, const float* bias, int n_out, int n_in, int width)
    : n_out_(n_out), n_in_(n_in * width) {
    const int n_pairs = (n_in_ + 1) / 2, n_padded = padded(n_out, kPanel);
    values_ = Block(static_cast<size_t>(n_padded) * n_pairs * 2 * sizeof(uint16_t));
    bias_.assign(n_padded, 0.0f);
    if (bias) std::copy(bias, bias + n_out, bias_.begin());
    uint16_t* values = values_.as<uint16_t>();
    std::memset(values, 0, values_.size());
    for (int n = 0; n < n_out; ++n)
        for (int place = 0; place < width; ++place)
            for (int i = 0; i < n_in; ++i) {
                const int k = place * n_in + i;
                const size_t panel = static_cast<size_t>(n / kPanel) * kPanel * n_pairs * 2;
                values[panel + (static_cast<size_t>(k / 2) * kPanel + n % kPanel) * 2 + k % 2] =
                    to_bfloat16(weight[(static_cast<size_t>(n) * n_in + i) * width + place]);
            }
}

PairTable PackedPairs::table() const { return {values_.as<uint16_t>(), bias_.data(), n_out_, (n_in_ + 1) / 2}; }

}  // namespace sottovoce
