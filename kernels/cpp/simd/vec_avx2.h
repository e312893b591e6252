// Eight numbers at a time: AVX2 with fused multiply and add.
#pragma once

#include <immintrin.h>

#include "../kernels.h"

namespace sottovoce {
namespace {

struct F {
    static constexpr int n = 8;
    __m256 v;

    static __m256i mask(int count) {
        const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), places);
    }
    static F load(const float* from) { return {_mm256_loadu_ps(from)}; }
    static F load_some(const float* from, int count) { return {_mm256_maskload_ps(from, mask(count))}; }
    static F set(float value) { return {_mm256_set1_ps(value)}; }
    static F from_ints(const int32_t* from) {
        return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
    }
    void store(float* to) const { _mm256_storeu_ps(to, v); }
    void store_some(float* to, int count) const { _mm256_maskstore_ps(to, mask(count), v); }
    float sum() const {
        const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        const __m128 two = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    float most() const {
        const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        const __m128 two = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    float least() const {
        const __m128 half = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        const __m128 two = _mm_min_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
    }
};

inline F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fused(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F larger(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F smaller(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F root(F a) { return {_mm256_sqrt_ps(a.v)}; }
inline F rounded(F a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F absolute(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F with_sign(F a, F sign) {
    return {_mm256_or_ps(absolute(a).v, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign.v))};
}
inline F zero_below(F a, F x, float limit) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(limit), _CMP_LT_OQ), a.v)};
}
inline F two_to(F whole) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
inline F scaled(F a, F whole) { return a * two_to(whole); }  // a times 2 to the whole
inline void store_bytes(F a, uint8_t* to) {
    const __m256i whole = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}

struct Pair {
    float first, second;
};
inline void fill_pairs(const float* from, int n_pairs, Pair* to) {
    for (int i = 0; i < n_pairs; ++i) to[i] = {from[2 * i], from[2 * i + 1]};
}
inline F dot_pairs(F sum, const uint16_t* pairs, Pair by) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(0xffff0000)));
    sum.v = _mm256_fmadd_ps(first, _mm256_set1_ps(by.first), sum.v);
    return {_mm256_fmadd_ps(second, _mm256_set1_ps(by.second), sum.v)};
}

// Whole sums, as many as there are numbers: kept as __m256i, GCC 12 stores each of them at every product.
typedef int32_t Sums __attribute__((vector_size(32)));
inline F from_sums(Sums sums) { return {_mm256_cvtepi32_ps(reinterpret_cast<__m256i>(sums))}; }
inline void store_words(F a, int16_t* to) {
    const __m256i whole = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}

// Pairs of words, one for each sum.
struct Words {
    __m256i v;

    static Words load(const int16_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
    static Words repeat(const int16_t* pair) {
        return {_mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(pair)))};
    }
};
inline Sums dot_words(Sums sums, Words a, Words b) {
#if defined(__AVXVNNI__)
    return reinterpret_cast<Sums>(_mm256_dpwssd_avx_epi32(reinterpret_cast<__m256i>(sums), a.v, b.v));
#else
    return sums + reinterpret_cast<Sums>(_mm256_madd_epi16(a.v, b.v));
#endif
}

}  // namespace
}  // namespace sottovoce
