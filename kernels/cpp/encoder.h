// Whisper's encoder: windows of log-mel to states in one call. Every layer is a table in eight bits or in words of
// sixteen, as its owner chooses; attention goes tile by tile, and no length is prepared for.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "decoder.h"
#include "encoder_kernels.h"
#include "packed.h"
#include "packed_words.h"

namespace sottovoce {

// A table in one of the two.
struct Projection {
    Table bytes;
    WordTable words;

    bool in_bytes() const { return bytes.n_out > 0; }
};

struct EncoderDims {
    int n_mels, n_context, n_state, n_head, n_layer;

    int d_head() const { return n_state / n_head; }
};

struct EncoderLayer {
    Projection query_key, value, out, up, down;
    Norm attention_norm, mlp_norm;
};

// Keys and values of a window's frames in every layer, in the pages of `WordHead`; windows that grow share them.
struct EncoderFrames {
    std::vector<std::shared_ptr<const Block>> pages;
};

// Frames of one window: a run from `start` on, and single ones of padding behind it. They attend to frames that were
// computed before, to each other, and to later frames that were computed before.
struct EncoderWindow {
    const float* mel;  // (n_mels, mel_stride), of which n_columns are the window's: beyond them are zeros
    size_t mel_stride;
    int n_columns, start, n_run;
    const int32_t* places;  // (n_places), in the window
    int n_places;
    const EncoderFrames* kept;  // frames that were computed before, or nothing: the first n_before, and n_after others
    int n_before, first_after, n_after;
    const float* log_weights;  // (n_attended), added to every attention, or nothing
    float* states;             // (n_rows, n_state)
    EncoderFrames* frames;     // all that are attended to, written, or nothing

    int n_rows() const { return n_run + n_places; }
    int n_attended() const { return n_before + n_rows() + n_after; }
};

struct EncoderWorkspace;

class Encoder {
public:
    explicit Encoder(const EncoderDims& dims);
    ~Encoder();

    const EncoderDims dims;
    std::vector<EncoderLayer> layers;
    WordTable first_convolution{}, second_convolution{};
    const float* positions = nullptr;  // (n_context, n_state)
    const float* padding = nullptr;    // (n_state): what the convolutions make of padding far from audio
    Norm norm{};

    // Compute states, and keys and values where they are wanted.
    void encode(const std::vector<EncoderWindow>& windows, int n_threads);

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncoderWorkspace>> free_;

    std::unique_ptr<EncoderWorkspace> take();
    void give(std::unique_ptr<EncoderWorkspace> workspace);
};

}  // namespace sottovoce
