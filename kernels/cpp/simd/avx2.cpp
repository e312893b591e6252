// AVX2 without dot products of bytes. Activations are local as 16 bits: unsigned times signed bytes would overflow
// the instruction that adds pairs of their products, and products of words cost the same.
#include "vec_avx2.h"
#include "math.h"
#include "alignatt.h"
#include "attention.h"
#include "choose.h"
#include "mel.h"
#include "multiply.h"
#include "silero.h"
#include "words.h"

namespace sottovoce {
namespace {

void quantize_words(const float* x, int n, int depth, uint8_t* values, float* scale, int32_t* zero) {
    quantize_bytes(x, n, depth, values + depth, scale, zero);
    for (int i = 0; i < depth; i += 16) {  // from the upper half down: what is read lies ahead of what is written
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + depth + i));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + 2 * i), _mm256_cvtepu8_epi16(bytes));
    }
}

struct WordPanel {
    static constexpr int kRows = 6;
    static constexpr int kAhead = 2048;  // bytes of the table that are fetched before they are used

    // One row waits for the table, which it goes through once; more rows share what is near.
    template <int R>
    static void sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        constexpr int kWide = R == 1 ? 8 : 2;
        for (int part = 0; part < kPanel; part += 4 * kWide)
            part_sums<R, kWide>(x, stride, values + part * kQuad, n_quads, part, to);
    }

    template <int R, int kWide>
    static void part_sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int part,
                          int32_t (*to)[kPanel]) {
        Sums sums[R][kWide];
        for (auto& of_row : sums)
            for (Sums& sum : of_row) sum = Sums{};
        for (int quad = 0; quad < n_quads; ++quad, values += kPanel * kQuad) {
            if constexpr (R == 1 || R == kRows)
                for (int i = 0; i < kWide; i += 4)
                    _mm_prefetch(reinterpret_cast<const char*>(values) + kAhead + 16 * i, _MM_HINT_T0);
            __m256i table[kWide];
            for (int i = 0; i < kWide; ++i)
                table[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 16 * i)));
            for (int r = 0; r < R; ++r) {
                const __m256i row = _mm256_castpd_si256(
                    _mm256_broadcast_sd(reinterpret_cast<const double*>(x + r * stride + 8 * quad)));
                for (int i = 0; i < kWide; ++i)
                    sums[r][i] += reinterpret_cast<Sums>(_mm256_madd_epi16(table[i], row));
            }
        }
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < kWide; i += 2) {  // the two halves of each output, added up
                const __m256i added = _mm256_hadd_epi32(reinterpret_cast<__m256i>(sums[r][i]),
                                                        reinterpret_cast<__m256i>(sums[r][i + 1]));
                const __m256i ordered = _mm256_permute4x64_epi64(added, 0xd8);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[r] + part + 4 * i), ordered);
            }
    }
};

}  // namespace

extern const Kernels avx2_kernels;
const Kernels avx2_kernels = {
    "avx2", 2, quantize_words, multiply<WordPanel>, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
