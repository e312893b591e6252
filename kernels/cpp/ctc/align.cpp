#include "align.h"

#include <algorithm>
#include <limits>

#include "scorer.h"

namespace sottovoce::ctc {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// About the sum of exp(values), as (1 + x / 256) ** 256: a few percent low; huge for a positive value, NaN for NaN.
float sum_of_exp(const float* values, int64_t n) {
    constexpr float kMost = 1e-2f;
    constexpr int kLanes = 8;
    const auto exp = [](float value) {
        float power = 1.0f + value * (1.0f / 256);
        power = power < 0.0f ? 0.0f : power;  // NaN stays
        for (int i = 0; i < 8; ++i) power *= power;
        return power + (value > kMost ? 100.0f : 0.0f);
    };
    float sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) sums[lane] += exp(values[i + lane]);
    for (; i < n; ++i) sums[0] += exp(values[i]);
    float total = 0.0f;
    for (const float sum : sums) total += sum;
    return total;
}

}  // namespace

bool are_plausible(const Frames& frames) {
    constexpr float kLeast = 0.60653066f, kMost = 1.6487213f;  // exp(-0.5) and exp(0.5)
    for (int64_t t = 0; t < frames.n_frames; ++t) {
        const float total = sum_of_exp(frames[t], frames.n_labels);
        if (!(total > kLeast && total < kMost)) return false;
    }
    return true;
}

void Paths::find(const Frames& frames, const Text& text, float band) {
    const int n_states = 2 * text.n + 1;
    score.assign(n_states, kNever);
    score[0] = 0.0f;  // before the first frame: in the first blank, one step from the first label
    steps.resize(static_cast<size_t>(frames.n_frames) * n_states);
    int low = 0, high = 0;
    for (int64_t t = 0; t < frames.n_frames; ++t) {
        const float* frame = frames[t];
        uint8_t* to = steps.data() + static_cast<size_t>(t) * n_states;
        high = std::min(n_states - 1, high + 2);  // a path advances at most two states a frame
        float top = kNever;
        for (int state = high; state >= low; --state) {
            float best = score[state];
            uint8_t step = 0;
            if (state > 0 && score[state - 1] > best) best = score[state - 1], step = 1;
            const int place = state >> 1;
            const bool is_label = state & 1;
            if (is_label && place > 0 && text.labels[place] != text.labels[place - 1] && score[state - 2] > best)
                best = score[state - 2], step = 2;
            to[state] = step;
            score[state] = best + frame[is_label ? text.labels[place] : text.blanks[place]];
            top = std::max(top, score[state]);
        }
        while (low < high && score[low] < top - band) score[low++] = kNever;
        while (high > low && score[high] < top - band) score[high--] = kNever;
    }
}

float align(const Frames& frames, const Text& text, Paths& paths, int64_t* first, int64_t* last, float* peak) {
    constexpr float kBand = 300.0f;
    int state = 2 * text.n;
    const auto best = [&] { return state ? std::max(paths.score[state], paths.score[state - 1]) : paths.score[0]; };
    paths.find(frames, text, kBand);
    if (best() == kNever) paths.find(frames, text, kInfinity);  // all ends were dropped
    const float score = best();
    if (score == kNever) return score;  // without a path there are no steps
    if (state && paths.score[state - 1] > paths.score[state]) --state;
    int newest = -1;
    for (int64_t t = frames.n_frames - 1; t >= 0; --t) {
        if (state & 1) {
            const int label = state >> 1;
            const float now = std::max(frames[t][text.labels[label]], -1e30f);
            if (label != newest) last[label] = t, peak[label] = now;
            newest = label;
            first[label] = t;
            peak[label] = std::max(peak[label], now);
        }
        state -= paths.step(t, state);
    }
    return score;
}

Cut common_cut(const Frames& frames, const std::vector<Text>& texts, int64_t n_shared, float margin, bool is_late) {
    struct Place {
        int text, state;
    };
    std::vector<Paths> paths(texts.size());
    std::vector<Place> places;
    for (size_t i = 0; i < texts.size(); ++i) {
        const int begin = is_late ? std::max(2 * texts[i].n - 1, 0) : 0;
        const std::vector<float>& score = paths[i].score;
        const auto top = [&] { return *std::max_element(score.begin() + begin, score.end()); };
        paths[i].find(frames, texts[i], 1.5f * margin);
        if (top() == kNever) paths[i].find(frames, texts[i], kInfinity);
        const float least = top() - margin;
        for (int state = begin; state <= 2 * texts[i].n; ++state)
            if (score[state] > least) places.push_back({static_cast<int>(i), state});
    }
    if (places.empty()) return {0, 0};
    for (int64_t t = frames.n_frames; t > 0; --t) {
        const int at = places[0].state;
        const bool is_one = std::all_of(places.begin(), places.end(), [at](const Place& p) { return p.state == at; });
        if (is_one && at % 2 == 0 && at / 2 <= n_shared) return {t, at / 2};
        for (Place& place : places) place.state -= paths[place.text].step(t - 1, place.state);
    }
    return {0, 0};
}

}  // namespace sottovoce::ctc
