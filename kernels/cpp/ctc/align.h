// Passes over emissions (n_frames, n_labels) without beams: forced alignment, as `align` of Python has it, where the
// paths of all beams meet, and a fast check of log-probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sottovoce::ctc {

struct Frames {
    const float* values;
    int64_t n_frames, n_labels;

    const float* operator[](int64_t t) const { return values + t * n_labels; }
};

// Whether every frame sums to about 1; false for positive values, NaN, and in doubt.
bool are_plausible(const Frames& frames);

// Labels (n,) between blanks (n + 1,).
struct Text {
    const int64_t* labels;
    const int64_t* blanks;
    int n;
};

// The best paths to the states blank, label 1, blank, label 2, … of a text.
class Paths {
public:
    std::vector<float> score;    // (2 * n + 1,) of each state after the last frame
    std::vector<uint8_t> steps;  // (n_frames, 2 * n + 1), states that a path advances by

    // band: nats behind the best at which a state is dropped.
    void find(const Frames& frames, const Text& text, float band);
    int step(int64_t t, int state) const { return steps[static_cast<size_t>(t) * score.size() + state]; }
};

// Write first frame, last frame and highest log-probability of every label (n,), and return the score of the path; a
// text with more labels than fit leaves them, and has a score of -inf.
float align(const Frames& frames, const Text& text, Paths& paths, int64_t* first, int64_t* last, float* peak);

struct Cut {
    int64_t n_frames, n_tokens;
};

// The latest blank that the paths of all texts pass after at most n_shared labels; zeros without one. margin: nats by
// which a state may be behind the best and still win. is_late: only paths that have passed all labels count.
Cut common_cut(const Frames& frames, const std::vector<Text>& texts, int64_t n_shared, float margin, bool is_late);

}  // namespace sottovoce::ctc
