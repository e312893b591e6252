// AVX2 with dot products of bytes (AVX-VNNI).
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

struct BytePanel {
    static constexpr int kRows = 3;
    static constexpr int kWide = 4;  // registers of eight outputs each: a panel

    template <int R>
    static void sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        __m256i sums[kWide][R];
        for (auto& of_rows : sums)
            for (__m256i& sum : of_rows) sum = _mm256_setzero_si256();
        for (int quad = 0; quad < n_quads; ++quad, values += kPanel * kQuad) {
            __m256i row[R];
            for (int r = 0; r < R; ++r)
                row[r] = _mm256_castps_si256(
                    _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * stride + kQuad * quad)));
            for (int i = 0; i < kWide; ++i) {
                const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 32 * i));
                for (int r = 0; r < R; ++r) sums[i][r] = _mm256_dpbusd_avx_epi32(sums[i][r], row[r], table);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < kWide; ++i)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[r] + 8 * i), sums[i][r]);
    }
};

}  // namespace

extern const Kernels avx2_vnni_kernels;
const Kernels avx2_vnni_kernels = {
    "avx2-vnni", 1, quantize_bytes, multiply<BytePanel>, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
