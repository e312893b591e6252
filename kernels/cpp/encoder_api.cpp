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

// which: 0 query and key, 1 value, 2 out, 3 and 4 the perceptron. in_bytes: eight bits, else bfloat16.
SV_API int sv_encoder_table(Encoder* encoder, int layer, int which, int in_bytes, const float* weight,
                            const float* bias, int n_out, int n_in) {
    return guarded([&] {
        Projection& to = *projection_of(encoder->layers[layer], which);
        to = {};
        if (in_bytes)
            to.bytes = Packed(weight, bias, n_out, n_in);
        else
            to.pairs = PackedPairs(weight, bias, n_out, n_in);
        return 1;
    });
}
// which: 0 or 1. weight: (n_state, n_in, 3).
SV_API int sv_encoder_convolution(Encoder* encoder, int which, const float* weight, const float* bias, int n_in) {
    return guarded([&] {
        PackedPairs& to = which ? encoder->second_convolution : encoder->first_convolution;
        to = PackedPairs(weight, bias, encoder->dims.n_state, n_in, 3);
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

// out (n_rows, n_out) = x (n_rows, n_in) times a table (n_out, n_in) in bfloat16, plus the bias.
SV_API int sv_pairs_apply(const float* weight, const float* bias, int n_out, int n_in, const float* x, int n_rows,
                          float* out, int epilogue) {
    return guarded([&] {
        const EncoderKernels& kernels = *kernels_in_use().encoder;
        const PackedPairs table(weight, bias, n_out, n_in);
        const size_t stride = table.table().n_pairs;
        const Block rows(n_rows * stride * kernels.bytes_a_pair);
        for (int r = 0; r < n_rows; ++r)
            kernels.fill(x + static_cast<size_t>(r) * n_in, n_in, 1.0f,
                         rows.as<char>() + r * stride * kernels.bytes_a_pair);
        kernels.multiply({table.table(), rows.as<char>(), stride, n_rows, out, static_cast<size_t>(n_out),
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
        const AudioShape shape{1, d_head, n_frames};
        std::vector<uint16_t> packed_keys(shape.head_size()), packed_values(shape.head_size());
        pack_keys(shape, keys, d_head, 0, n_frames, packed_keys.data());
        pack_values(shape, values, d_head, 0, n_frames, packed_values.data());
        const size_t stride = shape.d_pad() / 2;
        std::vector<char> pairs(n_queries * stride * kernels.bytes_a_pair);
        const float scale = 1.44269504088896341f / std::sqrt(static_cast<float>(d_head));
        for (int q = 0; q < n_queries; ++q)
            kernels.fill(queries + static_cast<size_t>(q) * d_head, d_head, scale,
                         &pairs[q * stride * kernels.bytes_a_pair]);
        kernels.attend({pairs.data(), stride, packed_keys.data(), packed_values.data(), bias, n_queries, n_frames,
                        d_head, shape.d_pad(), out, static_cast<size_t>(d_head)});
        return 1;
    });
}
