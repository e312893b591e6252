// Dot products of bytes, 64 at a time (AVX-512 VNNI); included after multiply.h.
#pragma once

namespace sottovoce {
namespace {

struct WidePanel {
    static constexpr int kRows = 12;

    static __m512i quad_of(const uint8_t* x) {
        int32_t quad;
        __builtin_memcpy(&quad, x, sizeof quad);
        return _mm512_set1_epi32(quad);
    }

    template <int R>
    static void sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        constexpr int kTurns = R <= 2 ? 4 : R <= 5 ? 2 : 1;  // sums in turn, so that none waits for itself
        __m512i low[kTurns][R], high[kTurns][R];
        for (int turn = 0; turn < kTurns; ++turn)
            for (int r = 0; r < R; ++r) low[turn][r] = high[turn][r] = _mm512_setzero_si512();
        for (int quad = 0; quad < n_quads; quad += kTurns)  // a table's depth is a multiple of 16 quads
            for (int turn = 0; turn < kTurns; ++turn, values += kPanel * kQuad) {
                if (R <= 5) _mm_prefetch(reinterpret_cast<const char*>(values) + 2048, _MM_HINT_T0);
                if (R <= 5) _mm_prefetch(reinterpret_cast<const char*>(values) + 2112, _MM_HINT_T0);
                const __m512i first = _mm512_loadu_si512(values), second = _mm512_loadu_si512(values + 64);
                for (int r = 0; r < R; ++r) {
                    const __m512i row = quad_of(x + r * stride + kQuad * (quad + turn));
                    low[turn][r] = _mm512_dpbusd_epi32(low[turn][r], row, first);
                    high[turn][r] = _mm512_dpbusd_epi32(high[turn][r], row, second);
                }
            }
        for (int r = 0; r < R; ++r) {
            for (int turn = 1; turn < kTurns; ++turn) {
                low[0][r] = _mm512_add_epi32(low[0][r], low[turn][r]);
                high[0][r] = _mm512_add_epi32(high[0][r], high[turn][r]);
            }
            _mm512_storeu_si512(to[r], low[0][r]);
            _mm512_storeu_si512(to[r] + 16, high[0][r]);
        }
    }
};

}  // namespace
}  // namespace sottovoce
