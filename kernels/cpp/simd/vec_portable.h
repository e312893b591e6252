// One number at a time, in plain C++: the judge of the other instruction sets.
#pragma once

#include <cmath>

#include "../kernels.h"

namespace sottovoce {
namespace {

struct F {
    static constexpr int n = 1;
    float v;

    static F load(const float* from) { return {*from}; }
    static F load_some(const float* from, int count) { return {count > 0 ? *from : 0.0f}; }
    static F set(float value) { return {value}; }
    static F from_ints(const int32_t* from) { return {static_cast<float>(*from)}; }
    void store(float* to) const { *to = v; }
    void store_some(float* to, int count) const {
        if (count > 0) *to = v;
    }
    float sum() const { return v; }
    float most() const { return v; }
    float least() const { return v; }
};

inline F operator+(F a, F b) { return {a.v + b.v}; }
inline F operator-(F a, F b) { return {a.v - b.v}; }
inline F operator*(F a, F b) { return {a.v * b.v}; }
inline F operator/(F a, F b) { return {a.v / b.v}; }
inline F fused(F a, F b, F c) { return {a.v * b.v + c.v}; }
inline F larger(F a, F b) { return {a.v > b.v ? a.v : b.v}; }
inline F smaller(F a, F b) { return {a.v < b.v ? a.v : b.v}; }
inline F root(F a) { return {std::sqrt(a.v)}; }
inline F rounded(F a) { return {std::nearbyint(a.v)}; }
inline F absolute(F a) { return {std::fabs(a.v)}; }
inline F with_sign(F a, F sign) { return {std::copysign(a.v, sign.v)}; }
inline F zero_below(F a, F x, float limit) { return {x.v < limit ? 0.0f : a.v}; }  // a, but 0 where x < limit
inline F two_to(F whole) { return {std::ldexp(1.0f, static_cast<int>(whole.v))}; }
inline F scaled(F a, F whole) { return a * two_to(whole); }  // a times 2 to the whole
inline void store_bytes(F a, uint8_t* to) { *to = static_cast<uint8_t>(a.v); }

// Pairs of bfloat16 times a pair of numbers, added up.
struct Pair {
    float first, second;
};
inline void fill_pairs(const float* from, int n_pairs, Pair* to) {
    for (int i = 0; i < n_pairs; ++i) to[i] = {from[2 * i], from[2 * i + 1]};
}
inline F dot_pairs(F sum, const uint16_t* pairs, Pair by) {
    return {sum.v + from_bfloat16(pairs[0]) * by.first + from_bfloat16(pairs[1]) * by.second};
}

// Whole sums, as many as there are numbers.
typedef int32_t Sums;
inline F from_sums(Sums sum) { return {static_cast<float>(sum)}; }
inline void store_words(F a, int16_t* to) { *to = static_cast<int16_t>(std::nearbyint(a.v)); }  // the nearest ones

// Pairs of words, one for each sum.
struct Words {
    int32_t first, second;

    static Words load(const int16_t* from) { return {from[0], from[1]}; }
    static Words repeat(const int16_t* pair) { return load(pair); }
};
inline Sums dot_words(Sums sum, Words a, Words b) { return sum + a.first * b.first + a.second * b.second; }

}  // namespace
}  // namespace sottovoce
