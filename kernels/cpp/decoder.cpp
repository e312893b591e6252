#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rows.h"

namespace sottovoce {

namespace {

constexpr int kQueriesAtOnce = 20;  // of one audio and head: a multiple of what every instruction set takes at once

// Queries over the same keys: places [first, last) of the tokens.
struct QueryGroup {
    const RowStep* row;
    int first, last;
};

bool share_keys(const RowStep& a, const RowStep& b) {
    return a.audio->keys == b.audio->keys && a.bias == b.bias && a.first_frame == b.first_frame &&
           a.last_frame == b.last_frame;
}

}  // namespace

struct Workspace {
    RowBuffers buffers;
    std::vector<float> x, projected, attention_out, logits;
    std::vector<std::vector<float>> weights;            // of each thread
    std::vector<std::vector<const float*>> entries;     // of each thread

    void resize(const DecoderDims& dims, int n, int n_wanted, int longest_row, int n_frames, int n_threads) {
        const int widest = 4 * dims.n_state;
        buffers.resize(std::max(n, n_wanted), widest, n_threads);
        grow(x, static_cast<size_t>(n) * dims.n_state);
        grow(projected, static_cast<size_t>(n) * widest);
        grow(attention_out, static_cast<size_t>(n) * dims.n_state);
        if (static_cast<int>(weights.size()) < n_threads) weights.resize(n_threads);
        if (static_cast<int>(entries.size()) < n_threads) entries.resize(n_threads);
        const size_t scratch = std::max(kQueriesAtOnce * padded(n_frames, kBlock), longest_row);
        for (auto& one : weights) grow(one, scratch);
        for (auto& one : entries)
            if (one.size() < static_cast<size_t>(longest_row)) one.resize(longest_row);
    }

    static void grow(std::vector<float>& buffers, size_t n) {
        if (buffers.size() < n) buffers.resize(n);
    }
};

namespace {

// A step on its way; its methods are run by every thread.
class Step {
public:
    Step(const Decoder& decoder, const StepRequest& request, Workspace& work)
        : decoder_(decoder), dims_(decoder.dims), request_(request), work_(work), kernels_(kernels_in_use()) {
        for (const RowStep& row : request.rows) {
            begins_.push_back(n_);
            n_ += row.n_new;
        }
        group();
        choose_panels();
        const size_t d = dims_.n_state;
        x_ = {work_.x.data(), d};
        projected_ = {work_.projected.data(), 4 * d};
        attention_ = {work_.attention_out.data(), d};
    }

    void run(Worker& worker) const {
        embed(worker);
        for (int layer = 0; layer < dims_.n_layer; ++layer) {
            const DecoderLayer& l = decoder_.layers[layer];
            pass(worker, &l.self_norm, x_, l.query_key_value, projected_, Epilogue::store);
            self_attention(worker, layer);
            pass(worker, nullptr, attention_, l.self_out, x_, Epilogue::add);
            pass(worker, &l.cross_norm, x_, l.cross_query, projected_, Epilogue::store);
            cross_attention(worker, layer);
            pass(worker, nullptr, attention_, l.cross_out, x_, Epilogue::add);
            pass(worker, &l.mlp_norm, x_, l.up, projected_, Epilogue::gelu);
            pass(worker, nullptr, projected_, l.down, x_, Epilogue::add);
        }
        compute_logits(worker);
    }

private:
    const Decoder& decoder_;
    const DecoderDims& dims_;
    const StepRequest& request_;
    Workspace& work_;
    const Kernels& kernels_;
    int n_ = 0;
    std::vector<int> begins_, panels_;
    std::vector<QueryGroup> groups_;
    Rows x_{}, projected_{}, attention_{};

    void group() {
        for (size_t i = 0; i < request_.rows.size(); ++i) {
            const RowStep& row = request_.rows[i];
            if (!row.n_new) continue;
            const int end = begins_[i] + row.n_new;
            if (!groups_.empty() && groups_.back().last == begins_[i] && share_keys(*groups_.back().row, row))
                groups_.back().last = end;
            else
                groups_.push_back({&row, begins_[i], end});
        }
        std::vector<QueryGroup> small;
        for (const QueryGroup& whole : groups_)
            for (int at = whole.first; at < whole.last; at += kQueriesAtOnce)
                small.push_back({whole.row, at, std::min(whole.last, at + kQueriesAtOnce)});
        groups_ = small;
    }

    void choose_panels() {
        for (int row : request_.vocabulary) panels_.push_back(row / kPanel);
        std::sort(panels_.begin(), panels_.end());
        panels_.erase(std::unique(panels_.begin(), panels_.end()), panels_.end());
        if (!panels_.empty()) Workspace::grow(work_.logits, request_.wanted.size() * dims_.n_vocab);
    }

    void pass(Worker& worker, const Norm* norm, Rows from, const Table& table, Rows to, Epilogue epilogue) const {
        linear(kernels_, worker, work_.buffers, norm, from, n_, table, to, epilogue);
    }

    void embed(Worker& worker) const {
        worker.each(static_cast<int>(request_.rows.size()), [&](int index) {
            const RowStep& row = request_.rows[index];
            const int known = row.row->n_tokens() - row.n_new;
            for (int j = 0; j < row.n_new; ++j) {
                const int place = begins_[index] + j;
                unpack_row(decoder_.embedding, request_.tokens[place], x_[place]);
                const float* position = decoder_.positions + static_cast<size_t>(known + j) * dims_.n_state;
                for (int k = 0; k < dims_.n_state; ++k) x_[place][k] += position[k];
            }
        });
    }

    // Self-attention, row by row and head by head.
    void self_attention(Worker& worker, int layer) const {
        const int n_rows = static_cast<int>(request_.rows.size());
        worker.each(n_rows * dims_.n_head, [&](int task) {
            self_attention_head(worker, layer, task % n_rows, task / n_rows);
        });
    }

    void self_attention_head(Worker& worker, int layer, int index, int head) const {
        const RowStep& row = request_.rows[index];
        const int d = dims_.n_state, d_head = dims_.d_head(), at = head * d_head;
        const int n_all = row.row->n_tokens(), known = n_all - row.n_new;
        const size_t key_at = static_cast<size_t>(layer) * 2 * d + at;
        const float** entries = work_.entries[worker.index].data();
        for (int t = 0; t < n_all; ++t) entries[t] = row.row->entries[t].get() + key_at;
        for (int j = 0; j < row.n_new; ++j) {
            const float* made = projected_[begins_[index] + j];
            float* key = row.row->entries[known + j].get() + key_at;
            std::memcpy(key, made + d + at, d_head * sizeof(float));
            std::memcpy(key + d, made + 2 * d + at, d_head * sizeof(float));
        }
        for (int j = 0; j < row.n_new; ++j) {
            const int place = begins_[index] + j;
            kernels_.attend_self({entries, known + j + 1, static_cast<size_t>(d), projected_[place] + at,
                                  1.0f / std::sqrt(static_cast<float>(d_head)), d_head,
                                  work_.weights[worker.index].data(), attention_[place] + at});
        }
    }

    // Cross-attention, head by head and audio by audio.
    void cross_attention(Worker& worker, int layer) const {
        const int n_groups = static_cast<int>(groups_.size());
        worker.each(n_groups * dims_.n_head, [&](int task) {
            cross_attention_head(worker, layer, groups_[task % n_groups], task / n_groups);
        });
    }

    void cross_attention_head(Worker& worker, int layer, const QueryGroup& group, int head) const {
        const RowStep& row = *group.row;
        const int d_head = dims_.d_head();
        const AudioShape shape{dims_.n_head, d_head, row.audio->n_frames};
        CrossAttention a{};
        a.keys = row.audio->keys[layer] + head * shape.head_size();
        a.values = row.audio->values[layer] + head * shape.head_size();
        a.first_frame = row.first_frame;
        a.last_frame = row.last_frame;
        a.first_block = row.first_frame / kBlock;
        a.last_block = (row.last_frame + kBlock - 1) / kBlock;
        a.bias = row.bias;
        a.n_queries = group.last - group.first;
        a.queries = projected_[group.first] + head * d_head;
        a.query_stride = projected_.stride;
        a.scale = 1.0f / std::sqrt(static_cast<float>(d_head));
        a.d_head = d_head;
        a.d_pad = shape.d_pad();
        a.weights = work_.weights[worker.index].data();
        a.weights_stride = static_cast<size_t>(a.last_block - a.first_block) * kBlock;
        a.out = attention_[group.first] + head * d_head;
        a.out_stride = attention_.stride;
        kernels_.attend_cross(a);
        for (size_t i = 0; i < request_.captured.size(); ++i)
            if (request_.captured[i].layer == layer && request_.captured[i].head == head) capture(a, group, i);
    }

    void capture(const CrossAttention& a, const QueryGroup& group, size_t index) const {
        const int first = a.first_block * kBlock;
        const int known = std::min(a.last_block * kBlock, group.row->audio->n_frames);
        for (int q = 0; q < a.n_queries; ++q) {
            const size_t place = index * n_ + static_cast<size_t>(group.first) + q;
            float* to = request_.attention + place * request_.longest;
            std::fill(to, to + first, 0.0f);
            std::copy_n(a.weights + q * a.weights_stride, known - first, to + first);
            std::fill(to + known, to + request_.longest, 0.0f);
        }
    }

    // Logits of the places that are wanted.
    void compute_logits(Worker& worker) const {
        const int n_wanted = static_cast<int>(request_.wanted.size());
        worker.each(n_wanted, [&](int i) {
            kernels_.layer_norm(x_[request_.wanted[i]], decoder_.norm.weight, decoder_.norm.bias,
                                dims_.n_state, wanted_row(i));
        });
        const Table& table = decoder_.embedding;
        const Rows normed{wanted_row(0), static_cast<size_t>(dims_.n_state)};
        if (panels_.empty()) {
            const Rows out{request_.logits, static_cast<size_t>(dims_.n_vocab)};
            linear(kernels_, worker, work_.buffers, nullptr, normed, n_wanted, table, out, Epilogue::store);
            if (request_.choice.n_best) worker.each(n_wanted, [&](int i) { choose(i); });
        } else {
            restricted_logits(worker, table, normed, n_wanted);
        }
    }

    void choose(int i) const {
        const ChoiceRequest& choice = request_.choice;
        const TokenRule& rule = choice.rules[i];
        float* logits = request_.logits + static_cast<size_t>(i) * dims_.n_vocab;
        for (int32_t token : choice.forbidden) logits[token] = -INFINITY;
        const size_t at = static_cast<size_t>(i) * choice.n_best;
        choice.is_clear[i] = kernels_.choose({logits, rule.first_text, choice.time_begin, rule.first_time,
                                              rule.last_time, choice.n_best, choice.best + at, choice.tokens + at});
    }

    float* wanted_row(int i) const { return projected_.data + static_cast<size_t>(i) * dims_.n_state; }

    void restricted_logits(Worker& worker, const Table& table, Rows normed, int n_wanted) const {
        const Activations rows = quantize_rows(kernels_, worker, work_.buffers, nullptr, normed, n_wanted, table);
        const size_t n_vocab = dims_.n_vocab;
        const Product product{table, rows, n_wanted, work_.logits.data(), n_vocab, Epilogue::store};
        worker.each(static_cast<int>(panels_.size()),
                    [&](int i) { kernels_.multiply(product, panels_[i], panels_[i] + 1); });
        const size_t n_rows = request_.vocabulary.size();
        worker.each(n_wanted, [&](int i) {
            for (size_t j = 0; j < n_rows; ++j)
                request_.logits[i * n_rows + j] = work_.logits[i * n_vocab + request_.vocabulary[j]];
        });
    }
};

}  // namespace

Decoder::Decoder(const DecoderDims& dims) : dims(dims), layers(dims.n_layer) {}

Decoder::~Decoder() = default;

std::unique_ptr<Workspace> Decoder::take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
}

void Decoder::give(std::unique_ptr<Workspace> workspace) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(workspace));
}

void Decoder::step(const StepRequest& request) {
    int n = 0, longest_row = 0, n_frames = 0;
    for (const RowStep& row : request.rows) {
        n += row.n_new;
        longest_row = std::max(longest_row, row.row->n_tokens() + row.n_new);
        n_frames = std::max(n_frames, row.audio->n_frames);
    }
    auto workspace = take();
    const int n_wanted = static_cast<int>(request.wanted.size());
    workspace->resize(dims, std::max(n, n_wanted), n_wanted, longest_row, n_frames, request.n_threads);
    std::vector<KvEntry> made;
    const size_t entry_size = static_cast<size_t>(dims.n_layer) * 2 * dims.n_state;
    for (int i = 0; i < n; ++i) made.emplace_back(new float[entry_size]);
    const Step step(*this, request, *workspace);
    for (const RowStep& row : request.rows) row.row->entries.reserve(row.row->entries.size() + row.n_new);
    auto next = made.begin();
    for (const RowStep& row : request.rows)
        for (int i = 0; i < row.n_new; ++i) row.row->entries.push_back(std::move(*next++));
    run_together(request.n_threads, [&](Worker& worker) { step.run(worker); });
    give(std::move(workspace));
}

void Decoder::cross_keys_values(const float* states, int n_frames, uint16_t* const* keys, uint16_t* const* values,
                     int n_threads) {
    constexpr int kFramesAtOnce = 256;
    const AudioShape shape{dims.n_head, dims.d_head(), n_frames};
    auto workspace = take();
    workspace->resize(dims, std::min(n_frames, kFramesAtOnce), 0, 0, kBlock, n_threads);
    Workspace& work = *workspace;
    const size_t d = dims.n_state;
    const Kernels& kernels = kernels_in_use();
    run_together(n_threads, [&](Worker& worker) {
        for (int first = 0; first < n_frames; first += kFramesAtOnce) {
            const int n = std::min(kFramesAtOnce, n_frames - first);
            const Rows from{const_cast<float*>(states) + first * d, d}, to{work.projected.data(), 4 * d};
            for (int layer = 0; layer < dims.n_layer; ++layer) {
                const Table& table = layers[layer].cross_key_value;
                linear(kernels, worker, work.buffers, nullptr, from, n, table, to, Epilogue::store);
                worker.share(n, kBlock, [&](int begin, int end) {
                    pack_keys(shape, to[begin], to.stride, first + begin, first + end, keys[layer]);
                    pack_values(shape, to[begin] + d, to.stride, first + begin, first + end, values[layer]);
                });
            }
        }
    });
    give(std::move(workspace));
}

}  // namespace sottovoce
