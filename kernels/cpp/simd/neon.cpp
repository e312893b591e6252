// NEON with dot products of signed bytes. Activations are kept 128 below what other sets keep them at, and so is their
// zero point: the numbers that they stand for are the same.
#include "vec_neon.h"
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

void quantize_signed(const float* x, int n, int depth, uint8_t* values, float* scale, int32_t* zero) {
    quantize_bytes(x, n, depth, values, scale, zero);
    *zero -= 128;
    for (int i = 0; i < depth; i += 16) vst1q_u8(values + i, veorq_u8(vld1q_u8(values + i), vdupq_n_u8(0x80)));
}

struct DotPanel {
    static constexpr int kRows = 3;
    static constexpr int kWide = 8;  // registers of four outputs each: a panel

    template <int R>
    static void sums(const uint8_t* x, size_t stride, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        int32x4_t sums[kWide][R];
        for (auto& of_rows : sums)
            for (int32x4_t& sum : of_rows) sum = vdupq_n_s32(0);
        for (int quad = 0; quad < n_quads; ++quad, values += kPanel * kQuad) {
            int8x16_t row[R];
            for (int r = 0; r < R; ++r) {
                int32_t four;
                __builtin_memcpy(&four, x + r * stride + kQuad * quad, sizeof four);
                row[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
            }
            for (int i = 0; i < kWide; ++i) {
                const int8x16_t table = vld1q_s8(values + 16 * i);
                for (int r = 0; r < R; ++r) sums[i][r] = vdotq_s32(sums[i][r], row[r], table);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < kWide; ++i) vst1q_s32(to[r] + 4 * i, sums[i][r]);
    }
};

}  // namespace

extern const Kernels neon_kernels;
const Kernels neon_kernels = {
    "neon", 1, quantize_signed, multiply<DotPanel>, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
