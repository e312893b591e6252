// AlignAtt's statistics over the numbers of an instruction set; included after its vec_*.h. Every operation rounds once,
// in the order of `RunningStatistics` and `frontier`, so that all instruction sets and NumPy have the same bits.
#pragma once

#include <algorithm>
#include <vector>

#include "../alignatt.h"

namespace sottovoce {
namespace {

template <class Work>
inline void each_part(int n, const Work& work) {
    for (int i = 0; i < n; i += F::n) work(i, std::min(F::n, n - i));
}

void update_statistics(const AttentionStatistics& before, const AttentionRows& attention, const AttentionStatistics& after) {
    const float n_new = static_cast<float>(attention.n_tokens), some = std::max(after.n_tokens, 1.0f);
    const F ratio = F::set(n_new / some), cross = F::set(before.n_tokens * n_new / some);
    const F count = F::set(std::max(n_new, 1.0f));
    for (int head = 0; head < attention.n_heads; ++head) {
        const float* mean_before = before.mean + head * before.stride;
        const float* squares_before = before.squares + head * before.stride;
        float* mean_after = after.mean + head * after.stride;
        float* squares_after = after.squares + head * after.stride;
        each_part(attention.n_frames, [&](int i, int n) {
            F mean = F::set(0.0f), squares = F::set(0.0f);
            if (attention.n_tokens == 1) {
                mean = F::load_some(attention.row(head, 0) + i, n);
            } else {
                for (int t = 0; t < attention.n_tokens; ++t) mean = mean + F::load_some(attention.row(head, t) + i, n);
                mean = mean / count;
                for (int t = 0; t < attention.n_tokens; ++t) {
                    const F apart = F::load_some(attention.row(head, t) + i, n) - mean;
                    squares = squares + apart * apart;
                }
            }
            const F known = F::load_some(mean_before + i, n), delta = mean - known;
            (known + delta * ratio).store_some(mean_after + i, n);
            const F deviations = F::load_some(squares_before + i, n) + squares;
            (deviations + delta * delta * cross).store_some(squares_after + i, n);
        });
    }
}

inline void sort_pair(F& low, F& high) {
    const F least = smaller(low, high);
    high = larger(low, high);
    low = least;
}

// The median of seven frames (Devillard 1998, opt_med7).
inline F median_of(const float* frames) {
    constexpr int kPairs[13][2] = {{0, 5}, {0, 3}, {1, 6}, {2, 4}, {0, 1}, {3, 5}, {2, 6},
                                   {2, 3}, {3, 6}, {4, 5}, {1, 4}, {1, 3}, {3, 4}};
    F x[7];
    for (int i = 0; i < 7; ++i) x[i] = F::load(frames + i);
    for (const auto& pair : kPairs) sort_pair(x[pair[0]], x[pair[1]]);
    return x[3];
}

// A sum over heads of what the median filter, mirrored at both ends, makes of n frames.
class FilteredSum {
public:
    explicit FilteredSum(int n) : n_(n), padded_(n + 2 * kMedianHalf + F::n), sum_(n + F::n) {}

    void clear() { std::fill(sum_.begin(), sum_.end(), 0.0f); }
    float* scores() { return padded_.data() + kMedianHalf; }  // of one head
    const float* sum() const { return sum_.data(); }

    void add() {
        const bool filters = n_ > kMedianHalf;
        for (int i = 1; filters && i <= kMedianHalf; ++i) {
            scores()[-i] = scores()[i];
            scores()[n_ - 1 + i] = scores()[n_ - 1 - i];
        }
        for (int i = 0; i < n_; i += F::n) {
            const F filtered = filters ? median_of(&padded_[i]) : F::load(scores() + i);
            (F::load(&sum_[i]) + filtered).store(&sum_[i]);
        }
    }

private:
    int n_;
    std::vector<float> padded_, sum_;
};

int attended_frame(const AttentionStatistics& all, const AttentionRows& attention, float floor) {
    const int n_frames = attention.n_frames;
    FilteredSum filtered(n_frames);
    const F n_tokens = F::set(all.n_tokens);
    for (int head = 0; head < attention.n_heads; ++head) {
        const float* newest = attention.row(head, attention.n_tokens - 1);
        const float* mean = all.mean + head * all.stride;
        const float* squares = all.squares + head * all.stride;
        each_part(n_frames, [&](int i, int n) {
            F score = F::load_some(newest + i, n);
            if (all.n_tokens > 1.0f) {
                const F deviation = root(F::load_some(squares + i, n) / n_tokens) + F::set(floor);
                score = (score - F::load_some(mean + i, n)) / larger(deviation, F::set(1e-12f));
            }
            score.store_some(filtered.scores() + i, n);
        });
        filtered.add();
    }
    const float n_heads = static_cast<float>(attention.n_heads);
    int best = 0;
    for (int i = 1; i < n_frames; ++i)
        if (filtered.sum()[i] / n_heads > filtered.sum()[best] / n_heads) best = i;
    return best;
}

void mean_of_medians(const AttentionRows& scores, float* out) {
    FilteredSum filtered(scores.n_frames);
    const F n_heads = F::set(static_cast<float>(scores.n_heads));
    for (int token = 0; token < scores.n_tokens; ++token, out += scores.n_frames) {
        filtered.clear();
        for (int head = 0; head < scores.n_heads; ++head) {
            std::copy_n(scores.row(head, token), scores.n_frames, filtered.scores());
            filtered.add();
        }
        each_part(scores.n_frames, [&](int i, int n) { (F::load(filtered.sum() + i) / n_heads).store_some(out + i, n); });
    }
}

}  // namespace
}  // namespace sottovoce
