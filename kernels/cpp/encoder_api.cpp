// The encoder for other languages; see api.cpp.
#include <cmath>
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

// which: 0 query and key, 1 value, 2 out, 3 and 4 the perceptron. in_bytes: eight bits, else words of sixteen.
SV_API int sv_encoder_table(Encoder* encoder, int layer, int which, int in_bytes, const float* weight,
                            const float* bias, int n_out, int n_in) {
    return guarded([&] {
        Projection& to = *projection_of(encoder->layers[layer], which);
        to = {};
        if (in_bytes)
            to.bytes = Packed(weight, bias, n_out, n_in);
        else
            to.words = PackedWords(weight, bias, n_out, n_in);
        return 1;
    });
}
// which: 0 or 1. weight: (n_state, n_in, 3).
SV_API int sv_encoder_convolution(Encoder* encoder, int which, const float* weight, const float* bias, int n_in) {
    return guarded([&] {
        PackedWords& to = which ? encoder->second_convolution : encoder->first_convolution;
        to = PackedWords(weight, bias, encoder->dims.n_state, n_in, 3);
        return 1;
    });
}
// which: 0 before attention, 1 before the perceptron. layer: -1 is the last.
SV_API int sv_encoder_norm(Encoder* encoder, int layer, int which, const float* weight, const float* bias) {
    return guarded([&] {
        const int n = encoder->dims.n_state;
        Norm& to = layer < 0 ? encoder->norm
                   : which   ? encoder->layers[layer].mlp_norm
                             : encoder->layers[layer].attention_norm;
        to = {std::vector<float>(weight, weight + n), std::vector<float>(bias, bias + n)};
        return 1;
    });
}
SV_API int sv_encoder_positions(Encoder* encoder, const float* table) {
    return guarded([&] {
        const size_t n = static_cast<size_t>(encoder->dims.n_context) * encoder->dims.n_state;
        encoder->positions.assign(table, table + n);
        return 1;
    });
}

SV_API int sv_encoder_padding(Encoder* encoder, const float* frame) {
    return guarded([&] {
        encoder->padding.assign(frame, frame + encoder->dims.n_state);
        return 1;
    });
}

struct sv_window {
    int32_t n_columns, start, n_run, n_places, n_before, n_after;
    int64_t mel_stride;
    const float* mel;
    const int32_t* places;
    const uint16_t* before;
    const uint16_t* after;
    const float* log_weights;
    float* states;
    uint16_t* keys_values;
};

SV_API int sv_encoder_encode(Encoder* encoder, const sv_window* given, int n_windows, int n_threads) {
    return guarded([&] {
        std::vector<EncoderWindow> windows;
        for (const sv_window* one = given; one < given + n_windows; ++one)
            windows.push_back({one->mel, static_cast<size_t>(one->mel_stride), one->n_columns, one->start, one->n_run,
                               one->places, one->n_places, one->before, one->after, one->n_before, one->n_after,
                               one->log_weights, one->states, one->keys_values});
        encoder->encode(windows, n_threads);
        return 1;
    });
}

// out (n_rows, n_out) = x (n_rows, n_in) times a table (n_out, n_in) in words, plus the bias.
SV_API int sv_words_apply(const float* weight, const float* bias, int n_out, int n_in, const float* x, int n_rows,
                          float* out, int epilogue) {
    return guarded([&] {
        const EncoderKernels& kernels = *kernels_in_use().encoder;
        const PackedWords table(weight, bias, n_out, n_in);
        std::vector<int16_t> words(static_cast<size_t>(n_rows) * table.depth());
        std::vector<float> scales(n_rows);
        for (int r = 0; r < n_rows; ++r)
            scales[r] = kernels.fill(x + static_cast<size_t>(r) * n_in, n_in, kMostActivation,
                                     &words[static_cast<size_t>(r) * table.depth()]);
        kernels.multiply({table.table(), words.data(), scales.data(), n_rows, out, static_cast<size_t>(n_out),
                          static_cast<Epilogue>(epilogue)},
                         0, table.table().n_panels());
        return 1;
    });
}

// Attention of queries (n_queries, d_head) to keys and values (n_frames, d_head) of one head. bias: (n_frames), added
// to logits of base 2, or nothing.
SV_API int sv_attend_tiles(const float* queries, int n_queries, const float* keys, const float* values, int n_frames,
                           int d_head, const float* bias, float* out) {
    return guarded([&] {
        const EncoderKernels& kernels = *kernels_in_use().encoder;
        const WordShape shape{1, d_head, n_frames};
        std::vector<int16_t> key_words(shape.head_size()), value_words(shape.head_size());
        std::vector<float> key_scales(shape.n_scales()), value_scales(shape.n_scales());
        for (int t = 0; t < n_frames; ++t) {
            const size_t at = static_cast<size_t>(t) * d_head;
            lay_key(kernels, shape, keys + at, t, {key_words.data(), key_scales.data()});
            lay_value(kernels, shape, values + at, t, {value_words.data(), value_scales.data()});
        }
        const size_t stride = d_head;
        const std::vector<float> biases = key_biases(shape, bias, 1.0f);
        kernels.attend({queries, stride, 1.44269504088896341f / std::sqrt(static_cast<float>(d_head)),
                        {key_words.data(), value_words.data(), key_scales.data(), value_scales.data()},
                        biases.data(), n_queries, n_frames, d_head, shape.d_pad(), out, stride});
        return 1;
    });
}
