// AVX-512 with dot products of bytes (VNNI).
#include "vec_avx512.h"
#include "math.h"
#include "alignatt.h"
#include "attention.h"
#include "choose.h"
#include "mel.h"
#include "multiply.h"
#include "silero.h"
#include "words.h"
#include "panel_avx512.h"

namespace sottovoce {

extern const Kernels avx512_kernels;
const Kernels avx512_kernels = {
    "avx512", 1, quantize_bytes, multiply<WidePanel>, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
