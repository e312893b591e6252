// The end of a step of AlignAtt for other languages; see api.cpp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "alignatt.h"
#include "guarded.h"
#include "isa.h"
#include "pool.h"

using namespace sottovoce;

namespace {

// first: place of the row's first new token in the attention. logits: the row of logits of its newest. source, target:
// entries of the statistics before and afterwards. n_kept: how many of the new tokens count for the statistics that are
// kept at `kept`, or -1. blank: a token that may not follow, or -1.
struct AlignAttRow {
    int32_t first, logits, source, target, n_frames, n_new, n_kept, kept, blank;
};

}  // namespace

struct sv_alignatt {
    int32_t n_rows, n_heads, n_tokens, longest;  // of the attention (n_heads, n_tokens, longest)
    int32_t width, kept_width;                   // frames of an entry (2, n_heads, width) of statistics
    int32_t n_logits, n_text;                    // numbers of a row of logits, of which the first may follow
    int32_t n_forbidden, n_best, n_threads;
    double spread;
    const AlignAttRow* rows;
    const float* attention;
    float* state;     // entries, changed where a row has its target
    float* n_state;   // tokens of each
    float* scratch;   // (n_rows) entries
    float* kept;
    float* n_kept;
    float* logits;
    const int32_t* forbidden;
    int32_t* frames;  // (n_rows)
    float* best;      // (n_rows, n_best)
    int32_t* tokens;  // (n_rows, n_best)
};

namespace {

AttentionStatistics entry(float* block, float n_tokens, int place, int n_heads, int width) {
    const size_t size = static_cast<size_t>(n_heads) * width;
    float* mean = block + 2 * size * place;
    return {n_tokens, mean, mean + size, static_cast<size_t>(width)};
}

void end_row(const sv_alignatt& given, int index) {
    const Kernels& kernels = kernels_in_use();
    const AlignAttRow& row = given.rows[index];
    const size_t longest = given.longest;
    const AttentionRows attention{given.attention + row.first * longest, given.n_tokens * longest, longest,
                                  given.n_heads, row.n_new, row.n_frames};
    const float n_before = given.n_state[row.source];
    const AttentionStatistics before = entry(given.state, n_before, row.source, given.n_heads, given.width);
    if (row.n_kept >= 0) {
        AttentionRows first = attention;
        first.n_tokens = row.n_kept;
        given.n_kept[row.kept] = n_before + static_cast<float>(row.n_kept);
        kernels.update_statistics(before, first, entry(given.kept, given.n_kept[row.kept], row.kept, given.n_heads,
                                                       given.kept_width));
    }
    const AttentionStatistics after =
        entry(given.scratch, n_before + static_cast<float>(row.n_new), index, given.n_heads, given.width);
    kernels.update_statistics(before, attention, after);
    given.frames[index] = kernels.attended_frame(after, attention, static_cast<float>(given.spread / row.n_frames));
    float* logits = given.logits + static_cast<size_t>(row.logits) * given.n_logits;
    for (int i = 0; i < given.n_forbidden; ++i) logits[given.forbidden[i]] = -INFINITY;
    if (row.blank >= 0) logits[row.blank] = -INFINITY;
    const size_t at = static_cast<size_t>(index) * given.n_best;
    kernels.choose({logits, 0, given.n_text, given.n_text, given.n_text, given.n_best, given.best + at, given.tokens + at});
}

// After all rows have ended: the target of a row may be the source of another one.
void keep_row(const sv_alignatt& given, int index) {
    const AlignAttRow& row = given.rows[index];
    const size_t size = static_cast<size_t>(2) * given.n_heads * given.width;
    for (int part = 0; part < 2 * given.n_heads; ++part)
        std::copy_n(given.scratch + index * size + static_cast<size_t>(part) * given.width, row.n_frames,
                    given.state + row.target * size + static_cast<size_t>(part) * given.width);
}

}  // namespace

SV_API int sv_alignatt_end(const sv_alignatt* given) {
    return guarded([&] {
        run_together(given->n_threads, [&](Worker& worker) {
            worker.each(given->n_rows, [&](int index) { end_row(*given, index); });
            worker.each(given->n_rows, [&](int index) { keep_row(*given, index); });
        });
        std::vector<float> n_tokens;
        for (int i = 0; i < given->n_rows; ++i)
            n_tokens.push_back(given->n_state[given->rows[i].source] + static_cast<float>(given->rows[i].n_new));
        for (int i = 0; i < given->n_rows; ++i) given->n_state[given->rows[i].target] = n_tokens[i];
        return 1;
    });
}

// scores: (n_heads, n_tokens, n_frames). out: (n_tokens, n_frames), the mean over heads of their running medians.
SV_API int sv_mean_of_medians(const float* scores, int n_heads, int n_tokens, int n_frames, float* out, int n_threads) {
    return guarded([&] {
        const size_t stride = n_frames;
        run_together(n_threads, [&](Worker& worker) {
            worker.share(n_tokens, [&](int first, int last) {
                kernels_in_use().mean_of_medians(
                    {scores + first * stride, n_tokens * stride, stride, n_heads, last - first, n_frames},
                    out + first * stride);
            });
        });
        return 1;
    });
}
