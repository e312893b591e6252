#include "encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "rows.h"

namespace sottovoce {

namespace {

constexpr int kRows = 96;      // that one thread takes through the layers of a block: a multiple of kBlock
constexpr int kQueries = 192;  // of one head that one thread takes at a time

void grow(Block& block, size_t bytes) {
    if (block.size() < bytes) block = Block(bytes);
}

}  // namespace

// Room of one thread for a block of rows.
struct BlockBuffers {
    ActivationBuffer bytes;
    Block pairs, normed, wide, queries_keys, values;

    void resize(const EncoderDims& dims, size_t bytes_a_pair) {
        const size_t d = dims.n_state, widest = 4 * d, rows = kRows;
        bytes.resize(kRows, padded(static_cast<int>(widest), kDepth));
        grow(pairs, rows * (widest / 2 + 1) * bytes_a_pair);
        grow(normed, rows * d * sizeof(float));
        grow(wide, rows * widest * sizeof(float));
        grow(queries_keys, rows * 2 * d * sizeof(float));
        grow(values, rows * d * sizeof(float));
    }
};

struct EncoderWorkspace {
    Block mel, convolved;            // pairs, a frame of zeros before and behind each window
    Block queries;                   // pairs, (n_rows, n_head, d_pad / 2)
    Block keys, values;              // of each window and head, as audio.h says
    Block attended;                  // (n_rows, n_state)
    std::vector<BlockBuffers> blocks;  // of each thread
};

namespace {

// Rows [first, first + n) of one window.
struct RowBlock {
    int window, first, n;
};

// Windows on their way through the encoder; its methods are run by every thread.
class Encoding {
public:
    Encoding(const Encoder& encoder, const float* mel, int n_windows, int n_frames, float* states,
             EncoderWorkspace& work)
        : encoder_(encoder), dims_(encoder.dims), mel_(mel), n_windows_(n_windows), n_frames_(n_frames), states_(states),
          work_(work), kernels_(kernels_in_use()), native_(*kernels_.encoder), pair_(native_.bytes_a_pair),
          shape_{dims_.n_head, dims_.d_head(), n_frames}, d_(dims_.n_state) {
        const size_t windows = n_windows, frames = n_frames, in_mel = 2 * frames + 2;
        grow(work.mel, windows * in_mel * mel_pairs() * pair_);
        grow(work.convolved, windows * in_mel * state_pairs() * pair_);
        grow(work.queries, windows * frames * query_stride() * pair_);
        grow(work.keys, windows * window_size() * sizeof(uint16_t));
        grow(work.values, work.keys.size());
        grow(work.attended, windows * frames * d_ * sizeof(float));
    }

    void run(Worker& worker) const {
        zero_keys(worker);
        lay_mel(worker);
        worker.barrier();
        each_block(worker, 2 * n_frames_, [&](RowBlock rows) { convolve_mel(worker, rows); });
        worker.barrier();
        each_block(worker, n_frames_, [&](RowBlock rows) { convolve_frames(worker, rows); });
        for (int layer = 0; layer < dims_.n_layer; ++layer) {
            const EncoderLayer& l = encoder_.layers[layer];
            each_block(worker, n_frames_, [&](RowBlock rows) { project(worker, l, rows); });
            worker.barrier();
            attend(worker);
            worker.barrier();
            each_block(worker, n_frames_, [&](RowBlock rows) { finish_layer(worker, l, rows); });
        }
        each_block(worker, n_frames_, [&](RowBlock rows) {
            for (int r = 0; r < rows.n; ++r) norm(encoder_.norm, state(rows)[r], state(rows)[r]);
        });
    }

private:
    const Encoder& encoder_;
    const EncoderDims& dims_;
    const float* mel_;
    const int n_windows_, n_frames_;
    float* states_;
    EncoderWorkspace& work_;
    const Kernels& kernels_;
    const EncoderKernels& native_;
    const size_t pair_;
    const AudioShape shape_;  // of the keys and values of a window
    const int d_;

    size_t mel_pairs() const { return (dims_.n_mels + 1) / 2; }
    size_t state_pairs() const { return d_ / 2; }
    size_t query_stride() const { return static_cast<size_t>(dims_.n_head) * (shape_.d_pad() / 2); }
    size_t window_size() const { return dims_.n_head * shape_.head_size(); }
    BlockBuffers& buffers(const Worker& worker) const { return work_.blocks[worker.index]; }

    // This thread's blocks of rows, the same ones in every layer; a block lies in one window.
    template <class Work>
    void each_block(const Worker& worker, int n_rows, const Work& work) const {
        const int in_window = (n_rows + kRows - 1) / kRows, n_blocks = n_windows_ * in_window;
        for (int at = worker.first(n_blocks); at < worker.last(n_blocks); ++at) {
            const int first = at % in_window * kRows;
            work(RowBlock{at / in_window, first, std::min(kRows, n_rows - first)});
        }
    }

    Rows state(RowBlock rows) const {
        return {states_ + (static_cast<size_t>(rows.window) * n_frames_ + rows.first) * d_, static_cast<size_t>(d_)};
    }

    void norm(const Norm& by, const float* from, float* to) const {
        kernels_.layer_norm(from, by.weight.data(), by.bias.data(), d_, to);
    }

    // Where frame `at` of a window lies among frames of pairs; -1 and the number of frames are the zeros around it.
    char* frame(const Block& block, int window, int at, size_t n_pairs) const {
        return block.as<char>() + (static_cast<size_t>(window) * (2 * n_frames_ + 2) + at + 1) * n_pairs * pair_;
    }

    void zero_keys(const Worker& worker) const {  // what pads heads and the last block must be zeros
        for (const Block* block : {&work_.keys, &work_.values}) {
            const size_t n = block->size(), first = n * worker.index / worker.count;
            std::memset(block->as<char>() + first, 0, n * (worker.index + 1) / worker.count - first);
        }
    }

    void lay_mel(const Worker& worker) const {
        std::vector<float> column(dims_.n_mels);
        const int n = 2 * n_frames_, n_all = n_windows_ * (n + 2);
        for (int at = worker.first(n_all); at < worker.last(n_all); ++at) {
            const int window = at / (n + 2), t = at % (n + 2) - 1;
            const bool inside = t >= 0 && t < n;
            for (int m = 0; m < dims_.n_mels; ++m)
                column[m] = inside ? mel_[(static_cast<size_t>(window) * dims_.n_mels + m) * n + t] : 0.0f;
            native_.fill(column.data(), dims_.n_mels, 1.0f, frame(work_.mel, window, t, mel_pairs()));
            if (!inside) std::memset(frame(work_.convolved, window, t, state_pairs()), 0, state_pairs() * pair_);
        }
    }

    void convolve(const PackedPairs& table, const void* rows, size_t stride, int n, float* out) const {
        const PairProduct product{table.table(), rows, stride, n, out, static_cast<size_t>(d_), Epilogue::gelu};
        native_.multiply(product, 0, product.table.n_panels());
    }

    void convolve_mel(const Worker& worker, RowBlock rows) const {
        float* out = buffers(worker).normed.as<float>();
        const void* from = frame(work_.mel, rows.window, rows.first - 1, mel_pairs());
        convolve(encoder_.first_convolution, from, mel_pairs(), rows.n, out);
        for (int r = 0; r < rows.n; ++r)
            native_.fill(out + static_cast<size_t>(r) * d_, d_, 1.0f,
                         frame(work_.convolved, rows.window, rows.first + r, state_pairs()));
    }

    void convolve_frames(const Worker&, RowBlock rows) const {
        const Rows out = state(rows);
        const void* from = frame(work_.convolved, rows.window, 2 * rows.first - 1, state_pairs());
        convolve(encoder_.second_convolution, from, 2 * state_pairs(), rows.n, out.data);
        const float* position = encoder_.positions.data() + static_cast<size_t>(rows.first) * d_;
        for (size_t i = 0; i < static_cast<size_t>(rows.n) * d_; ++i) out.data[i] += position[i];
    }

    // Rows times a table of either kind.
    void apply(BlockBuffers& room, const Projection& by, Rows from, int n, Rows to, Epilogue epilogue) const {
        if (by.in_bytes()) {
            const Table table = by.bytes.table();
            const Activations rows = room.bytes.rows(table.depth, kernels_.bytes_an_activation);
            for (int r = 0; r < n; ++r)
                kernels_.quantize(from[r], table.n_in, table.depth, rows.values + r * rows.stride, rows.scales + r,
                                  rows.zeros + r);
            kernels_.multiply({table, rows, n, to.data, to.stride, epilogue}, 0, table.n_panels());
        } else {
            const PairTable table = by.pairs.table();
            char* rows = room.pairs.as<char>();
            const size_t stride = table.n_pairs;
            for (int r = 0; r < n; ++r) native_.fill(from[r], by.pairs.n_in(), 1.0f, rows + r * stride * pair_);
            native_.multiply({table, rows, stride, n, to.data, to.stride, epilogue}, 0, table.n_panels());
        }
    }

    // Queries, keys and values of some rows.
    void project(const Worker& worker, const EncoderLayer& layer, RowBlock rows) const {
        BlockBuffers& room = buffers(worker);
        const size_t d = d_;
        const Rows normed{room.normed.as<float>(), d}, both{room.queries_keys.as<float>(), 2 * d};
        const Rows values{room.values.as<float>(), d};
        for (int r = 0; r < rows.n; ++r) norm(layer.attention_norm, state(rows)[r], normed[r]);
        apply(room, layer.query_key, normed, rows.n, both, Epilogue::store);
        apply(room, layer.value, normed, rows.n, values, Epilogue::store);
        const int last = rows.first + rows.n;
        const size_t at = rows.window * window_size();
        pack_queries(both, rows);
        pack_keys(shape_, both.data + d, both.stride, rows.first, last, work_.keys.as<uint16_t>() + at);
        pack_values(shape_, values.data, values.stride, rows.first, last, work_.values.as<uint16_t>() + at);
    }

    char* query(int window, int row, int head) const {
        const size_t at = static_cast<size_t>(window) * n_frames_ + row;
        return work_.queries.as<char>() + (at * query_stride() + static_cast<size_t>(head) * (shape_.d_pad() / 2)) * pair_;
    }

    void pack_queries(Rows from, RowBlock rows) const {
        const float scale = 1.44269504088896341f / std::sqrt(static_cast<float>(shape_.d_head));  // logits of base 2
        for (int r = 0; r < rows.n; ++r)
            for (int head = 0; head < dims_.n_head; ++head) {
                char* to = query(rows.window, rows.first + r, head);
                if (shape_.d_pad() > shape_.d_head) std::memset(to, 0, shape_.d_pad() / 2 * pair_);
                native_.fill(from[r] + static_cast<size_t>(head) * shape_.d_head, shape_.d_head, scale, to);
            }
    }

    // Attention, head by head, so that its keys and values stay near.
    void attend(const Worker& worker) const {
        const int in_head = (n_frames_ + kQueries - 1) / kQueries, n_tasks = n_windows_ * dims_.n_head * in_head;
        for (int task = worker.first(n_tasks); task < worker.last(n_tasks); ++task) {
            const int window = task / in_head / dims_.n_head, head = task / in_head % dims_.n_head;
            const int first = task % in_head * kQueries;
            const size_t at = window * window_size() + head * shape_.head_size();
            float* out = work_.attended.as<float>() + (static_cast<size_t>(window) * n_frames_ + first) * d_;
            native_.attend({query(window, first, head), query_stride(), work_.keys.as<uint16_t>() + at,
                            work_.values.as<uint16_t>() + at, std::min(kQueries, n_frames_ - first), n_frames_,
                            shape_.d_head, shape_.d_pad(), out + static_cast<size_t>(head) * shape_.d_head,
                            static_cast<size_t>(d_)});
        }
    }

    // What follows attention in a layer.
    void finish_layer(const Worker& worker, const EncoderLayer& layer, RowBlock rows) const {
        BlockBuffers& room = buffers(worker);
        const size_t d = d_, at = (static_cast<size_t>(rows.window) * n_frames_ + rows.first) * d;
        const Rows x = state(rows), attended{work_.attended.as<float>() + at, d};
        const Rows normed{room.normed.as<float>(), d}, wide{room.wide.as<float>(), 4 * d};
        apply(room, layer.out, attended, rows.n, x, Epilogue::add);
        for (int r = 0; r < rows.n; ++r) norm(layer.mlp_norm, x[r], normed[r]);
        apply(room, layer.up, normed, rows.n, wide, Epilogue::gelu);
        apply(room, layer.down, wide, rows.n, x, Epilogue::add);
    }
};

}  // namespace

Encoder::Encoder(const EncoderDims& dims) : dims(dims), layers(dims.n_layer) {}

Encoder::~Encoder() = default;

std::unique_ptr<EncoderWorkspace> Encoder::take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<EncoderWorkspace>();
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
}

void Encoder::give(std::unique_ptr<EncoderWorkspace> workspace) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(workspace));
}

void Encoder::encode(const float* mel, int n_windows, int n_frames, float* states, int n_threads) {
    auto workspace = take();
    if (static_cast<int>(workspace->blocks.size()) < n_threads) workspace->blocks.resize(n_threads);
    for (BlockBuffers& room : workspace->blocks) room.resize(dims, kernels_in_use().encoder->bytes_a_pair);
    const Encoding encoding(*this, mel, n_windows, n_frames, states, *workspace);
    run_together(n_threads, [&](Worker& worker) { encoding.run(worker); });
    give(std::move(workspace));
}

}  // namespace sottovoce
