// Dot products of bytes, 64 at a time (AVX-512 VNNI); included after multiply.h.
#pragma once

namespace sottovoce {
namespace {

inline Sums dot_bytes(Sums sums, __m512i row, __m512i table) {
    return reinterpret_cast<Sums>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), row, table));
}

struct WidePanel {
    static constexpr int kRows = 12;

    static __m512i quad_of(const uint8_t* x) {
        int32_t quad;
        __builtin_memcpy(&quad, x, sizeof quad);
        return _mm512_set1_epi32(quad);
    }

    template <int R>
    static void sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        if constexpr (R > 5)
            many<R>(x, stride, values, n_quads, to);
        else
            few<R>(x, stride, values, n_quads, to);
    }

    template <int R>
    static void many(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        Sums sums[R][2];
        for (auto& of_row : sums)
            for (Sums& sum : of_row) sum = Sums{};
        for (int quad = 0; quad < n_quads; ++quad, values += kPanel * kQuad)
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 2; ++i)
                    sums[r][i] = dot_bytes(sums[r][i], quad_of(x + r * stride + kQuad * quad),
                                           _mm512_loadu_si512(values + 64 * i));
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < 2; ++i) __builtin_memcpy(to[r] + 16 * i, &sums[r][i], 64);
    }

    template <int R>
    static void few(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        constexpr int kTurns = R <= 2 ? 4 : 2;  // sums in turn, so that none waits for itself
        Sums low[kTurns][R], high[kTurns][R];
        for (int turn = 0; turn < kTurns; ++turn)
            for (int r = 0; r < R; ++r) low[turn][r] = high[turn][r] = Sums{};
        for (int quad = 0; quad < n_quads; quad += kTurns)  // a table's depth is a multiple of 16 quads
            for (int turn = 0; turn < kTurns; ++turn, values += kPanel * kQuad) {
                _mm_prefetch(reinterpret_cast<const char*>(values) + 2048, _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char*>(values) + 2112, _MM_HINT_T0);
                const __m512i first = _mm512_loadu_si512(values), second = _mm512_loadu_si512(values + 64);
                for (int r = 0; r < R; ++r) {
                    const __m512i row = quad_of(x + r * stride + kQuad * (quad + turn));
                    low[turn][r] = dot_bytes(low[turn][r], row, first);
                    high[turn][r] = dot_bytes(high[turn][r], row, second);
                }
            }
        for (int r = 0; r < R; ++r) {
            for (int turn = 1; turn < kTurns; ++turn) {
                low[0][r] += low[turn][r];
                high[0][r] += high[turn][r];
            }
            __builtin_memcpy(to[r], &low[0][r], 64);
            __builtin_memcpy(to[r] + 16, &high[0][r], 64);
        }
    }
};

}  // namespace
}  // namespace sottovoce
