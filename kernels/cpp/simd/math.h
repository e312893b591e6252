// Exponentials, GELU and norms over the numbers of an instruction set; included after its vec_*.h.
#pragma once

namespace sottovoce {
namespace {

constexpr float kLeastExponent = -87.0f;  // below, exp is 0

// exp(x) for x up to 80, within 2e-7 of its value; 0 below -87.
inline F exponential(F x) {
    const F bounded = larger(x, F::set(kLeastExponent));
    const F whole = rounded(bounded * F::set(1.44269504088896341f));
    F rest = fused(whole, F::set(-0.693359375f), bounded);
    rest = fused(whole, F::set(2.12194440e-4f), rest);
    F sum = F::set(1.9875691500e-4f);  // Cephes, expf
    sum = fused(sum, rest, F::set(1.3981999507e-3f));
    sum = fused(sum, rest, F::set(8.3334519073e-3f));
    sum = fused(sum, rest, F::set(4.1665795894e-2f));
    sum = fused(sum, rest, F::set(1.6666665459e-1f));
    sum = fused(sum, rest, F::set(5.0000001201e-1f));
    sum = fused(sum, rest * rest, rest + F::set(1.0f));
    return zero_below(sum * two_to(whole), x, kLeastExponent);
}

// x * Phi(x), by Abramowitz and Stegun's formula 7.1.26 of the error function: within 2e-7 of |x| + 1.
inline F gelu(F x) {
    const F z = absolute(x) * F::set(0.70710678118654752f);
    const F t = F::set(1.0f) / fused(z, F::set(0.3275911f), F::set(1.0f));
    F sum = F::set(1.061405429f);
    sum = fused(sum, t, F::set(-1.453152027f));
    sum = fused(sum, t, F::set(1.421413741f));
    sum = fused(sum, t, F::set(-0.284496736f));
    sum = fused(sum, t, F::set(0.254829592f));
    const F erf = F::set(1.0f) - sum * t * exponential(F::set(0.0f) - z * z);
    return F::set(0.5f) * x * (F::set(1.0f) + with_sign(erf, x));
}

inline float sum_of(const float* x, int n) {
    F sum = F::set(0.0f);
    int i = 0;
    for (; i + F::n <= n; i += F::n) sum = sum + F::load(x + i);
    if (i < n) sum = sum + F::load_some(x + i, n - i);
    return sum.sum();
}

void layer_norm(const float* x, const float* weight, const float* bias, int n, float* out) {
    const float mean = sum_of(x, n) / static_cast<float>(n);
    F squares = F::set(0.0f);
    int i = 0;
    for (; i + F::n <= n; i += F::n) {
        const F apart = F::load(x + i) - F::set(mean);
        squares = fused(apart, apart, squares);
    }
    float variance = squares.sum();
    for (; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
    variance /= static_cast<float>(n);
    const F scale = F::set(1.0f / __builtin_sqrtf(variance + 1e-5f));
    for (i = 0; i < n; i += F::n) {
        const int some = n - i;
        if (some >= F::n) {
            const F normed = (F::load(x + i) - F::set(mean)) * scale;
            fused(normed, F::load(weight + i), F::load(bias + i)).store(out + i);
        } else {
            const F normed = (F::load_some(x + i, some) - F::set(mean)) * scale;
            fused(normed, F::load_some(weight + i, some), F::load_some(bias + i, some)).store_some(out + i, some);
        }
    }
}

// A row in eight bits: its least and its largest number, and 0, are told exactly or nearly so.
struct Range {
    float scale, inverse;
    int32_t zero;
};

inline Range range_of(const float* x, int n) {
    F most = F::set(0.0f), least = F::set(0.0f);
    int i = 0;
    for (; i + F::n <= n; i += F::n) {
        most = larger(most, F::load(x + i));
        least = smaller(least, F::load(x + i));
    }
    float high = most.most(), low = least.least();
    for (; i < n; ++i) {
        high = x[i] > high ? x[i] : high;
        low = x[i] < low ? x[i] : low;
    }
    const float span = high - low;
    if (!(span > 1e-30f)) return {1.0f, 1.0f, 0};
    const float inverse = 255.0f / span;
    return {span / 255.0f, inverse, static_cast<int32_t>(0.5f - low * inverse)};
}

inline F quantized(F x, const Range& range) {
    const F value = rounded(x * F::set(range.inverse) + F::set(static_cast<float>(range.zero)));
    return smaller(larger(value, F::set(0.0f)), F::set(255.0f));
}

inline void quantize_bytes(const float* x, int n, int depth, uint8_t* values, float* scale, int32_t* zero) {
    const Range range = range_of(x, n);
    *scale = range.scale;
    *zero = range.zero;
    int i = 0;
    for (; i + F::n <= n; i += F::n) store_bytes(quantized(F::load(x + i), range), values + i);
    if (i < n) {
        uint8_t last[F::n];
        store_bytes(quantized(F::load_some(x + i, n - i), range), last);
        for (int j = 0; i < n; ++i, ++j) values[i] = last[j];
    }
    for (; i < depth; ++i) values[i] = 0;
}

}  // namespace
}  // namespace sottovoce
