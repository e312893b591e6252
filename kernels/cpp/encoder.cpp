#include "encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "rows.h"

namespace sottovoce {

namespace {

constexpr int kRows = 96;      // that one thread takes through a layer at a time, at most
constexpr int kTogether = 12;  // rows that are multiplied together
constexpr int kQueries = 192;  // of one head that one thread takes at a time

void grow(Block& block, size_t bytes) {
    if (block.size() < bytes) block = Block(bytes);
}

// Rows of a block, so that every thread has some.
int block_rows(int n_rows, int n_threads) {
    return std::clamp(padded((n_rows + n_threads - 1) / n_threads, kTogether), kTogether, kRows);
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
    Block mel, convolved;              // pairs: frames around those of the runs
    Block queries;                     // pairs, (n_rows, n_head, d_pad / 2)
    Block keys, values;                // of each window and head, as audio.h says
    Block attended;                    // (n_rows, n_state)
    std::vector<BlockBuffers> blocks;  // of each thread
};

namespace {

constexpr float kLog2E = 1.44269504088896341f;

// Rows [first, first + n) of a window.
struct RowBlock {
    int window, first, n;
};

// Queries [first, first + n) of one head of a window.
struct HeadTask {
    int window, head, first, n;
};

// Where the parts of a window lie in the workspace, in rows and in numbers.
struct WindowPlace {
    size_t mel, convolved, row, keys;
    AudioShape shape;           // of its keys and values
    std::vector<float> biases;  // of its frames, to logits of base 2
};

// Windows on their way through the encoder; its methods are run by every thread.
class Encoding {
public:
    Encoding(const Encoder& encoder, const std::vector<EncoderWindow>& windows, EncoderWorkspace& work, int n_threads)
        : encoder_(encoder), dims_(encoder.dims), windows_(windows), work_(work), kernels_(kernels_in_use()),
          native_(*kernels_.encoder), pair_(native_.bytes_a_pair), d_(dims_.n_state) {
        int n_rows = 0, n_columns = 0;
        for (const EncoderWindow& window : windows) {
            n_rows += window.n_rows();
            n_columns += 2 * window.n_run + 1;
        }
        block_ = block_rows(n_rows, n_threads);
        column_block_ = block_rows(n_columns, n_threads);
        WindowPlace end{};
        for (const EncoderWindow& window : windows) {
            end.shape = {dims_.n_head, dims_.d_head(), window.n_attended()};
            end.biases.clear();
            for (int t = 0; window.log_weights && t < window.n_attended(); ++t)
                end.biases.push_back(kLog2E * window.log_weights[t]);
            places_.push_back(end);
            plan(static_cast<int>(places_.size()) - 1);
            end.mel += 2 * window.n_run + 3;
            end.convolved += 2 * window.n_run + 1;
            end.row += window.n_rows();
            end.keys += dims_.n_head * end.shape.head_size();
        }
        grow(work.mel, end.mel * mel_pairs() * pair_);
        grow(work.convolved, end.convolved * state_pairs() * pair_);
        grow(work.queries, end.row * query_stride() * pair_);
        grow(work.keys, end.keys * sizeof(uint16_t));
        grow(work.values, end.keys * sizeof(uint16_t));
        grow(work.attended, end.row * d_ * sizeof(float));
    }

    void run(Worker& worker) const {
        zero_keys(worker);
        lay_mel(worker);
        worker.barrier();
        each(worker, columns_, [&](RowBlock rows) { convolve_mel(worker, rows); });
        worker.barrier();
        each(worker, rows_, [&](RowBlock rows) { embed(rows); });
        for (int layer = 0; layer < dims_.n_layer; ++layer) {
            each(worker, rows_, [&](RowBlock rows) { project(worker, layer, rows); });
            lay_cached(worker, layer);
            worker.barrier();
            each(worker, tasks_, [&](HeadTask task) { attend(task); });
            worker.barrier();
            each(worker, rows_, [&](RowBlock rows) { finish_layer(worker, layer, rows); });
        }
        each(worker, rows_, [&](RowBlock rows) {
            for (int r = 0; r < rows.n; ++r) norm(encoder_.norm, state(rows)[r], state(rows)[r]);
        });
    }

private:
    const Encoder& encoder_;
    const EncoderDims& dims_;
    const std::vector<EncoderWindow>& windows_;
    EncoderWorkspace& work_;
    const Kernels& kernels_;
    const EncoderKernels& native_;
    const size_t pair_;
    const int d_;
    int block_ = kRows, column_block_ = kRows;
    std::vector<WindowPlace> places_;
    std::vector<RowBlock> columns_, rows_;  // blocks of the first convolution, and of all that follows
    std::vector<HeadTask> tasks_;

    size_t mel_pairs() const { return (dims_.n_mels + 1) / 2; }
    size_t state_pairs() const { return d_ / 2; }
    int d_pad() const { return AudioShape{1, dims_.d_head(), 1}.d_pad(); }
    size_t query_stride() const { return static_cast<size_t>(dims_.n_head) * (d_pad() / 2); }
    BlockBuffers& buffers(const Worker& worker) const { return work_.blocks[worker.index]; }

    void plan(int window) {
        const int n_rows = windows_[window].n_rows(), n_columns = 2 * windows_[window].n_run + 1;
        for (int at = 0; at < n_columns; at += column_block_)
            columns_.push_back({window, at, std::min(column_block_, n_columns - at)});
        for (int at = 0; at < n_rows; at += block_) rows_.push_back({window, at, std::min(block_, n_rows - at)});
        for (int head = 0; head < dims_.n_head; ++head)  // head by head, so that its keys and values stay near
            for (int at = 0; at < n_rows; at += kQueries)
                tasks_.push_back({window, head, at, std::min(kQueries, n_rows - at)});
    }

    // This thread's part of some things: the same blocks of rows in every layer.
    template <class Thing, class Work>
    static void each(const Worker& worker, const std::vector<Thing>& things, const Work& work) {
        const int n = static_cast<int>(things.size());
        for (int at = worker.first(n); at < worker.last(n); ++at) work(things[at]);
    }

    Rows state(RowBlock rows) const {
        const size_t d = d_;
        return {windows_[rows.window].states + rows.first * d, d};
    }

    void norm(const Norm& by, const float* from, float* to) const {
        kernels_.layer_norm(from, by.weight.data(), by.bias.data(), d_, to);
    }

    // Frames of pairs before the first convolution, from column 2 * start - 2 on, and behind it, from the next on.
    char* mel_frame(int window, int at) const {
        return work_.mel.as<char>() + (places_[window].mel + at) * mel_pairs() * pair_;
    }
    char* convolved_frame(int window, int at) const {
        return work_.convolved.as<char>() + (places_[window].convolved + at) * state_pairs() * pair_;
    }

    void zero_keys(const Worker& worker) const {  // what pads heads and the last block must be zeros
        for (const Block* block : {&work_.keys, &work_.values}) {
            const size_t n = block->size(), first = n * worker.index / worker.count;
            std::memset(block->as<char>() + first, 0, n * (worker.index + 1) / worker.count - first);
        }
    }

    void lay_mel(const Worker& worker) const {
        std::vector<float> frame(dims_.n_mels);
        for (size_t w = 0; w < windows_.size(); ++w) {
            const EncoderWindow& window = windows_[w];
            const int n = 2 * window.n_run + 3;
            for (int at = worker.first(n); at < worker.last(n); ++at) {
                const int column = 2 * window.start - 2 + at;
                const bool inside = column >= 0 && column < window.n_columns;
                for (int m = 0; m < dims_.n_mels; ++m)
                    frame[m] = inside ? window.mel[m * window.mel_stride + column] : 0.0f;
                native_.fill(frame.data(), dims_.n_mels, 1.0f, mel_frame(static_cast<int>(w), at));
            }
        }
    }

    void convolve(const PackedPairs& table, const void* rows, size_t stride, int n, float* out) const {
        const PairProduct product{table.table(), rows, stride, n, out, static_cast<size_t>(d_), Epilogue::gelu};
        native_.multiply(product, 0, product.table.n_panels());
    }

    void convolve_mel(const Worker& worker, RowBlock rows) const {
        float* out = buffers(worker).normed.as<float>();
        convolve(encoder_.first_convolution, mel_frame(rows.window, rows.first), mel_pairs(), rows.n, out);
        for (int r = 0; r < rows.n; ++r)
            native_.fill(out + static_cast<size_t>(r) * d_, d_, 1.0f, convolved_frame(rows.window, rows.first + r));
        if (!windows_[rows.window].start && !rows.first)  // before a window the second convolution sees zeros
            std::memset(convolved_frame(rows.window, 0), 0, state_pairs() * pair_);
    }

    // Rows of the run by the second convolution, single frames as far padding is, all at their positions.
    void embed(RowBlock rows) const {
        const EncoderWindow& window = windows_[rows.window];
        const Rows out = state(rows);
        const int n_run = std::max(0, std::min(rows.n, window.n_run - rows.first));
        if (n_run)
            convolve(encoder_.second_convolution, convolved_frame(rows.window, 2 * rows.first), 2 * state_pairs(),
                     n_run, out.data);
        for (int r = 0; r < rows.n; ++r) {
            if (r >= n_run) std::copy(encoder_.padding.begin(), encoder_.padding.end(), out[r]);
            const int at = rows.first + r;
            const size_t place = r < n_run ? window.start + at : window.places[at - window.n_run];
            const float* position = encoder_.positions.data() + place * d_;
            for (int i = 0; i < d_; ++i) out[r][i] += position[i];
        }
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
    void project(const Worker& worker, int layer, RowBlock rows) const {
        const EncoderLayer& l = encoder_.layers[layer];
        const EncoderWindow& window = windows_[rows.window];
        BlockBuffers& room = buffers(worker);
        const size_t d = d_;
        const Rows normed{room.normed.as<float>(), d}, both{room.queries_keys.as<float>(), 2 * d};
        const Rows values{room.values.as<float>(), d};
        for (int r = 0; r < rows.n; ++r) norm(l.attention_norm, state(rows)[r], normed[r]);
        apply(room, l.query_key, normed, rows.n, both, Epilogue::store);
        apply(room, l.value, normed, rows.n, values, Epilogue::store);
        pack_queries(both, rows);
        const WindowPlace& place = places_[rows.window];
        const int first = window.n_before + rows.first, last = first + rows.n;
        pack_keys(place.shape, both.data + d, both.stride, first, last, work_.keys.as<uint16_t>() + place.keys);
        pack_values(place.shape, values.data, values.stride, first, last, work_.values.as<uint16_t>() + place.keys);
        if (!window.keys_values) return;
        uint16_t* kept = window.keys_values + (static_cast<size_t>(layer) * 2 * window.n_rows() + rows.first) * d;
        for (int r = 0; r < rows.n; ++r)
            for (size_t i = 0; i < d; ++i) {
                kept[r * d + i] = to_bfloat16(both[r][d + i]);
                kept[(window.n_rows() + r) * d + i] = to_bfloat16(values[r][i]);
            }
    }

    // Keys and values that were computed before.
    void lay_cached(const Worker& worker, int layer) const {
        for (size_t w = 0; w < windows_.size(); ++w) {
            const EncoderWindow& window = windows_[w];
            lay_some(worker, places_[w], window.before, window.n_before, layer, 0);
            lay_some(worker, places_[w], window.after, window.n_after, layer, window.n_before + window.n_rows());
        }
    }

    void lay_some(const Worker& worker, const WindowPlace& place, const uint16_t* cached, int n, int layer,
                  int at) const {
        const size_t d = d_;
        const int first = worker.first(n), last = worker.last(n);
        if (first == last) return;
        const uint16_t* keys = cached + (static_cast<size_t>(layer) * 2 * n + first) * d;
        const uint16_t* values = keys + static_cast<size_t>(n) * d;
        pack_keys(place.shape, keys, d, at + first, at + last, work_.keys.as<uint16_t>() + place.keys);
        pack_values(place.shape, values, d, at + first, at + last, work_.values.as<uint16_t>() + place.keys);
    }

    char* query(int window, int row, int head) const {
        const size_t at = (places_[window].row + row) * query_stride() + static_cast<size_t>(head) * (d_pad() / 2);
        return work_.queries.as<char>() + at * pair_;
    }

    void pack_queries(Rows from, RowBlock rows) const {
        const int d_head = dims_.d_head();
        const float scale = kLog2E / std::sqrt(static_cast<float>(d_head));
        for (int r = 0; r < rows.n; ++r)
            for (int head = 0; head < dims_.n_head; ++head) {
                char* to = query(rows.window, rows.first + r, head);
                if (d_pad() > d_head) std::memset(to, 0, d_pad() / 2 * pair_);
                native_.fill(from[r] + static_cast<size_t>(head) * d_head, d_head, scale, to);
            }
    }

    void attend(HeadTask task) const {
        const WindowPlace& place = places_[task.window];
        const size_t keys = place.keys + task.head * place.shape.head_size(), d = d_;
        float* out = work_.attended.as<float>() + (place.row + task.first) * d;
        native_.attend({query(task.window, task.first, task.head), query_stride(), work_.keys.as<uint16_t>() + keys,
                        work_.values.as<uint16_t>() + keys, place.biases.empty() ? nullptr : place.biases.data(),
                        task.n, place.shape.n_frames, dims_.d_head(), d_pad(), out + task.head * dims_.d_head(), d});
    }

    // What follows attention in a layer.
    void finish_layer(const Worker& worker, int number, RowBlock rows) const {
        const EncoderLayer& layer = encoder_.layers[number];
        BlockBuffers& room = buffers(worker);
        const size_t d = d_, at = (places_[rows.window].row + rows.first) * d;
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

void Encoder::encode(const std::vector<EncoderWindow>& windows, int n_threads) {
    auto workspace = take();
    if (static_cast<int>(workspace->blocks.size()) < n_threads) workspace->blocks.resize(n_threads);
    for (BlockBuffers& room : workspace->blocks) room.resize(dims, kernels_in_use().encoder->bytes_a_pair);
    const Encoding encoding(*this, windows, *workspace, n_threads);
    run_together(n_threads, [&](Worker& worker) { encoding.run(worker); });
    give(std::move(workspace));
}

}  // namespace sottovoce
