// Silero VAD's network over the numbers of an instruction set; included after its vec_*.h and math.h. The sums of a
// window run in an order of their own, so that its probability does not depend on which windows are computed together.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "../silero.h"

namespace sottovoce {
namespace {

constexpr int kTogether = 8;  // windows that pass the convolutions together
constexpr int kSpectra = 4, kFrame = 256, kHop = 128, kBins = 129;
constexpr int kVectors = kFloatPanel / F::n;
constexpr int kRowsTogether = kVectors < 4 ? 8 / kVectors : kVectors < 8 ? 2 : 1;
constexpr int kPanelsTogether = kVectors == 1 ? 2 : 1;  // of many rows: as many sums as fit into registers
constexpr int kPanelsOfRow = kVectors < 4 ? 8 / kVectors : 4;  // of a single row

// Inputs [first, last) of a table: the others are zeros.
struct Inputs {
    int first, last;
};

// out[r] = onto[r] + rows[r] times P panels of a table.
template <int R, int P>
void float_tile(const FloatTable& table, Inputs inputs, int panel, const float* const* rows, const float* const* onto,
                float* const* out) {
    const size_t size = static_cast<size_t>(table.n_in) * kFloatPanel;
    const float* values = table.values() + panel * size + inputs.first * kFloatPanel;
    F sums[R][P * kVectors];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < P * kVectors; ++i) sums[r][i] = F::load(onto[r] + panel * kFloatPanel + i * F::n);
    for (int k = inputs.first; k < inputs.last; ++k, values += kFloatPanel) {
        F by[R];
        for (int r = 0; r < R; ++r) by[r] = F::set(rows[r][k]);
        for (int p = 0; p < P; ++p)
            for (int v = 0; v < kVectors; ++v) {
                const F value = F::load(values + p * size + v * F::n);
                for (int r = 0; r < R; ++r) sums[r][p * kVectors + v] = fused(value, by[r], sums[r][p * kVectors + v]);
            }
    }
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < P * kVectors; ++i) sums[r][i].store(out[r] + panel * kFloatPanel + i * F::n);
}

void multiply_floats(const FloatTable& table, Inputs inputs, const float* const* rows, const float* const* onto,
                     float* const* out, int n_rows) {
    const int n_panels = table.n_out / kFloatPanel, n_many = n_rows / kRowsTogether * kRowsTogether;
    int panel = 0;
    for (; panel + kPanelsTogether <= n_panels; panel += kPanelsTogether)
        for (int r = 0; r < n_many; r += kRowsTogether)
            float_tile<kRowsTogether, kPanelsTogether>(table, inputs, panel, rows + r, onto + r, out + r);
    for (; panel < n_panels; ++panel)
        for (int r = 0; r < n_many; r += kRowsTogether)
            float_tile<kRowsTogether, 1>(table, inputs, panel, rows + r, onto + r, out + r);
    for (int r = n_many; r < n_rows; ++r) {
        panel = 0;
        for (; panel + kPanelsOfRow <= n_panels; panel += kPanelsOfRow)
            float_tile<1, kPanelsOfRow>(table, inputs, panel, rows + r, onto + r, out + r);
        for (; panel < n_panels; ++panel) float_tile<1, 1>(table, inputs, panel, rows + r, onto + r, out + r);
    }
}

inline F sigmoid(F x) {
    const F bounded = larger(x, F::set(-80.0f));
    return F::set(1.0f) / (F::set(1.0f) + exponential(F::set(0.0f) - bounded));
}
inline F hyperbolic_tangent(F x) {
    const F twice = larger(smaller(x + x, F::set(80.0f)), F::set(-80.0f));
    return F::set(2.0f) * sigmoid(twice) - F::set(1.0f);
}

// Rows of a product: where each is read, what is added, and where it goes.
struct FloatRows {
    std::vector<const float*> rows, onto;
    std::vector<float*> out;

    void add(const float* row, const FloatTable& table, float* to) {
        rows.push_back(row);
        onto.push_back(table.bias.data());
        out.push_back(to);
    }
    void multiply(const FloatTable& table) { multiply(table, {0, table.n_in}); }
    void multiply(const FloatTable& table, Inputs inputs) {
        multiply_floats(table, inputs, rows.data(), onto.data(), out.data(), static_cast<int>(rows.size()));
        rows.clear(), onto.clear(), out.clear();
    }
};

inline void rectify(float* x, int n) {
    for (int i = 0; i < n; i += F::n) larger(F::load(x + i), F::set(0.0f)).store(x + i);
}

// A frame and its mirror image: their sums carry the cosines, their differences the sines.
inline void fold(const float* frame, float* even, float* odd) {
    for (int i = 1; i < kFrame / 2; ++i) {
        even[i - 1] = frame[i] + frame[kFrame - i];
        odd[i - 1] = frame[i] - frame[kFrame - i];
    }
    even[kFrame / 2 - 1] = frame[kFrame / 2];
    odd[kFrame / 2 - 1] = 0.0f;
}

class SileroGroup {
public:
    explicit SileroGroup(const Silero& network) : network_(network) {}

    // The input of the cell's gates (n, 512) of up to kTogether windows.
    const float* gates(const float* samples, int n) {
        spectra(samples, n);
        const FloatTable* const layers = network_.layers;
        for (int t = 0; t < kSpectra; ++t) {
            for (int w = 0; w < n; ++w) rows_.add(magnitude(w, t - 1), layers[0], first(w, t));
            rows_.multiply(layers[0], {t == 0 ? kBins : 0, t == kSpectra - 1 ? 2 * kBins : 3 * kBins});
        }
        for (int w = 0; w < n; ++w) rectify(first(w, 0), kSpectra * 128);
        for (int t = 0; t < 2; ++t) {
            for (int w = 0; w < n; ++w) rows_.add(first(w, 2 * t - 1), layers[1], second(w) + 64 * t);
            rows_.multiply(layers[1], {t == 0 ? 128 : 0, 3 * 128});
        }
        for (int w = 0; w < n; ++w) {
            rectify(second(w), 128);
            rows_.add(second(w), layers[2], &third_[w * 64]);
        }
        rows_.multiply(layers[2]);
        for (int w = 0; w < n; ++w) {
            rectify(&third_[w * 64], 64);
            rows_.add(&third_[w * 64], layers[3], &fourth_[w * 128]);
        }
        rows_.multiply(layers[3]);
        for (int w = 0; w < n; ++w) {
            rectify(&fourth_[w * 128], 128);
            rows_.add(&fourth_[w * 128], network_.input, &gates_[w * 4 * kSpeechState]);
        }
        rows_.multiply(network_.input);
        return gates_.data();
    }

private:
    // Frames of a window, with one of padding before and one behind.
    float* magnitude(int w, int t) { return &magnitudes_[(w * (kSpectra + 2) + t + 1) * kBins]; }
    float* first(int w, int t) { return &first_[(w * (kSpectra + 2) + t + 1) * 128]; }
    float* second(int w) { return &second_[w * 128]; }

    void spectra(const float* samples, int n) {
        constexpr int kSeen = kSpeechContext + kSpeechWindow;
        float mirrored[kSeen + kSpeechContext];
        for (int w = 0; w < n; ++w) {
            const float* window = samples + w * kSpeechWindow;
            std::copy(window, window + kSeen, mirrored);
            for (int i = 0; i < kSpeechContext; ++i) mirrored[kSeen + i] = window[kSeen - 2 - i];
            for (int t = 0; t < kSpectra; ++t) {
                const int at = w * kSpectra + t;
                fold(mirrored + t * kHop, &even_[at * 128], &odd_[at * 128]);
            }
        }
        for (int at = 0; at < n * kSpectra; ++at)
            rows_.add(&even_[at * 128], network_.cosines, &real_[at * network_.cosines.n_out]);
        rows_.multiply(network_.cosines);
        for (int at = 0; at < n * kSpectra; ++at) rows_.add(&odd_[at * 128], network_.sines, &imaginary_[at * 128]);
        rows_.multiply(network_.sines);
        for (int at = 0; at < n * kSpectra; ++at) {
            const float* real = &real_[at * network_.cosines.n_out];
            const float* imaginary = &imaginary_[at * 128];
            float* to = magnitude(at / kSpectra, at % kSpectra);
            for (int k = 0; k < kBins - 1; k += F::n) {
                const F x = F::load(real + k), y = F::load(imaginary + k);
                root(fused(x, x, y * y)).store(to + k);
            }
            to[kBins - 1] = real[kBins - 1] < 0 ? -real[kBins - 1] : real[kBins - 1];
        }
    }

    const Silero& network_;
    FloatRows rows_;
    std::vector<float> even_ = std::vector<float>(kTogether * kSpectra * 128), odd_ = even_, imaginary_ = even_;
    std::vector<float> real_ = std::vector<float>(kTogether * kSpectra * 144);
    std::vector<float> magnitudes_ = std::vector<float>(kTogether * (kSpectra + 2) * kBins);
    std::vector<float> first_ = std::vector<float>(kTogether * (kSpectra + 2) * 128);
    std::vector<float> second_ = std::vector<float>(kTogether * 128), third_ = second_, fourth_ = second_;
    std::vector<float> gates_ = std::vector<float>(kTogether * 4 * kSpeechState);
};

// Whether a window hears what the one before it heard, bit by bit, as in digital silence.
inline bool repeats(const SpeechWindows& windows, int w) {
    const float* window = windows.samples + static_cast<size_t>(w) * kSpeechWindow;
    return w > 0 && !std::memcmp(window, window - kSpeechWindow, (kSpeechContext + kSpeechWindow) * sizeof *window);
}

// One step of the cell; the probability of speech.
float step_cell(const Silero& network, const float* gates, float* hidden, float* cell) {
    float sums[4 * kSpeechState];
    const float* row = hidden;
    float* to = sums;
    multiply_floats(network.recurrent, {0, kSpeechState}, &row, &gates, &to, 1);
    F logit = F::set(0.0f);
    for (int i = 0; i < kSpeechState; i += F::n) {
        const F input = sigmoid(F::load(sums + i)), forget = sigmoid(F::load(sums + kSpeechState + i));
        const F candidate = hyperbolic_tangent(F::load(sums + 2 * kSpeechState + i));
        const F shown = sigmoid(F::load(sums + 3 * kSpeechState + i));
        const F now = fused(forget, F::load(cell + i), input * candidate);
        const F then = shown * hyperbolic_tangent(now);
        now.store(cell + i);
        then.store(hidden + i);
        logit = fused(larger(then, F::set(0.0f)), F::load(network.output.data() + i), logit);
    }
    float probability[F::n];
    sigmoid(F::set(logit.sum() + network.output_bias)).store(probability);
    return probability[0];
}

void detect_speech(const Silero& network, const SpeechWindows& windows) {
    SileroGroup group(network);
    float gates[4 * kSpeechState], before[2 * kSpeechState];  // of the last window, and the state before it
    constexpr size_t kStateBytes = kSpeechState * sizeof(float);
    for (int first = 0; first < windows.n_windows;) {
        int n = 1;
        if (repeats(windows, first)) {
            float* to = windows.probabilities + first;
            if (!std::memcmp(before, windows.hidden, kStateBytes) &&
                !std::memcmp(before + kSpeechState, windows.cell, kStateBytes)) {
                to[0] = to[-1];  // nothing changes any more
            } else {
                std::memcpy(before, windows.hidden, kStateBytes);
                std::memcpy(before + kSpeechState, windows.cell, kStateBytes);
                to[0] = step_cell(network, gates, windows.hidden, windows.cell);
            }
        } else {
            while (n < kTogether && first + n < windows.n_windows && !repeats(windows, first + n)) ++n;
            const float* all = group.gates(windows.samples + static_cast<size_t>(first) * kSpeechWindow, n);
            for (int w = 0; w < n; ++w) {
                std::memcpy(before, windows.hidden, kStateBytes);
                std::memcpy(before + kSpeechState, windows.cell, kStateBytes);
                const float* row = all + w * 4 * kSpeechState;
                windows.probabilities[first + w] = step_cell(network, row, windows.hidden, windows.cell);
            }
            std::copy(all + (n - 1) * 4 * kSpeechState, all + n * 4 * kSpeechState, gates);
        }
        first += n;
    }
}

}  // namespace
}  // namespace sottovoce
