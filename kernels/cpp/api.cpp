// What other languages call: plain functions over addresses. Nothing is thrown across it: where something fails, a
// function returns 0 and `sv_error` tells why. Arrays are contiguous, and shapes the caller's to check.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder.h"
#include "guarded.h"
#include "isa.h"
#include "packed_words.h"
#include "rows.h"

using namespace sottovoce;

namespace {

Table* table_of(Decoder& decoder, int layer, int which) {
    if (layer < 0) return &decoder.embedding;
    DecoderLayer& l = decoder.layers[layer];
    Table* const tables[] = {&l.query_key_value, &l.self_out, &l.cross_query, &l.cross_key_value,
                              &l.cross_out,       &l.up,       &l.down};
    return tables[which];
}

Norm* norm_at(Decoder& decoder, int layer, int which) {
    if (layer < 0) return &decoder.norm;
    DecoderLayer& l = decoder.layers[layer];
    Norm* const norms[] = {&l.self_norm, &l.cross_norm, &l.mlp_norm};
    return norms[which];
}

// A linear layer that keeps its table.
struct Linear {
    PackedShape shape;
    Block memory;
    Table table;

    Linear(const float* weight, const float* bias, int n_out, int n_in)
        : shape{n_out, n_in, 1}, memory(shape.size()), table(table_in_bytes(shape, memory.as<uint8_t>())) {
        std::memset(memory.as<uint8_t>(), 0, shape.size());
        pack_bytes(shape, weight, bias, 0, n_out, memory.as<uint8_t>());
    }
};

}  // namespace

SV_API const char* sv_error() { return last_error().c_str(); }

// Instruction sets by place, the portable one first; nothing behind the last.
SV_API const char* sv_built(int place) {
    for (const Kernels* const* at = built_kernels(); *at; ++at)
        if (place-- == 0) return (*at)->name;
    return nullptr;
}
SV_API int sv_runs_here(const char* name) { return find_kernels(name) != nullptr; }
SV_API const char* sv_best() { return best_kernels()->name; }
SV_API const char* sv_in_use() { return kernels_in_use().name; }
SV_API int sv_use(const char* name) {
    const Kernels* kernels = find_kernels(name);
    if (kernels) use_kernels(*kernels);
    return kernels != nullptr;
}

// Packed tables, in memory that is the caller's and begins at a cache line; bytes_a_value: 1, or 2 for words.
SV_API int sv_packed_layout() { return kPackedLayout; }
SV_API int64_t sv_packed_size(int n_out, int n_in, int bytes_a_value) {
    return static_cast<int64_t>(PackedShape{n_out, n_in, bytes_a_value}.size());
}
// Pack rows [first, first + n) of a table; memory: zeros before the first.
SV_API int sv_pack(const float* rows, const float* bias, int n_out, int n_in, int bytes_a_value, int first, int n,
                   uint8_t* memory) {
    return guarded([&] {
        const PackedShape shape{n_out, n_in, bytes_a_value};
        (bytes_a_value == 1 ? pack_bytes : pack_words)(shape, rows, bias, first, n, memory);
        return 1;
    });
}

SV_API Linear* sv_linear_new(const float* weight, const float* bias, int n_out, int n_in) {
    return guarded([&] { return new Linear(weight, bias, n_out, n_in); });
}
SV_API void sv_linear_free(Linear* linear) { delete linear; }
SV_API void sv_linear_row(const Linear* linear, int row, float* to) { unpack_row(linear->table, row, to); }

// out (n_rows, n_out) = x (n_rows, n_in) times the table, plus the bias; epilogue as `Epilogue`.
SV_API int sv_linear_apply(const Linear* layer, const float* x, int n_rows, float* out, int epilogue, int n_threads) {
    return guarded([&] {
        thread_local RowBuffers local;
        RowBuffers& buffers = local;
        const Table& table = layer->table;
        buffers.resize(n_rows, table.n_in, n_threads);
        const Rows from{const_cast<float*>(x), static_cast<size_t>(table.n_in)};
        const Rows to{out, static_cast<size_t>(table.n_out)};
        const Kernels& kernels = kernels_in_use();
        run_together(n_threads, [&](Worker& worker) {
            linear(kernels, worker, buffers, nullptr, from, n_rows, table, to, static_cast<Epilogue>(epilogue));
        });
        return 1;
    });
}

SV_API void sv_layer_norm(const float* x, const float* weight, const float* bias, int n_rows, int n, float* out) {
    for (int r = 0; r < n_rows; ++r)
        kernels_in_use().layer_norm(x + static_cast<size_t>(r) * n, weight, bias, n, out + static_cast<size_t>(r) * n);
}

// Self-attention of one query (d_head) to tokens whose keys and values (2, d_head) follow each other.
SV_API int sv_attend_self(const float* query, const float* keys_values, int n_tokens, int d_head, float* out) {
    return guarded([&] {
        std::vector<const float*> entries;
        for (int t = 0; t < n_tokens; ++t) entries.push_back(keys_values + static_cast<size_t>(t) * 2 * d_head);
        std::vector<float> weights(n_tokens);
        const float scale = 1.0f / std::sqrt(static_cast<float>(d_head));
        kernels_in_use().attend_self({entries.data(), n_tokens, static_cast<size_t>(d_head), query, scale, d_head,
                                      weights.data(), out});
        return 1;
    });
}

// Cross-attention of queries (n_queries, d_head) to frames [first, last) of keys and values (n_frames, d_head) of
// one head; weights (n_queries, n_frames), zero outside the span.
SV_API int sv_attend_cross(const float* queries, int n_queries, const float* keys, const float* values, int n_frames,
                           int d_head, int first, int last, const float* bias, float* out, float* weights) {
    return guarded([&] {
        const AudioShape shape{1, d_head, n_frames};
        std::vector<uint16_t> packed_keys(shape.head_size()), packed_values(shape.head_size());
        pack_keys(shape, keys, d_head, 0, n_frames, packed_keys.data());
        pack_values(shape, values, d_head, 0, n_frames, packed_values.data());
        CrossAttention a{};
        a.keys = packed_keys.data();
        a.values = packed_values.data();
        a.first_frame = first;
        a.last_frame = last;
        a.first_block = first / kBlock;
        a.last_block = (last + kBlock - 1) / kBlock;
        a.bias = bias;
        a.n_queries = n_queries;
        a.queries = queries;
        a.query_stride = a.out_stride = d_head;
        a.scale = 1.0f / std::sqrt(static_cast<float>(d_head));
        a.d_head = d_head;
        a.d_pad = shape.d_pad();
        a.weights_stride = static_cast<size_t>(a.last_block - a.first_block) * kBlock;
        std::vector<float> scratch(n_queries * a.weights_stride);
        a.weights = scratch.data();
        a.out = out;
        kernels_in_use().attend_cross(a);
        const int begin = a.first_block * kBlock, end = std::min(a.last_block * kBlock, n_frames);
        std::fill(weights, weights + static_cast<size_t>(n_queries) * n_frames, 0.0f);
        for (int q = 0; q < n_queries; ++q)
            std::copy_n(a.weights + q * a.weights_stride, end - begin, weights + q * n_frames + begin);
        return 1;
    });
}

// The likeliest tokens of one row: see TokenChoice.
SV_API int sv_choose(const float* logits, int first_text, int time_begin, int first_time, int last_time, int n_best,
                     float* best, int32_t* tokens) {
    return kernels_in_use().choose({logits, first_text, time_begin, first_time, last_time, n_best, best, tokens});
}

SV_API Decoder* sv_decoder_new(int n_layer, int n_state, int n_head, int n_vocab, int n_context) {
    return guarded([&] { return new Decoder({n_layer, n_state, n_head, n_vocab, n_context}); });
}
SV_API void sv_decoder_free(Decoder* decoder) { delete decoder; }

// which: 0 query, key and value of self-attention, 1 its output; 2 query of cross-attention, 3 its key and value,
// 4 its output; 5 and 6 the perceptron. layer: -1 is the token embedding. memory: of a table packed in eight bits; it,
// and that of norms and positions, must outlive the decoder.
SV_API void sv_decoder_table(Decoder* decoder, int layer, int which, const uint8_t* memory, int n_out, int n_in) {
    *table_of(*decoder, layer, which) = table_in_bytes({n_out, n_in, 1}, memory);
}
// which: 0 before self-attention, 1 before cross-attention, 2 before the perceptron. layer: -1 is the last.
SV_API void sv_decoder_norm(Decoder* decoder, int layer, int which, const float* weight, const float* bias) {
    *norm_at(*decoder, layer, which) = {weight, bias};
}
SV_API void sv_decoder_positions(Decoder* decoder, const float* table) { decoder->positions = table; }

// keys, values: of each layer, zeroed memory as audio.h lays it out.
SV_API int sv_decoder_cross_keys_values(Decoder* decoder, const float* states, int n_frames, uint16_t** keys, uint16_t** values,
                             int n_threads) {
    return guarded([&] {
        decoder->cross_keys_values(states, n_frames, keys, values, n_threads);
        return 1;
    });
}

// The keys and values of a window, which must stay where they are.
SV_API Audio* sv_audio_new(int n_layer, const uint16_t** keys, const uint16_t** values, int n_frames) {
    return guarded([&] { return new Audio{{keys, keys + n_layer}, {values, values + n_layer}, n_frames}; });
}
SV_API void sv_audio_free(Audio* audio) { delete audio; }

SV_API Row* sv_row_new() {
    return guarded([] { return new Row; });
}
SV_API void sv_row_free(Row* row) { delete row; }
SV_API int sv_row_tokens(const Row* row) { return row->n_tokens(); }

// Another row that has read the first tokens of this one.
SV_API Row* sv_row_first(const Row* row, int n_tokens) {
    return guarded([&] {
        const int n = std::min(n_tokens, row->n_tokens());
        return new Row{{row->entries.begin(), row->entries.begin() + n}};
    });
}
// Forget every token from n_tokens on.
SV_API void sv_row_truncate(Row* row, int n_tokens) {
    if (n_tokens < row->n_tokens()) row->entries.resize(static_cast<size_t>(std::max(0, n_tokens)));
}

struct sv_step {
    int32_t n_rows, n_wanted, n_vocabulary, n_captured, longest, n_threads;
    Row* const* rows;
    const Audio* const* audio;
    const float* const* bias;  // of each row, or nothing
    const int32_t* first_frame;
    const int32_t* last_frame;
    const int32_t* n_new;
    const int32_t* tokens;
    const int32_t* wanted;
    const int32_t* vocabulary;
    const int32_t* captured;  // pairs of layer and head
    float* logits;
    float* attention;
    int32_t n_best, n_forbidden, time_begin;  // of a choice; without one n_best is 0
    const int32_t* forbidden;
    const TokenRule* rules;
    float* best;
    int32_t* best_tokens;
    int32_t* is_clear;
};

SV_API int sv_decoder_step(Decoder* decoder, const sv_step* given) {
    return guarded([&] {
        StepRequest request{};
        for (int i = 0; i < given->n_rows; ++i)
            request.rows.push_back({given->rows[i], given->audio[i], given->bias[i], given->first_frame[i],
                                    given->last_frame[i], given->n_new[i]});
        request.tokens = given->tokens;
        request.wanted.assign(given->wanted, given->wanted + given->n_wanted);
        request.vocabulary.assign(given->vocabulary, given->vocabulary + given->n_vocabulary);
        request.logits = given->logits;
        for (int i = 0; i < given->n_captured; ++i)
            request.captured.push_back({given->captured[2 * i], given->captured[2 * i + 1]});
        request.attention = given->attention;
        request.longest = given->longest;
        request.n_threads = given->n_threads;
        request.choice = {given->n_best, given->time_begin, {given->forbidden, given->forbidden + given->n_forbidden},
                          given->rules, given->best, given->best_tokens, given->is_clear};
        decoder->step(request);
        return 1;
    });
}
