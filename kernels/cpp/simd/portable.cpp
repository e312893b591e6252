#include "vec_portable.h"
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

struct PortablePanel {
    static constexpr int kRows = 1;

    template <int R>
    static void sums(const uint8_t* x, size_t, const int8_t* values, int n_quads, int32_t (*to)[kPanel]) {
        for (int n = 0; n < kPanel; ++n) to[0][n] = 0;
        for (int quad = 0; quad < n_quads; ++quad)
            for (int n = 0; n < kPanel; ++n)
                for (int i = 0; i < kQuad; ++i)
                    to[0][n] += static_cast<int32_t>(x[quad * kQuad + i]) * values[(quad * kPanel + n) * kQuad + i];
    }
};

}  // namespace

extern const Kernels portable_kernels;
const Kernels portable_kernels = {
    "portable", 1, quantize_bytes, multiply<PortablePanel>, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
