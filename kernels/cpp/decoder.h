// Whisper's decoder: a step of many rows in one call.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "audio.h"
#include "packed.h"
#include "pool.h"

namespace sottovoce {

struct DecoderDims {
    int n_layer, n_state, n_head, n_vocab, n_context;

    int d_head() const { return n_state / n_head; }
};

// Numbers and tables of a model lie in memory that outlives it: a mapped file, or an array.
struct Norm {
    const float* weight;
    const float* bias;
};

struct DecoderLayer {
    Table query_key_value, self_out, cross_query, cross_key_value, cross_out, up, down;
    Norm self_norm, cross_norm, mlp_norm;
};

// The KV cache of one token: (n_layer, 2, n_state). Rows with a common prefix share its entries, which never change
// once their step is over.
using KvEntry = std::shared_ptr<float[]>;

struct Row {
    std::vector<KvEntry> entries;

    int n_tokens() const { return static_cast<int>(entries.size()); }
};

// One row of a step.
struct RowStep {
    Row* row;
    const Audio* audio;
    const float* bias;            // (n_frames), added to the attention to each frame, or nothing
    int first_frame, last_frame;  // the frames that it attends to
    int n_new;
};

struct CapturedHead {
    int layer, head;
};

// Which tokens may follow a row: see TokenChoice.
struct TokenRule {
    int32_t first_text, first_time, last_time;
};

// The likeliest tokens behind each wanted place, where n_best is not 0.
struct ChoiceRequest {
    int n_best, time_begin;
    std::vector<int32_t> forbidden;  // in every row
    const TokenRule* rules;          // (n_wanted)
    float* best;                     // (n_wanted, n_best)
    int32_t* tokens;                 // (n_wanted, n_best)
    int32_t* is_clear;               // (n_wanted)
};

struct StepRequest {
    std::vector<RowStep> rows;
    const int32_t* tokens;               // of all rows, one after the other
    std::vector<int32_t> wanted;         // places among the tokens that get logits
    std::vector<int32_t> vocabulary;     // rows of the output that are wanted; all if there are none
    float* logits;                       // (n_wanted, n_vocabulary)
    std::vector<CapturedHead> captured;
    float* attention;                    // (n_captured, n_tokens, longest)
    int longest;                         // frames of `attention`
    ChoiceRequest choice;                // among all of the vocabulary
    int n_threads;
};

struct Workspace;

class Decoder {
public:
    explicit Decoder(const DecoderDims& dims);
    ~Decoder();

    const DecoderDims dims;
    std::vector<DecoderLayer> layers;
    Table embedding{};
    const float* positions = nullptr;  // (n_context, n_state)
    Norm norm{};

    // Read tokens into their rows; where it throws, the rows are as before.
    void step(const StepRequest& request);

    // Keys and values of all layers over encoder states (n_frames, n_state); memory as audio.h says.
    void cross_keys_values(const float* states, int n_frames, uint16_t* const* keys, uint16_t* const* values, int n_threads);

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Workspace>> free_;

    std::unique_ptr<Workspace> take();
    void give(std::unique_ptr<Workspace> workspace);
};

}  // namespace sottovoce
