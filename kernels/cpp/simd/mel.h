// Mel power over the numbers of an instruction set; included after its vec_*.h. Each place of a vector is a frame. Sums
// run in NumPy's order (pocketfft's real transform, pairwise sums), unfused: a frame has NumPy's numbers, bit by bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "../mel.h"

namespace sottovoce {
namespace {

constexpr int kFrames = F::n < 4 ? 2 : F::n / 2;  // that are transformed together
typedef double D __attribute__((vector_size(8 * kFrames)));
typedef float Singles __attribute__((vector_size(4 * kFrames)));

struct Complex {
    D re, im;
};
inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
inline Complex turned(const D* z, Turn by) {
    return {by.cosine * z[0] - by.sine * z[1], by.cosine * z[1] + by.sine * z[0]};
}

// One pass of a real transform: `kParts` transforms of kSize numbers, interleaved, become one. A transform is its real
// first number, and real and imaginary parts of half of the others. Source: FFTPACK.
template <int kParts, int kSize>
struct Pass {
    static constexpr int kTransforms = kMelFrame / (kParts * kSize);

    const MelFilters& mel;
    const D* from;
    D* to;

    const D* in(int i, int k, int part) const { return from + i + kSize * (k + kTransforms * part); }
    D& out(int i, int part, int k) const { return to[i + kSize * (part + kParts * k)]; }
    Complex part(int i, int k, int n) const { return turned(in(i - 1, k, n), mel.turns[n * kTransforms * i / 2]); }
};

template <int kSize>
void merge_4(const MelFilters& mel, const D* from, D* to) {
    constexpr double kDiagonal = 0.70710678118654752440;
    const Pass<4, kSize> pass{mel, from, to};
    for (int k = 0; k < pass.kTransforms; ++k) {
        const D a = *pass.in(0, k, 0), b = *pass.in(0, k, 1), c = *pass.in(0, k, 2), d = *pass.in(0, k, 3);
        const D even = a + c, odd = d + b;
        pass.out(0, 2, k) = d - b;
        pass.out(kSize - 1, 1, k) = a - c;
        pass.out(0, 0, k) = even + odd;
        pass.out(kSize - 1, 3, k) = even - odd;
        if (kSize % 2 == 0) {
            const D first = *pass.in(kSize - 1, k, 0), second = *pass.in(kSize - 1, k, 1);
            const D third = *pass.in(kSize - 1, k, 2), fourth = *pass.in(kSize - 1, k, 3);
            const D im = -kDiagonal * (second + fourth), re = kDiagonal * (second - fourth);
            pass.out(kSize - 1, 0, k) = first + re;
            pass.out(kSize - 1, 2, k) = first - re;
            pass.out(0, 3, k) = im + third;
            pass.out(0, 1, k) = im - third;
        }
        for (int i = 2; i < kSize; i += 2) {
            const int back = kSize - i;
            const Complex x{*pass.in(i - 1, k, 0), *pass.in(i, k, 0)};
            const Complex b = pass.part(i, k, 1), c = pass.part(i, k, 2), d = pass.part(i, k, 3);
            const Complex odd = b + d, apart = b - d, even = x + c, rest = x - c;
            pass.out(i - 1, 0, k) = even.re + odd.re;
            pass.out(back - 1, 3, k) = even.re - odd.re;
            pass.out(i, 0, k) = odd.im + even.im;
            pass.out(back, 3, k) = odd.im - even.im;
            pass.out(i - 1, 2, k) = rest.re + apart.im;
            pass.out(back - 1, 1, k) = rest.re - apart.im;
            pass.out(i, 2, k) = rest.im - apart.re;
            pass.out(back, 1, k) = -apart.re - rest.im;
        }
    }
}

template <int kSize>
void merge_5(const MelFilters& mel, const D* from, D* to) {
    constexpr double kCosine = 0.3090169943749474241, kCosine2 = -0.8090169943749474241;
    constexpr double kSine = 0.95105651629515357212, kSine2 = 0.58778525229247312917;
    const Pass<5, kSize> pass{mel, from, to};
    for (int k = 0; k < pass.kTransforms; ++k) {
        const D a = *pass.in(0, k, 0), b = *pass.in(0, k, 1), c = *pass.in(0, k, 2), d = *pass.in(0, k, 3);
        const D e = *pass.in(0, k, 4), outer = e + b, outer_apart = e - b, inner = d + c, inner_apart = d - c;
        pass.out(0, 0, k) = a + outer + inner;
        pass.out(kSize - 1, 1, k) = a + kCosine * outer + kCosine2 * inner;
        pass.out(0, 2, k) = kSine * outer_apart + kSine2 * inner_apart;
        pass.out(kSize - 1, 3, k) = a + kCosine2 * outer + kCosine * inner;
        pass.out(0, 4, k) = kSine2 * outer_apart - kSine * inner_apart;
        for (int i = 2; i < kSize; i += 2) {
            const int back = kSize - i;
            const Complex x{*pass.in(i - 1, k, 0), *pass.in(i, k, 0)};
            const Complex b = pass.part(i, k, 1), c = pass.part(i, k, 2), d = pass.part(i, k, 3), e = pass.part(i, k, 4);
            const Complex outer = b + e, inner = c + d;
            const Complex outer_apart{b.im - e.im, e.re - b.re}, inner_apart{c.im - d.im, d.re - c.re};
            const Complex first{x.re + kCosine * outer.re + kCosine2 * inner.re,
                                x.im + kCosine * outer.im + kCosine2 * inner.im};
            const Complex second{x.re + kCosine2 * outer.re + kCosine * inner.re,
                                 x.im + kCosine2 * outer.im + kCosine * inner.im};
            const Complex first_turn{outer_apart.re * kSine + inner_apart.re * kSine2,
                                     outer_apart.im * kSine + inner_apart.im * kSine2};
            const Complex second_turn{outer_apart.re * kSine2 - inner_apart.re * kSine,
                                      outer_apart.im * kSine2 - inner_apart.im * kSine};
            pass.out(i - 1, 0, k) = x.re + outer.re + inner.re;
            pass.out(i, 0, k) = x.im + outer.im + inner.im;
            pass.out(i - 1, 2, k) = first.re + first_turn.re;
            pass.out(back - 1, 1, k) = first.re - first_turn.re;
            pass.out(i, 2, k) = first_turn.im + first.im;
            pass.out(back, 1, k) = first_turn.im - first.im;
            pass.out(i - 1, 4, k) = second.re + second_turn.re;
            pass.out(back - 1, 3, k) = second.re - second_turn.re;
            pass.out(i, 4, k) = second_turn.im + second.im;
            pass.out(back, 3, k) = second_turn.im - second.im;
        }
    }
}

// The weighted power of n bins, in the order of `numpy.add.reduceat`.
inline Singles weighted(const float* weights, const Singles* power, int n) {
    if (n == 0) return Singles{};
    const Singles first = weights[0] * power[0];
    if (--n == 0) return first;
    ++weights, ++power;
    Singles sum = {};
    int i = 0;
    if (n >= 8) {
        Singles sums[8];
        for (; i < 8; ++i) sums[i] = weights[i] * power[i];
        for (; i + 8 <= n; i += 8)
            for (int j = 0; j < 8; ++j) sums[j] += weights[i + j] * power[i + j];
        sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; i < n; ++i) sum += weights[i] * power[i];
    return first + sum;
}

void mel_power(const MelFilters& mel, const MelFrames& frames) {
    constexpr int kHops = kFrames + 2;
    static_assert(kMelFrame <= 3 * kMelHop, "a frame reaches into two hops after its first");
    float hops[kMelHop][kHops];
    D signal[kMelFrame], spectrum[kMelFrame];
    Singles power[kMelBins];
    for (int first = 0; first < frames.n_frames; first += kFrames) {
        const int n = std::min(kFrames, frames.n_frames - first);
        const float* samples = frames.samples + static_cast<size_t>(first) * kMelHop;
        const int n_samples = (n - 1) * kMelHop + kMelFrame;
        for (int hop = 0; hop < kHops; ++hop)
            for (int i = 0; i < kMelHop; ++i)
                hops[i][hop] = hop * kMelHop + i < n_samples ? samples[hop * kMelHop + i] : 0.0f;
        for (int i = 0; i < kMelFrame; ++i) {
            Singles single;
            std::memcpy(&single, &hops[i % kMelHop][i / kMelHop], sizeof single);
            signal[i] = __builtin_convertvector(single, D) * mel.window[i];
        }
        merge_5<1>(mel, signal, spectrum);
        merge_5<5>(mel, spectrum, signal);
        merge_4<25>(mel, signal, spectrum);
        merge_4<100>(mel, spectrum, signal);
        for (int k = 0; k < kMelBins; ++k) {
            const Singles re = __builtin_convertvector(signal[k == 0 ? 0 : 2 * k - 1], Singles);
            power[k] = re * re;
            if (k == 0 || k == kMelBins - 1) continue;
            const Singles im = __builtin_convertvector(signal[2 * k], Singles);
            power[k] += im * im;
        }
        for (size_t band = 0; band < mel.filters.size(); ++band) {
            const MelFilters::Filter& filter = mel.filters[band];
            const Singles sum = weighted(&mel.weights[filter.at], power + filter.first, filter.last - filter.first);
            const Singles floor = Singles{} + kMelFloor, most = sum > floor ? sum : floor;
            std::memcpy(frames.power + band * frames.n_frames + first, &most, n * sizeof(float));
        }
    }
}

}  // namespace
}  // namespace sottovoce
