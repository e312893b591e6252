// What one instruction set computes: plain functions over arrays, gathered in a table.
//
// Every function gives a row the same result, bit by bit, whatever other rows there are: sums run in an order that
// depends on the row alone. Layouts (see packed.h, audio.h) are the same for all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sottovoce {

constexpr int kPanel = 32;   // outputs of a table that lie together
constexpr int kQuad = 4;     // inputs of one output that lie together
constexpr int kDepth = 64;   // inputs are padded to a multiple of it
constexpr int kBlock = 16;   // audio frames whose keys lie together
constexpr int kTileRows = 32;  // rows of activations are padded to a multiple of it

// A table (n_out, n_in) in eight bits: value[n, k] is scales[n] * values[n, k].
struct Table {
    const int8_t* values;  // (n_out / 32, depth / 4, 32, 4)
    const float* scales;   // one an output, padded to whole panels, as are the others
    const int32_t* sums;   // of the values of an output
    const float* bias;     // zeros where a layer has none
    int n_out;
    int n_in;
    int depth;  // n_in padded

    int n_panels() const { return (n_out + kPanel - 1) / kPanel; }
};

// Rows of activations in eight bits: x[r, k] is scales[r] * (values[r, k] - zeros[r]).
struct Activations {
    uint8_t* values;  // rows of `stride` bytes; an instruction set may keep them wider
    size_t stride;
    float* scales;
    int32_t* zeros;
};

enum class Epilogue { store, add, gelu };

// out[r, n] (=, +=, = gelu of) sum over k of x[r, k] * table[n, k], plus bias[n].
struct Product {
    Table table;
    Activations rows;
    int n_rows;
    float* out;
    size_t out_stride;
    Epilogue epilogue;
};

// One query over the tokens of its row; entries[t] holds the key of token t, its value stands `value_at` behind it.
struct SelfAttention {
    const float* const* entries;
    int n_tokens;
    size_t value_at;
    const float* query;
    float scale;
    int d_head;
    float* weights;  // (n_tokens), scratch
    float* out;      // (d_head)
};

// Queries over one audio. Keys are (n_blocks, d_pad / 2, 16, 2) and values (n_blocks * 8, d_pad, 2) in bfloat16.
struct CrossAttention {
    const uint16_t* keys;
    const uint16_t* values;
    int first_frame, last_frame;  // the frames attended to
    int first_block, last_block;  // the blocks of 16 frames that hold them
    const float* bias;            // (n_frames), or nothing
    int n_queries;
    const float* queries;
    size_t query_stride;
    float scale;
    int d_head, d_pad;
    float* weights;  // (n_queries, weights_stride): the attention to each frame of the blocks, when done
    size_t weights_stride;
    float* out;
    size_t out_stride;
};

// The likeliest next tokens of a row. Text is the tokens [first_text, time_begin), times are [first_time, last_time)
// behind it; where all times together are likelier than any text, there are times alone.
struct TokenChoice {
    const float* logits;  // -inf where a token may not come
    int first_text, time_begin, first_time, last_time;
    int n_best;
    float* best;      // (n_best) natural log-probabilities among the tokens that may come, best first
    int32_t* tokens;  // (n_best)
};

struct EncoderKernels;  // see encoder_kernels.h
struct Silero;          // see silero.h
struct SpeechWindows;
struct AttentionStatistics;  // see alignatt.h
struct AttentionRows;
struct MelFilters;      // see mel.h
struct MelFrames;

struct Kernels {
    const char* name;
    int bytes_an_activation;
    void (*quantize)(const float* x, int n, int depth, uint8_t* values, float* scale, int32_t* zero);
    void (*multiply)(const Product& product, int first_panel, int last_panel);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float* out);
    void (*attend_self)(const SelfAttention& attention);
    void (*attend_cross)(const CrossAttention& attention);
    int (*choose)(const TokenChoice& choice);  // 0 where two of the best are equal, or there are fewer
    void (*detect_speech)(const Silero& network, const SpeechWindows& windows);
    void (*mel_power)(const MelFilters& mel, const MelFrames& frames);
    void (*update_statistics)(const AttentionStatistics& before, const AttentionRows& attention,
                              const AttentionStatistics& after);  // after.n_tokens is set
    int (*attended_frame)(const AttentionStatistics& all, const AttentionRows& attention, float floor);
    void (*mean_of_medians)(const AttentionRows& scores, float* out);  // (n_tokens, n_frames), over heads
    const EncoderKernels* encoder;
};

inline int padded(int n, int to) { return (n + to - 1) / to * to; }

inline uint16_t to_bfloat16(float value) {
    union { float number; uint32_t bits; } is{value};
    return static_cast<uint16_t>((is.bits + 0x7fffu + ((is.bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
}

inline float from_bfloat16(uint16_t value) {
    union { uint32_t bits; float number; } is{static_cast<uint32_t>(value) << 16};
    return is.number;
}

}  // namespace sottovoce
