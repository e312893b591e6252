// The choice of a row's next tokens among its logits; included after math.h.
#pragma once

#include <cmath>

namespace sottovoce {
namespace {

constexpr int kRun = 64;  // logits whose largest is looked at before each of them

inline float most_of(const float* x, int n) {
    F most = F::set(-__builtin_inff());
    int i = 0;
    for (; i + F::n <= n; i += F::n) most = larger(most, F::load(x + i));
    float found = most.most();
    for (; i < n; ++i) found = x[i] > found ? x[i] : found;
    return found;
}

// Sum of exp(x - most), in parts that keep its last digits.
inline double sum_of_powers(const float* x, int n, float most) {
    if (!(most > -__builtin_inff())) return 0.0;
    const F by = F::set(most);
    double total = 0.0;
    for (int first = 0; first < n; first += kRun) {
        const int last = first + kRun < n ? first + kRun : n;
        F sum = F::set(0.0f);
        int i = first;
        for (; i + F::n <= last; i += F::n) sum = sum + exponential(F::load(x + i) - by);
        total += sum.sum();
        for (; i < last; ++i) total += std::exp(static_cast<double>(x[i]) - most);
    }
    return total;
}

// The best logits so far, best first; of equal ones the first that came.
struct BestLogits {
    float* values;
    int32_t* tokens;
    int room;
    int found = 0;

    float least() const { return found < room ? -__builtin_inff() : values[found - 1]; }

    void add(float value, int32_t token) {
        int at = found < room ? found++ : room - 1;
        for (; at > 0 && values[at - 1] < value; --at) {
            values[at] = values[at - 1];
            tokens[at] = tokens[at - 1];
        }
        values[at] = value;
        tokens[at] = token;
    }

    void add_all(const float* logits, int first, int last) {
        for (int run = first; run < last; run += kRun) {
            const int end = run + kRun < last ? run + kRun : last;
            if (!(most_of(logits + run, end - run) > least())) continue;
            for (int i = run; i < end; ++i)
                if (logits[i] > least()) add(logits[i], i);
        }
    }
};

int choose(const TokenChoice& c) {
    const float* text = c.logits + c.first_text;
    const float* times = c.logits + c.first_time;
    const int n_text = c.first_text < c.time_begin ? c.time_begin - c.first_text : 0;
    const int n_times = c.first_time < c.last_time ? c.last_time - c.first_time : 0;
    const float text_most = most_of(text, n_text), time_most = most_of(times, n_times);
    const double of_times = sum_of_powers(times, n_times, time_most);
    const bool times_alone = of_times > 0.0 && time_most + std::log(of_times) > text_most;
    const float most = times_alone || time_most > text_most ? time_most : text_most;
    double total = times_alone ? of_times : sum_of_powers(text, n_text, most);
    if (!times_alone) total += sum_of_powers(times, n_times, most);
    BestLogits best{c.best, c.tokens, c.n_best};
    if (!times_alone) best.add_all(c.logits, c.first_text, c.first_text + n_text);
    best.add_all(c.logits, c.first_time, c.first_time + n_times);
    const float log_total = static_cast<float>(std::log(total));
    for (int i = 0; i < best.found; ++i) c.best[i] = (c.best[i] - most) - log_total;
    bool is_clear = best.found == c.n_best;
    for (int i = 1; i < best.found; ++i) is_clear = is_clear && c.best[i - 1] > c.best[i];
    return is_clear;
}

}  // namespace
}  // namespace sottovoce
