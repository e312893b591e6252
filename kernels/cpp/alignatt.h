// AlignAtt's statistics of attention: running mean and sum of squared deviations over the tokens of a row, and the frame
// that the newest token attends to most.
#pragma once

#include <cstddef>

namespace sottovoce {

constexpr int kMedianHalf = 3;  // frames on either side of the median filter

// Of the tokens that a row has read. mean, squares: (n_heads, stride).
struct AttentionStatistics {
    float n_tokens;
    float* mean;
    float* squares;
    size_t stride;
};

// Attention (n_heads, n_tokens, n_frames), or scores that are made of it.
struct AttentionRows {
    const float* values;
    size_t head_stride, token_stride;
    int n_heads, n_tokens, n_frames;

    const float* row(int head, int token) const { return values + head * head_stride + token * token_stride; }
};

}  // namespace sottovoce
