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
    Block words, scales, normed, wide, queries_keys, values;

    void resize(const EncoderDims& dims) {
        const size_t d = dims.n_state, widest = 4 * d, rows = kRows;
        bytes.resize(kRows, padded(static_cast<int>(widest), kDepth));
        grow(words, rows * padded(std::max(4 * dims.n_state, 3 * dims.n_mels), 2) * sizeof(int16_t));
        grow(scales, rows * sizeof(float));
        grow(normed, rows * d * sizeof(float));
        grow(wide, rows * widest * sizeof(float));
        grow(queries_keys, rows * 2 * d * sizeof(float));
        grow(values, rows * d * sizeof(float));
    }
};

struct EncoderWorkspace {
    Block mel, convolved;             // frames around those of the runs
    Block queries, attended;          // (n_rows, n_state)
    Block keys, values;               // words of each window and head
    Block key_scales, value_scales;
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
    size_t mel, convolved, row, keys, scales;
    WordShape shape;            // of its keys and values
    std::vector<float> biases;  // of its keys, to logits of base 2
};

// Windows on their way through the encoder; its methods are run by every thread.
class Encoding {
public:
    Encoding(const Encoder& encoder, const std::vector<EncoderWindow>& windows, EncoderWorkspace& work, int n_threads)
        : encoder_(encoder), dims_(encoder.dims), windows_(windows), work_(work), kernels_(kernels_in_use()),
          native_(*kernels_.encoder), d_(dims_.n_state) {
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
            end.biases = key_biases(end.shape, window.log_weights, kLog2E);
            places_.push_back(end);
            plan(static_cast<int>(places_.size()) - 1);
            end.mel += 2 * window.n_run + 3;
            end.convolved += 2 * window.n_run + 1;
            end.row += window.n_rows();
            end.keys += dims_.n_head * end.shape.head_size();
            end.scales += dims_.n_head * end.shape.n_scales();
        }
        grow(work.mel, end.mel * dims_.n_mels * sizeof(float));
        grow(work.convolved, end.convolved * d_ * sizeof(float));
        for (Block* rows : {&work.queries, &work.attended}) grow(*rows, end.row * d_ * sizeof(float));
        for (Block* words : {&work.keys, &work.values}) grow(*words, end.keys * sizeof(int16_t));
        for (Block* scales : {&work.key_scales, &work.value_scales}) grow(*scales, end.scales * sizeof(float));
    }

    void run(Worker& worker) const {
        zero_keys(worker);
        lay_mel(worker);
        each(worker, columns_, [&](RowBlock rows) { convolve_mel(worker, rows); });
        for (int layer = 0; layer <= dims_.n_layer; ++layer) {
            const bool is_last = layer == dims_.n_layer;
            if (!is_last) lay_cached(worker, layer);
            each(worker, rows_, [&](RowBlock rows) {  // everything between two attentions
                layer ? finish_layer(worker, layer - 1, rows) : embed(worker, rows);
                is_last ? finish(rows) : project(worker, layer, rows);
            });
            if (!is_last) each(worker, tasks_, [&](HeadTask task) { attend(task); });
        }
    }

private:
    const Encoder& encoder_;
    const EncoderDims& dims_;
    const std::vector<EncoderWindow>& windows_;
    EncoderWorkspace& work_;
    const Kernels& kernels_;
    const EncoderKernels& native_;
    const int d_;
    int block_ = kRows, column_block_ = kRows;
    std::vector<WindowPlace> places_;
    std::vector<RowBlock> columns_, rows_;  // blocks of the first convolution, and of all that follows
    std::vector<HeadTask> tasks_;

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

    template <class Thing, class Work>
    static void each(Worker& worker, const std::vector<Thing>& things, const Work& work) {
        worker.each(static_cast<int>(things.size()), [&](int at) { work(things[at]); });
    }

    Rows state(RowBlock rows) const {
        const size_t d = d_;
        return {windows_[rows.window].states + rows.first * d, d};
    }

    void norm(const Norm& by, const float* from, float* to) const {
        kernels_.layer_norm(from, by.weight, by.bias, d_, to);
    }

    // Frames before the first convolution, from column 2 * start - 2 on, and behind it, from the next on.
    float* mel_frame(int window, int at) const {
        return work_.mel.as<float>() + (places_[window].mel + at) * dims_.n_mels;
    }
    float* convolved_frame(int window, int at) const {
        return work_.convolved.as<float>() + (places_[window].convolved + at) * d_;
    }

    void zero_keys(Worker& worker) const {  // what pads heads and the last block must be zeros
        const Block* const blocks[] = {&work_.keys, &work_.values, &work_.key_scales, &work_.value_scales};
        worker.each(4, [&](int at) { std::memset(blocks[at]->as<char>(), 0, blocks[at]->size()); });
    }

    void lay_mel(Worker& worker) const {
        for (int w = 0; w < static_cast<int>(windows_.size()); ++w)
            worker.share(2 * windows_[w].n_run + 3, kRows, [&](int first, int last) {
                for (int at = first; at < last; ++at) lay_mel_frame(w, at);
            });
    }

    void lay_mel_frame(int w, int at) const {
        const EncoderWindow& window = windows_[w];
        const int column = 2 * window.start - 2 + at;
        const bool inside = column >= 0 && column < window.n_columns;
        float* frame = mel_frame(w, at);
        for (int m = 0; m < dims_.n_mels; ++m) frame[m] = inside ? window.mel[m * window.mel_stride + column] : 0.0f;
    }

    void convolve_mel(const Worker& worker, RowBlock rows) const {
        const size_t n_mels = dims_.n_mels, d = d_;
        const Rows out{convolved_frame(rows.window, rows.first), d};
        multiply(buffers(worker), encoder_.first_convolution, {mel_frame(rows.window, rows.first), n_mels}, rows.n, out,
                 Epilogue::gelu);
        if (!windows_[rows.window].start && !rows.first)  // before a window the second convolution sees zeros
            std::fill(out[0], out[1], 0.0f);
    }

    // Rows of the run by the second convolution, single frames as far padding is, all at their positions.
    void embed(const Worker& worker, RowBlock rows) const {
        const EncoderWindow& window = windows_[rows.window];
        const Rows out = state(rows);
        const int n_run = std::max(0, std::min(rows.n, window.n_run - rows.first));
        if (n_run)
            multiply(buffers(worker), encoder_.second_convolution,
                     {convolved_frame(rows.window, 2 * rows.first), 2 * out.stride}, n_run, out, Epilogue::gelu);
        for (int r = 0; r < rows.n; ++r) {
            if (r >= n_run) std::copy_n(encoder_.padding, d_, out[r]);
            const int at = rows.first + r;
            const size_t place = r < n_run ? window.start + at : window.places[at - window.n_run];
            const float* position = encoder_.positions + place * d_;
            for (int i = 0; i < d_; ++i) out[r][i] += position[i];
        }
    }

    // Rows, which may overlap, times a table in words.
    void multiply(BlockBuffers& room, const WordTable& by, Rows from, int n, Rows to, Epilogue epilogue) const {
        const int depth = 2 * by.n_pairs();
        int16_t* words = room.words.as<int16_t>();
        float* scales = room.scales.as<float>();
        for (int r = 0; r < n; ++r) {
            int16_t* row = words + static_cast<size_t>(r) * depth;
            row[depth - 1] = 0;
            scales[r] = native_.fill(from[r], by.n_in, kMostActivation, row);
        }
        multiply_words(room, by, n, to, epilogue);
    }

    // The rows of words that are in the room times a table.
    void multiply_words(BlockBuffers& room, const WordTable& by, int n, Rows to, Epilogue epilogue) const {
        native_.multiply({by, room.words.as<int16_t>(), room.scales.as<float>(), n, to.data, to.stride, epilogue}, 0,
                         by.n_panels());
    }

    // Rows times a table of either kind.
    void apply(BlockBuffers& room, const Projection& by, Rows from, int n, Rows to, Epilogue epilogue) const {
        if (!by.in_bytes()) return multiply(room, by.words, from, n, to, epilogue);
        const Table& table = by.bytes;
        const Activations rows = room.bytes.rows(table.depth, kernels_.bytes_an_activation);
        for (int r = 0; r < n; ++r)
            kernels_.quantize(from[r], table.n_in, table.depth, rows.values + r * rows.stride, rows.scales + r,
                              rows.zeros + r);
        kernels_.multiply({table, rows, n, to.data, to.stride, epilogue}, 0, table.n_panels());
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
        if (l.query_key.in_bytes() || l.value.in_bytes())
            apply(room, l.value, normed, rows.n, values, Epilogue::store);
        else
            multiply_words(room, l.value.words, rows.n, values, Epilogue::store);
        const WindowPlace& place = places_[rows.window];
        const int first = window.n_before + rows.first;
        for (int r = 0; r < rows.n; ++r) {
            std::copy(both[r], both[r] + d, work_.queries.as<float>() + (place.row + rows.first + r) * d);
            lay_key(native_, place.shape, both[r] + d, first + r, keys(place));
            lay_value(native_, place.shape, values[r], first + r, this->values(place));
        }
        if (!window.keys_values) return;
        uint16_t* kept = window.keys_values + (static_cast<size_t>(layer) * 2 * window.n_rows() + rows.first) * d;
        for (int r = 0; r < rows.n; ++r)
            for (size_t i = 0; i < d; ++i) {
                kept[r * d + i] = to_bfloat16(both[r][d + i]);
                kept[(window.n_rows() + r) * d + i] = to_bfloat16(values[r][i]);
            }
    }

    // Keys and values that were computed before.
    void lay_cached(Worker& worker, int layer) const {
        for (size_t w = 0; w < windows_.size(); ++w) {
            const EncoderWindow& window = windows_[w];
            lay_some(worker, places_[w], window.before, window.n_before, layer, 0);
            lay_some(worker, places_[w], window.after, window.n_after, layer, window.n_before + window.n_rows());
        }
    }

    void lay_some(Worker& worker, const WindowPlace& place, const uint16_t* cached, int n, int layer, int at) const {
        worker.share(n, kRows, [&](int first, int last) { lay_frames(place, cached, n, layer, at, first, last); });
    }

    void lay_frames(const WindowPlace& place, const uint16_t* cached, int n, int layer, int at, int first,
                    int last) const {
        const size_t d = d_;
        std::vector<float> row(d);
        for (int t = first; t < last; ++t) {
            const uint16_t* key = cached + (static_cast<size_t>(layer) * 2 * n + t) * d;
            std::transform(key, key + d, row.begin(), from_bfloat16);
            lay_key(native_, place.shape, row.data(), at + t, keys(place));
            const uint16_t* value = key + static_cast<size_t>(n) * d;
            std::transform(value, value + d, row.begin(), from_bfloat16);
            lay_value(native_, place.shape, row.data(), at + t, values(place));
        }
    }

    WordPlaces keys(const WindowPlace& place) const {
        return {work_.keys.as<int16_t>() + place.keys, work_.key_scales.as<float>() + place.scales};
    }
    WordPlaces values(const WindowPlace& place) const {
        return {work_.values.as<int16_t>() + place.keys, work_.value_scales.as<float>() + place.scales};
    }

    void attend(HeadTask task) const {
        const WindowPlace& place = places_[task.window];
        const WordPlaces keys = this->keys(place), values = this->values(place);
        const size_t words = task.head * place.shape.head_size(), scales = task.head * place.shape.n_scales(), d = d_;
        const size_t at = (place.row + task.first) * d + static_cast<size_t>(task.head) * dims_.d_head();
        native_.attend({work_.queries.as<float>() + at, d, kLog2E / std::sqrt(static_cast<float>(dims_.d_head())),
                        {keys.words + words, values.words + words, keys.scales + scales, values.scales + scales},
                        place.biases.data(), task.n, place.shape.n_frames, dims_.d_head(), place.shape.d_pad(), work_.attended.as<float>() + at, d});
    }

    void finish(RowBlock rows) const {
        for (int r = 0; r < rows.n; ++r) norm(encoder_.norm, state(rows)[r], state(rows)[r]);
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
    for (BlockBuffers& room : workspace->blocks) room.resize(dims);
    const Encoding encoding(*this, windows, *workspace, n_threads);
    run_together(n_threads, [&](Worker& worker) { encoding.run(worker); });
    give(std::move(workspace));
}

}  // namespace sottovoce
