// Four numbers at a time: NEON of 64-bit ARM.
#pragma once

#include <arm_neon.h>

#include "../kernels.h"

namespace sottovoce {
namespace {

struct F {
    static constexpr int n = 4;
    float32x4_t v;

    static F load(const float* from) { return {vld1q_f32(from)}; }
    static F load_some(const float* from, int count) {
        float some[n] = {0.0f};
        for (int i = 0; i < count && i < n; ++i) some[i] = from[i];
        return load(some);
    }
    static F set(float value) { return {vdupq_n_f32(value)}; }
    static F from_ints(const int32_t* from) { return {vcvtq_f32_s32(vld1q_s32(from))}; }
    void store(float* to) const { vst1q_f32(to, v); }
    void store_some(float* to, int count) const {
        float some[n];
        store(some);
        for (int i = 0; i < count && i < n; ++i) to[i] = some[i];
    }
    float sum() const { return vaddvq_f32(v); }
    float most() const { return vmaxnmvq_f32(v); }
    float least() const { return vminnmvq_f32(v); }
};

inline F operator+(F a, F b) { return {vaddq_f32(a.v, b.v)}; }
inline F operator-(F a, F b) { return {vsubq_f32(a.v, b.v)}; }
inline F operator*(F a, F b) { return {vmulq_f32(a.v, b.v)}; }
inline F operator/(F a, F b) { return {vdivq_f32(a.v, b.v)}; }
inline F fused(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline F larger(F a, F b) { return {vmaxnmq_f32(a.v, b.v)}; }
inline F smaller(F a, F b) { return {vminnmq_f32(a.v, b.v)}; }
inline F root(F a) { return {vsqrtq_f32(a.v)}; }
inline F rounded(F a) { return {vrndnq_f32(a.v)}; }
inline F absolute(F a) { return {vabsq_f32(a.v)}; }
inline F with_sign(F a, F sign) { return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, a.v)}; }
inline F zero_below(F a, F x, float limit) {
    const uint32x4_t is_below = vcltq_f32(x.v, vdupq_n_f32(limit));
    return {vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a.v), is_below))};
}
inline F two_to(F whole) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(whole.v), vdupq_n_s32(127));
    return {vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23))};
}
inline F scaled(F a, F whole) { return a * two_to(whole); }  // a times 2 to the whole
inline void store_bytes(F a, uint8_t* to) {
    const uint16x4_t words = vmovn_u32(vcvtnq_u32_f32(a.v));
    const uint32x2_t bytes = vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words)));
    __builtin_memcpy(to, &bytes, F::n);
}

struct Pair {
    float first, second;
};
inline void fill_pairs(const float* from, int n_pairs, Pair* to) {
    for (int i = 0; i < n_pairs; ++i) to[i] = {from[2 * i], from[2 * i + 1]};
}
inline F dot_pairs(F sum, const uint16_t* pairs, Pair by) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(pairs));
    const float32x4_t first = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    const float32x4_t second = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
    return {vfmaq_n_f32(vfmaq_n_f32(sum.v, first, by.first), second, by.second)};
}

// Whole sums, as many as there are numbers, in the two halves that products of words come in.
struct Sums {
    int32x4_t low, high;
};
inline F from_sums(Sums sums) { return {vcvtq_f32_s32(vpaddq_s32(sums.low, sums.high))}; }
inline void store_words(F a, int16_t* to) { vst1_s16(to, vqmovn_s32(vcvtnq_s32_f32(a.v))); }

// Pairs of words, one for each sum.
struct Words {
    int16x8_t v;

    static Words load(const int16_t* from) { return {vld1q_s16(from)}; }
    static Words repeat(const int16_t* pair) {
        int32_t both;
        __builtin_memcpy(&both, pair, sizeof both);
        return {vreinterpretq_s16_s32(vdupq_n_s32(both))};
    }
};
inline Sums dot_words(Sums sums, Words a, Words b) {
    return {vmlal_s16(sums.low, vget_low_s16(a.v), vget_low_s16(b.v)), vmlal_high_s16(sums.high, a.v, b.v)};
}

}  // namespace
}  // namespace sottovoce
