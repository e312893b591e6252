// Whisper's encoder: windows of log-mel to states in one call. Every layer is a table in eight bits or in bfloat16, as
// its owner chooses; attention goes tile by tile, and no length is prepared for.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "decoder.h"
#include "encoder_kernels.h"
#include "packed.h"

namespace sottovoce {

// A linear layer in bfloat16.
class PackedPairs {
public:
    PackedPairs() = default;

    // weight: (n_out, n_in, width) float32, inputs of one place together when packed. bias: (n_out), or nothing.
    PackedPairs(const float* weight, const float* bias, int n_out, int n_in, int width = 1);

    PairTable table() const;
    int n_out() const { return n_out_; }
    int n_in() const { return n_in_; }

private:
    int n_out_ = 0, n_in_ = 0;
    Block values_;
    std::vector<float> bias_;
};

// A table in one of the two.
struct Projection {
    Packed bytes;
    PackedPairs pairs;

    bool in_bytes() const { return bytes.n_out() > 0; }
};

struct EncoderDims {
    int n_mels, n_context, n_state, n_head, n_layer;

    int d_head() const { return n_state / n_head; }
};

struct EncoderLayer {
    Projection query_key, value, out, up, down;
    Norm attention_norm, mlp_norm;
};

struct EncoderWorkspace;

class Encoder {
public:
    explicit Encoder(const EncoderDims& dims);
    ~Encoder();

    const EncoderDims dims;
    std::vector<EncoderLayer> layers;
    PackedPairs first_convolution, second_convolution;
    std::vector<float> positions;  // (n_context, n_state)
    Norm norm;

    // mel: (n_windows, n_mels, 2 * n_frames). states: (n_windows, n_frames, n_state).
    void encode(const float* mel, int n_windows, int n_frames, float* states, int n_threads);

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncoderWorkspace>> free_;

    std::unique_ptr<EncoderWorkspace> take();
    void give(std::unique_ptr<EncoderWorkspace> workspace);
};

}  // namespace sottovoce
