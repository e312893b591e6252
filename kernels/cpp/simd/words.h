// Products of words of 16 bits and attention in tiles for the encoder, over the numbers of an instruction set; included
// after math.h and multiply.h. Sums of words are whole: no set rounds them otherwise than another.
#pragma once

#include "../encoder_kernels.h"

namespace sottovoce {
namespace {

constexpr int kManyRows = F::n == 16 ? 12 : F::n == 1 ? 1 : 6;  // whose sums are kept in registers
constexpr int kAbreast = F::n == 1 ? 16 : 2;                    // registers of sums a row
constexpr int kSomeRows = F::n == 1 ? 1 : 2;

// Calls work with a constant number of rows at a time: many, then few, then one.
template <class Work>
void in_rows(int n_rows, const Work& work) {
    int row = 0;
    for (; row + kManyRows <= n_rows; row += kManyRows) work.template rows<kManyRows>(row);
    for (; row + kSomeRows <= n_rows; row += kSomeRows) work.template rows<kSomeRows>(row);
    for (; row < n_rows; ++row) work.template rows<1>(row);
}

// What is fetched into the cache meanwhile, some bytes further at every step.
struct Ahead {
    const char* from;
    size_t step;

    void fetch(int j) const { __builtin_prefetch(from + j * step, 0, 2); }
};
struct NothingAhead {
    void fetch(int) const {}
};

struct OneTable {
    const int16_t* table;

    const int16_t* operator()(int) const { return table; }
};

// Sums of R rows of words with the pairs that lie abreast in a table, whose parts have so many steps each.
// Unrolled as told: else GCC 12 stores every sum at every step.
template <int R, class Tables, class Meanwhile>
void sum_words(const int16_t* rows, size_t row_stride, Tables tables, int n_in_table, size_t step, int n_steps,
               Meanwhile ahead, Sums (*found)[kAbreast]) {
    Sums sums[R][kAbreast];  // of its own, so that it stays in registers
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int i = 0; i < kAbreast; ++i) sums[r][i] = Sums{};
    for (int first = 0; first < n_steps; first += n_in_table) {
        const int16_t* table = tables(first);
        const int last = first + n_in_table < n_steps ? first + n_in_table : n_steps;
        for (int j = first; j < last; ++j, table += step) {
            ahead.fetch(j);
            Words abreast[kAbreast];
#pragma GCC unroll 16
            for (int i = 0; i < kAbreast; ++i) abreast[i] = Words::load(table + i * F::n * 2);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Words pair = Words::repeat(rows + r * row_stride + 2 * j);
#pragma GCC unroll 16
                for (int i = 0; i < kAbreast; ++i) sums[r][i] = dot_words(sums[r][i], abreast[i], pair);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int i = 0; i < kAbreast; ++i) found[r][i] = sums[r][i];
}

inline F largest_of(const float* x, int n) {
    F most = F::set(0.0f);
    int i = 0;
    for (; i + F::n <= n; i += F::n) most = larger(most, absolute(F::load(x + i)));
    if (i < n) most = larger(most, absolute(F::load_some(x + i, n - i)));
    return most;
}

constexpr float kLeast = 1e-30f;  // what is smaller counts as nothing

// n numbers times `inverse` as the nearest words, none beyond `most` whatever it is made of.
inline void to_words(const float* x, int n, float inverse, int most, int16_t* words) {
    const F by = F::set(inverse), high = F::set(static_cast<float>(most)), low = F::set(static_cast<float>(-most));
    int i = 0;
    for (; i + F::n <= n; i += F::n) store_words(larger(smaller(F::load(x + i) * by, high), low), words + i);
    if (i < n) {
        int16_t last[F::n];
        store_words(larger(smaller(F::load_some(x + i, n - i) * by, high), low), last);
        for (int j = 0; i < n; ++i, ++j) words[i] = last[j];
    }
}

// n numbers as words up to `most`, and what one of them is worth.
float fill_words(const float* x, int n, int most, int16_t* words) {
    const float largest = largest_of(x, n).most(), limit = static_cast<float>(most);
    to_words(x, n, largest > kLeast ? limit / largest : 0.0f, most, words);
    return largest > kLeast ? largest / limit : 0.0f;
}

struct WordPanels {
    const WordProduct& p;
    int first_output;

    // The next panel, which all passes over this one fetch together.
    Ahead ahead(int row, const int16_t* values) const {
        const size_t panel_size = static_cast<size_t>(p.table.n_pairs()) * kPanel * 2 * sizeof *values;
        const size_t n_groups = (p.n_rows + kManyRows - 1) / kManyRows, n_passes = kPanel / (kAbreast * F::n) * n_groups;
        const size_t pass = first_output % kPanel / (kAbreast * F::n) * n_groups + row / kManyRows;
        const size_t step = kPanel * 2 * sizeof *values / n_passes;
        return {reinterpret_cast<const char*>(values) + panel_size + pass * p.table.n_pairs() * step, step};
    }

    template <int R>
    void rows(int row) const {
        const int panel = first_output / kPanel, at = first_output % kPanel;
        const size_t depth = static_cast<size_t>(p.table.n_pairs()) * 2;
        const int16_t* values = p.table.values + panel * kPanel * depth;
        Sums sums[R][kAbreast];
        sum_words<R>(p.rows + row * depth, depth, OneTable{values + at * 2}, p.table.n_pairs(), kPanel * 2, p.table.n_pairs(),
                     ahead(row, values), sums);
        for (int r = 0; r < R; ++r) {
            const F scale = F::set(p.scales[row + r]);
            for (int i = 0; i < kAbreast; ++i) {
                const int first = first_output + i * F::n;
                const F value = fused(from_sums(sums[r][i]), scale * F::load(p.table.scales + first),
                                      F::load(p.table.bias + first));
                apply_epilogue(value, p.out + (row + r) * p.out_stride + first, p.table.n_out - first, p.epilogue);
            }
        }
    }
};

void multiply_words(const WordProduct& p, int first_panel, int last_panel) {
    for (int first = first_panel * kPanel; first < last_panel * kPanel; first += kAbreast * F::n)
        in_rows(p.n_rows, WordPanels{p, first});
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
struct WordTiles {
    static constexpr int kQueries = 48;  // that a tile of keys and values stays near for

    const WordAttention& a;
    int first, n_keys;  // of the tile
    int16_t* queries;   // (kQueries, d_pad)
    float* scales;      // (kQueries), to logits of base 2
    float* sums;        // (kQueries, d_pad)
    float* most;        // (kQueries), the largest logit so far
    float* totals;      // (kQueries), of the shares so far

    int n_padded() const { return padded(n_keys, kKeyBlock); }
    int d_pad() const { return a.head.d_pad; }

    template <int R>
    void rows(int row) const {
        float logits[R][kTileKeys];
        int16_t shares[R][kTileKeys];
        float factors[R], largest[R], steps[R];
        tile_logits<R>(row, logits, factors);  // step by step, so that no row waits
        for (int r = 0; r < R; ++r) largest[r] = share(row + r, logits[r], factors[r]);
        for (int r = 0; r < R; ++r) {
            steps[r] = largest[r] > kLeast ? largest[r] / kMostShare : 0.0f;
            to_words(logits[r], n_padded(), largest[r] > kLeast ? kMostShare / largest[r] : 0.0f, kMostShare, shares[r]);
        }
        add_values<R>(row, shares, factors, steps);
    }

    // Logits, the largest so far, and by what earlier sums shrink.
    template <int R>
    void tile_logits(int row, float (*logits)[kTileKeys], float* factors) const {
        F largest[R];
        for (int r = 0; r < R; ++r) largest[r] = F::set(most[row + r]);
        for (int at = 0; at < n_padded(); at += kAbreast * F::n) {
            const int key = first + at;
            Sums sums[R][kAbreast];
            sum_words<R>(queries + row * d_pad(), d_pad(), OneTable{a.head.keys(key)}, d_pad() / 2, kKeyBlock * 2, d_pad() / 2,
                         NothingAhead{}, sums);
            for (int i = 0; i < kAbreast; ++i) {
                const F scale = F::load(a.head.key_scales(key) + i * F::n);
                const F bias = F::load(a.bias + key + i * F::n);
                for (int r = 0; r < R; ++r) {
                    const F logit = fused(from_sums(sums[r][i]) * scale, F::set(scales[row + r]), bias);
                    logit.store(logits[r] + at + i * F::n);
                    largest[r] = larger(largest[r], logit);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            const float before = most[row + r];
            most[row + r] = largest[r].most();
            factors[r] = two_to_the(F::set(before - most[row + r])).most();
        }
    }

    // Logits into shares of the largest one, times what a word of each value is worth; the largest of these.
    float share(int row, float* logits, float factor) const {
        const F by = F::set(most[row]);
        F sum = F::set(0.0f), largest = F::set(0.0f);
        for (int begin = 0; begin < n_padded(); begin += kKeyPage, logits += kKeyPage) {
            const float* scales = a.head.value_scales(first + begin);
            for (int t = 0; t < kKeyPage && begin + t < n_padded(); t += F::n) {
                const F one = two_to_the(F::load(logits + t) - by), worth = one * F::load(scales + t);
                sum = sum + one;
                largest = larger(largest, worth);
                worth.store(logits + t);
            }
        }
        totals[row] = totals[row] * factor + sum.sum();
        return largest.most();
    }

    template <int R>
    void add_values(int row, const int16_t (*shares)[kTileKeys], const float* factors, const float* steps) const {
        for (int at = 0; at < d_pad(); at += kAbreast * F::n) {
            const auto values = [&](int pair) { return a.head.values(first + 2 * pair) + at * 2; };
            Sums found[R][kAbreast];
            sum_words<R>(shares[0], kTileKeys, values, kKeyPage / 2, static_cast<size_t>(d_pad()) * 2, n_padded() / 2,
                         NothingAhead{}, found);
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < kAbreast; ++i) {
                    float* to = sums + (row + r) * d_pad() + at + i * F::n;
                    fused(from_sums(found[r][i]), F::set(steps[r]), F::load(to) * F::set(factors[r])).store(to);
                }
        }
    }
};

void attend_words(const WordAttention& a) {
    constexpr int kQueries = WordTiles::kQueries;
    int16_t queries[kQueries * kWidestHead];
    float sums[kQueries * kWidestHead], scales[kQueries], most[kQueries], totals[kQueries];
    for (int first = 0; first < a.n_queries; first += kQueries) {
        const int n = a.n_queries - first < kQueries ? a.n_queries - first : kQueries;
        for (int q = 0; q < n; ++q) {
            int16_t* words = queries + q * a.head.d_pad;
            const float* from = a.queries + (first + q) * a.query_stride;
            scales[q] = a.scale * fill_words(from, a.d_head, most_word(a.head.d_pad), words);
            for (int i = a.d_head; i < a.head.d_pad; ++i) words[i] = 0;
            for (int i = 0; i < a.head.d_pad; ++i) sums[q * a.head.d_pad + i] = 0.0f;
            most[q] = kNoKey;
            totals[q] = 0.0f;
        }
        for (int key = 0; key < a.n_frames; key += kTileKeys) {
            const int n_keys = a.n_frames - key < kTileKeys ? a.n_frames - key : kTileKeys;
            in_rows(n, WordTiles{a, key, n_keys, queries, scales, sums, most, totals});
        }
        for (int q = 0; q < n; ++q) {
            const F inverse = F::set(1.0f / totals[q]);
            float* out = a.out + (first + q) * a.out_stride;
            for (int i = 0; i < a.d_head; i += F::n)
                (F::load(sums + q * a.head.d_pad + i) * inverse)
                    .store_some(out + i, a.d_head - i < F::n ? a.d_head - i : F::n);
        }
    }
}

const EncoderKernels encoder_kernels = {fill_words, multiply_words, attend_words};

}  // namespace
}  // namespace sottovoce
