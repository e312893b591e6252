// The encoder for other languages; see api.cpp.
#include <cmath>
#include <cstring>
#include <vector>

#include "encoder.h"
#include "guarded.h"
#include "isa.h"

using namespace sottovoce;

namespace {

Projection* projection_of(EncoderLayer& layer, int which) {
    Projection* const all[] = {&layer.query_key, &layer.value, &layer.out, &layer.up, &layer.down};
    return all[which];
}

}  // namespace

SV_API Encoder* sv_encoder_new(int n_mels, int n_context, int n_state, int n_head, int n_layer) {
    return guarded([&] { return new Encoder({n_mels, n_context, n_state, n_head, n_layer}); });
}
SV_API void sv_encoder_free(Encoder* encoder) { delete encoder; }

// which: 0 query and key, 1 value, 2 out, 3 and 4 the perceptron. memory: of a packed table; it, and that of norms,
// positions and padding, must outlive the encoder. bytes_a_value: 1, or 2 for words.
SV_API void sv_encoder_table(Encoder* encoder, int layer, int which, const uint8_t* memory, int n_out, int n_in,
                             int bytes_a_value) {
    const PackedShape shape{n_out, n_in, bytes_a_value};
    Projection& to = *projection_of(encoder->layers[layer], which);
    to = {};
    if (bytes_a_value == 1)
        to.bytes = table_in_bytes(shape, memory);
    else
        to.words = table_in_words(shape, memory);
}
// which: 0 or 1. memory: of a table (n_state, 3 * n_in) packed in words.
SV_API void sv_encoder_convolution(Encoder* encoder, int which, const uint8_t* memory, int n_in) {
    WordTable& to = which ? encoder->second_convolution : encoder->first_convolution;
    to = table_in_words({encoder->dims.n_state, 3 * n_in, 2}, memory);
}
// which: 0 before attention, 1 before the perceptron. layer: -1 is the last.
SV_API void sv_encoder_norm(Encoder* encoder, int layer, int which, const float* weight, const float* bias) {
    Norm& to = layer < 0 ? encoder->norm
               : which   ? encoder->layers[layer].mlp_norm
                         : encoder->layers[layer].attention_norm;
    to = {weight, bias};
}
SV_API void sv_encoder_positions(Encoder* encoder, const float* table) { encoder->positions = table; }
SV_API void sv_encoder_padding(Encoder* encoder, const float* frame) { encoder->padding = frame; }

SV_API EncoderFrames* sv_frames_new() {
    return guarded([] { return new EncoderFrames; });
}
SV_API void sv_frames_free(EncoderFrames* frames) { delete frames; }

struct sv_window {
    int32_t n_columns, start, n_run, n_places, n_before, first_after, n_after;
    int64_t mel_stride;
    const float* mel;
    const int32_t* places;
    const EncoderFrames* kept;
    const float* log_weights;
    float* states;
    EncoderFrames* frames;
};

SV_API int sv_encoder_encode(Encoder* encoder, const sv_window* given, int n_windows, int n_threads) {
    return guarded([&] {
        std::vector<EncoderWindow> windows;
        for (const sv_window* one = given; one < given + n_windows; ++one)
            windows.push_back({one->mel, static_cast<size_t>(one->mel_stride), one->n_columns, one->start, one->n_run,
                               one->places, one->n_places, one->kept, one->n_before, one->first_after, one->n_after,
                               one->log_weights, one->states, one->frames});
        encoder->encode(windows, n_threads);
        return 1;
    });
}

// out (n_rows, n_out) = x (n_rows, n_in) times a table (n_out, n_in) in words, plus the bias.
SV_API int sv_words_apply(const float* weight, const float* bias, int n_out, int n_in, const float* x, int n_rows,
                          float* out, int epilogue) {
    return guarded([&] {
        const EncoderKernels& kernels = *kernels_in_use().encoder;
        const PackedShape shape{n_out, n_in, 2};
        std::vector<uint8_t> memory(shape.size());
        pack_words(shape, weight, bias, 0, n_out, memory.data());
        const WordTable table = table_in_words(shape, memory.data());
        std::vector<int16_t> words(static_cast<size_t>(n_rows) * shape.depth());
        std::vector<float> scales(n_rows);
        for (int r = 0; r < n_rows; ++r)
            scales[r] = kernels.fill(x + static_cast<size_t>(r) * n_in, n_in, kMostActivation,
                                     &words[static_cast<size_t>(r) * shape.depth()]);
        kernels.multiply({table, words.data(), scales.data(), n_rows, out, static_cast<size_t>(n_out),
                          static_cast<Epilogue>(epilogue)},
                         0, table.n_panels());
        return 1;
    });
}

// Attention of queries (n_queries, d_head) to keys and values (n_frames, d_head) of one head. bias: (n_frames), added
// to logits of base 2, or nothing.
SV_API int sv_attend_tiles(const float* queries, int n_queries, const float* keys, const float* values, int n_frames,
                           int d_head, const float* bias, float* out) {
    return guarded([&] {
        const EncoderKernels& kernels = *kernels_in_use().encoder;
        const PageShape shape{1, 1, d_head};
        const int n_pages = (n_frames + kKeyPage - 1) / kKeyPage;
        Block memory(n_pages * shape.bytes());
        std::memset(memory.as<char>(), 0, memory.size());
        std::vector<char*> pages;
        for (int i = 0; i < n_pages; ++i) pages.push_back(memory.as<char>() + i * shape.bytes());
        const size_t stride = d_head;
        for (int t = 0; t < n_frames; ++t)
            lay_frame(kernels, shape, 0, keys + t * stride, values + t * stride, t, pages.data());
        const std::vector<float> biases = key_biases(n_frames, bias, 1.0f);
        kernels.attend({queries, stride, 1.44269504088896341f / std::sqrt(static_cast<float>(d_head)),
                        {pages.data(), 0, shape.d_pad()}, biases.data(), n_queries, n_frames, d_head, out, stride});
        return 1;
    });
}
