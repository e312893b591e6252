// Sixteen numbers at a time: AVX-512 (F, BW, DQ, VL), and its products of bfloat16 where they are built in.
#pragma once

#include <immintrin.h>

#include "../kernels.h"

namespace sottovoce {
namespace {

struct F {
    static constexpr int n = 16;
    __m512 v;

    static __mmask16 mask(int count) {
        return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1u);
    }
    static F load(const float* from) { return {_mm512_loadu_ps(from)}; }
    static F load_some(const float* from, int count) { return {_mm512_maskz_loadu_ps(mask(count), from)}; }
    static F set(float value) { return {_mm512_set1_ps(value)}; }
    static F from_ints(const int32_t* from) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(from))}; }
    void store(float* to) const { _mm512_storeu_ps(to, v); }
    void store_some(float* to, int count) const { _mm512_mask_storeu_ps(to, mask(count), v); }
    float sum() const { return _mm512_reduce_add_ps(v); }
    float most() const { return _mm512_reduce_max_ps(v); }
    float least() const { return _mm512_reduce_min_ps(v); }
};

inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fused(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F larger(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F smaller(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F root(F a) { return {_mm512_sqrt_ps(a.v)}; }
inline F rounded(F a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F absolute(F a) { return {_mm512_abs_ps(a.v)}; }
inline F with_sign(F a, F sign) {
    return {_mm512_or_ps(absolute(a).v, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign.v))};
}
inline F zero_below(F a, F x, float limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), a.v)};
}
inline F two_to(F whole) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(whole.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
inline F scaled(F a, F whole) { return {_mm512_scalef_ps(a.v, whole.v)}; }  // a times 2 to the whole
inline void store_bytes(F a, uint8_t* to) {
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(a.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

#if defined(__AVX512BF16__)
struct Pair {
    int32_t both;
};
inline void fill_pairs(const float* from, int n_pairs, Pair* to) {
    for (int i = 0; i < n_pairs; i += 8) {  // there are always whole vectors of numbers
        const __m256bh words = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + 2 * i));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), reinterpret_cast<__m256i>(words));
    }
}
inline F dot_pairs(F sum, const uint16_t* pairs, Pair by) {
    const __m512i twice = _mm512_set1_epi32(by.both);
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs)),
                             reinterpret_cast<__m512bh>(twice))};
}
#else
struct Pair {
    float first, second;
};
inline void fill_pairs(const float* from, int n_pairs, Pair* to) {
    for (int i = 0; i < n_pairs; ++i) to[i] = {from[2 * i], from[2 * i + 1]};
}
inline F dot_pairs(F sum, const uint16_t* pairs, Pair by) {
    const __m512i both = _mm512_loadu_si512(pairs);
    const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    const __m512 second = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff0000)));
    sum.v = _mm512_fmadd_ps(first, _mm512_set1_ps(by.first), sum.v);
    return {_mm512_fmadd_ps(second, _mm512_set1_ps(by.second), sum.v)};
}
#endif

// Whole sums, as many as there are numbers: kept as __m512i, GCC 12 stores each of them at every product.
typedef int32_t Sums __attribute__((vector_size(64)));
inline F from_sums(Sums sums) { return {_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(sums))}; }
inline void store_words(F a, int16_t* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}

// Pairs of words, one for each sum.
struct Words {
    __m512i v;

    static Words load(const int16_t* from) { return {_mm512_loadu_si512(from)}; }
    static Words repeat(const int16_t* pair) {
        int32_t both;
        __builtin_memcpy(&both, pair, sizeof both);
        return {_mm512_set1_epi32(both)};
    }
};
inline Sums dot_words(Sums sums, Words a, Words b) {
    return reinterpret_cast<Sums>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), a.v, b.v));
}

}  // namespace
}  // namespace sottovoce
