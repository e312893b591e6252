// The mel power of 16 kHz audio, as Whisper takes it: frames of 25 ms every 10 ms.
#pragma once

#include <vector>

namespace sottovoce {

constexpr int kMelFrame = 400;  // samples of a frame
constexpr int kMelHop = 160;    // samples between the starts of two frames
constexpr int kMelBins = kMelFrame / 2 + 1;
constexpr float kMelFloor = 1e-10f;  // least power

struct Turn {
    double cosine, sine;
};

struct MelFilters {
    // A filter's bins [first, last), whose weights begin at `at`.
    struct Filter {
        int first, last, at;
    };

    std::vector<double> window;
    std::vector<Turn> turns;  // turns[k] is exp(-2 pi i k / kMelFrame), up to half a turn
    std::vector<Filter> filters;
    std::vector<float> weights;
};

// Frames that follow one another.
struct MelFrames {
    const float* samples;  // (kMelHop * (n_frames - 1) + kMelFrame)
    int n_frames;
    float* power;  // (n_filters, n_frames), written
};

}  // namespace sottovoce
