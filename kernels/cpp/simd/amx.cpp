// AMX: products of tiles of up to 16 rows by 64 bytes. For a row or two AVX-512 is as fast.
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
namespace {

constexpr int kTile = 16;
constexpr int kFewRows = 2;  // up to here AVX-512 is as fast

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // A tile takes as many cycles as it has rows; those of the table have 16 always.
    explicit TileConfig(int n_rows) {
        for (int tile = 0; tile < 8; ++tile) {
            bytes[tile] = 64;
            rows[tile] = static_cast<uint8_t>(tile < 6 && n_rows < kTile ? n_rows : kTile);
        }
    }
};

// 32 rows (or 16) over one panel: tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 the table.
template <bool Both>
void tile_sums(const Product& p, int first_row, int panel, int32_t* sums) {
    const int8_t* values = p.table.values + static_cast<size_t>(panel) * kPanel * p.table.depth;
    const uint8_t* rows = p.rows.values + static_cast<size_t>(first_row) * p.rows.stride;
    const uint8_t* more = rows + kTile * p.rows.stride;
    constexpr int kStride = kPanel * kQuad;
    const bool ahead = p.n_rows <= 2 * kTile;  // each panel is read once, from memory
    _tile_zero(0);
    _tile_zero(1);
    if (Both) _tile_zero(2);
    if (Both) _tile_zero(3);
    for (int k = 0; k < p.table.depth; k += kDepth, values += kDepth * kPanel) {
        if (ahead)  // tiles are read in strides, which the processor does not foresee
            for (int line = 0; line < kDepth * kPanel; line += 64)
                _mm_prefetch(reinterpret_cast<const char*>(values) + 2 * kDepth * kPanel + line, _MM_HINT_T0);
        _tile_loadd(4, rows + k, p.rows.stride);
        _tile_loadd(6, values, kStride);
        _tile_loadd(7, values + 64, kStride);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (!Both) continue;
        _tile_loadd(5, more + k, p.rows.stride);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums, kPanel * 4);
    _tile_stored(1, sums + kTile, kPanel * 4);
    if (Both) _tile_stored(2, sums + kTile * kPanel, kPanel * 4);
    if (Both) _tile_stored(3, sums + kTile * kPanel + kTile, kPanel * 4);
}

void multiply_tiles(const Product& p, int first_panel, int last_panel) {
    if (p.n_rows <= kFewRows) return multiply<WidePanel>(p, first_panel, last_panel);
    const TileConfig config(p.n_rows);
    _tile_loadconfig(&config);
    alignas(64) int32_t sums[2 * kTile * kPanel];
    const int near = static_cast<int>(kKeptNear / p.rows.stride) / (2 * kTile) * (2 * kTile);
    const int step = near > 0 ? near : 2 * kTile;
    for (int block = 0; block < p.n_rows; block += step) {
        const int end = block + step < p.n_rows ? block + step : p.n_rows;
        for (int panel = first_panel; panel < last_panel; ++panel)
            for (int row = block; row < end; row += 2 * kTile) {
                const int n_rows = end - row < 2 * kTile ? end - row : 2 * kTile;
                if (n_rows > kTile)
                    tile_sums<true>(p, row, panel, sums);
                else
                    tile_sums<false>(p, row, panel, sums);
                for (int r = 0; r < n_rows; ++r) store_row(p, row + r, panel, sums + r * kPanel);
            }
    }
    _tile_release();
}

}  // namespace

extern const Kernels amx_kernels;
const Kernels amx_kernels = {
    "amx", 1, quantize_bytes, multiply_tiles, layer_norm, attend_self, attend_cross, choose, detect_speech,
    mel_power, update_statistics, attended_frame, mean_of_medians, &encoder_kernels,
};

}  // namespace sottovoce
