// Products in bfloat16 and attention in tiles for the encoder, over the numbers of an instruction set; included after
// math.h and multiply.h.
#pragma once

#include "../encoder_kernels.h"

namespace sottovoce {
namespace {

constexpr int kManyRows = F::n == 16 ? 12 : F::n == 8 ? 3 : 1;  // whose sums are kept in registers
constexpr int kSomeRows = F::n == 16 ? 4 : 1;
constexpr int kAbreast = F::n == 16 ? 2 : F::n == 8 ? 4 : 16;  // registers of sums a row
constexpr int kWidestHead = 256;  // numbers of a head, padded

// Calls work with a constant number of rows at a time: many, then few, then one.
template <class Work>
void in_rows(int n_rows, const Work& work) {
    int row = 0;
    for (; row + kManyRows <= n_rows; row += kManyRows) work.template rows<kManyRows>(row);
    for (; row + kSomeRows <= n_rows; row += kSomeRows) work.template rows<kSomeRows>(row);
    for (; row < n_rows; ++row) work.template rows<1>(row);
}

void fill(const float* x, int n, float scale, void* pairs) {
    Pair* to = static_cast<Pair*>(pairs);
    constexpr int kAtOnce = 16;
    for (int i = 0; i < n; i += kAtOnce) {
        const int left = n - i < kAtOnce ? n - i : kAtOnce;
        float numbers[kAtOnce] = {0.0f};
        for (int j = 0; j < left; ++j) numbers[j] = scale * x[i + j];
        Pair some[kAtOnce / 2];
        fill_pairs(numbers, kAtOnce / 2, some);
        __builtin_memcpy(to + i / 2, some, sizeof(Pair) * ((left + 1) / 2));
    }
}

struct PairPanel {
    const PairProduct& p;
    int panel;

    template <int R>
    void rows(int row) const {
        constexpr int kParts = kPanel / F::n;
        const uint16_t* values = p.table.values + static_cast<size_t>(panel) * p.table.n_pairs * kPanel * 2;
        for (int part = 0; part < kParts; part += kAbreast) sums<R>(row, part, values + part * F::n * 2);
    }

    template <int R>
    void sums(int row, int part, const uint16_t* values) const {
        const Pair* x = static_cast<const Pair*>(p.rows) + static_cast<size_t>(row) * p.stride;
        F sums[R][kAbreast];
        for (auto& of_row : sums)
            for (F& sum : of_row) sum = F::set(0.0f);
        for (int j = 0; j < p.table.n_pairs; ++j, values += kPanel * 2)
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < kAbreast; ++i)
                    sums[r][i] = dot_pairs(sums[r][i], values + i * F::n * 2, x[r * p.stride + j]);
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < kAbreast; ++i) {
                const int first = panel * kPanel + (part + i) * F::n, left = p.table.n_out - first;
                if (left <= 0) break;
                float* out = p.out + static_cast<size_t>(row + r) * p.out_stride + first;
                apply_epilogue(sums[r][i] + F::load(p.table.bias + first), out, left, p.epilogue);
            }
    }
};

void multiply_pairs(const PairProduct& p, int first_panel, int last_panel) {
    for (int panel = first_panel; panel < last_panel; ++panel) in_rows(p.n_rows, PairPanel{p, panel});
}

// 2 to the x, within 8e-5 of its value, for x up to 127; next to nothing below -126.
inline F two_to_the(F x) {
    const F bounded = larger(x, F::set(-126.0f)), whole = rounded(bounded), rest = bounded - whole;
    F sum = F::set(0.05517166f);  // a cubic whose largest relative error between -1/2 and 1/2 is least
    sum = fused(sum, rest, F::set(0.24261112f));
    sum = fused(sum, rest, F::set(0.69326099f));
    sum = fused(sum, rest, F::set(0.99992807f));
    return scaled(sum, whole);
}

// Attention of some queries, key tile by key tile: what was summed so far is scaled down where a larger logit comes.
struct Tiles {
    const TileAttention& a;

    template <int R>
    void rows(int row) const {
        float logits[R][kTileKeys];
        Pair shares[R][kTileKeys / 2];
        float sums[R][kWidestHead], most[R];
        F totals[R], factors[R];
        const Pair* queries = static_cast<const Pair*>(a.queries) + static_cast<size_t>(row) * a.query_stride;
        for (int r = 0; r < R; ++r) {
            most[r] = -1e30f;
            totals[r] = F::set(0.0f);
            for (int i = 0; i < a.d_pad; ++i) sums[r][i] = 0.0f;
        }
        for (int first = 0; first < a.n_frames; first += kTileKeys) {
            const int n_keys = a.n_frames - first < kTileKeys ? a.n_frames - first : kTileKeys;
            const int n_padded = padded(n_keys, kBlock);
            tile_logits<R>(queries, first, n_padded, logits);
            for (int r = 0; r < R; ++r) {
                if (a.bias)
                    for (int t = 0; t < n_keys; ++t) logits[r][t] += a.bias[first + t];
                for (int t = n_keys; t < n_padded; ++t) logits[r][t] = -1e30f;
                share(logits[r], n_padded, most[r], totals[r], factors[r]);
                fill_pairs(logits[r], n_padded / 2, shares[r]);
            }
            add_values<R>(shares, first, n_padded / 2, factors, sums);
        }
        for (int r = 0; r < R; ++r) {
            const F inverse = F::set(1.0f / totals[r].sum());
            float* out = a.out + static_cast<size_t>(row + r) * a.out_stride;
            for (int i = 0; i < a.d_head; i += F::n)
                (F::load(sums[r] + i) * inverse).store_some(out + i, a.d_head - i < F::n ? a.d_head - i : F::n);
        }
    }

    template <int R>
    void tile_logits(const Pair* queries, int first, int n_keys, float (*logits)[kTileKeys]) const {
        constexpr int kParts = kBlock / F::n;
        const int n_parts = n_keys / F::n, n_pairs = a.d_pad / 2;
        const uint16_t* keys = a.keys + static_cast<size_t>(first) * a.d_pad;
        for (int part = 0; part < n_parts; part += kAbreast) {
            const uint16_t* at[kAbreast];
            for (int i = 0; i < kAbreast; ++i) {
                const int p = part + i < n_parts ? part + i : n_parts - 1;
                at[i] = keys + static_cast<size_t>(p / kParts) * kBlock * a.d_pad + (p % kParts) * F::n * 2;
            }
            F sums[R][kAbreast];
            for (auto& of_row : sums)
                for (F& sum : of_row) sum = F::set(0.0f);
            for (int j = 0; j < n_pairs; ++j)
                for (int r = 0; r < R; ++r)
                    for (int i = 0; i < kAbreast; ++i)
                        sums[r][i] = dot_pairs(sums[r][i], at[i] + j * kBlock * 2, queries[r * a.query_stride + j]);
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < kAbreast && part + i < n_parts; ++i)
                    sums[r][i].store(logits[r] + (part + i) * F::n);
        }
    }

    // Logits into shares of the largest one so far, and by what earlier sums shrink.
    static void share(float* logits, int n, float& most, F& total, F& factor) {
        F largest = F::set(most);
        for (int t = 0; t < n; t += F::n) largest = larger(largest, F::load(logits + t));
        const float now = largest.most();
        factor = two_to_the(F::set(most - now));
        most = now;
        F sum = F::set(0.0f);
        for (int t = 0; t < n; t += F::n) {
            const F one = two_to_the(F::load(logits + t) - F::set(now));
            one.store(logits + t);
            sum = sum + one;
        }
        total = fused(total, factor, sum);
    }

    template <int R>
    void add_values(const Pair (*shares)[kTileKeys / 2], int first, int n_pairs, const F* factors,
                    float (*to)[kWidestHead]) const {
        const uint16_t* values = a.values + static_cast<size_t>(first) * a.d_pad;
        const int n_parts = a.d_pad / F::n;
        for (int part = 0; part < n_parts; part += kAbreast) {
            int at[kAbreast];
            F sums[R][kAbreast];
            for (int i = 0; i < kAbreast; ++i) {
                at[i] = (part + i < n_parts ? part + i : n_parts - 1) * F::n;
                for (int r = 0; r < R; ++r) sums[r][i] = F::load(to[r] + at[i]) * factors[r];
            }
            const uint16_t* pairs = values;
            for (int t = 0; t < n_pairs; ++t, pairs += a.d_pad * 2)
                for (int r = 0; r < R; ++r)
                    for (int i = 0; i < kAbreast; ++i)
                        sums[r][i] = dot_pairs(sums[r][i], pairs + at[i] * 2, shares[r][t]);
            for (int i = 0; i < kAbreast; ++i)
                for (int r = 0; r < R; ++r) sums[r][i].store(to[r] + at[i]);
        }
    }
};

void attend_tiles(const TileAttention& a) { in_rows(a.n_queries, Tiles{a}); }

const EncoderKernels encoder_kernels = {sizeof(Pair), fill, multiply_pairs, attend_tiles};

}  // namespace
}  // namespace sottovoce
