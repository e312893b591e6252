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
    std::vector<std::shared_ptr<Block>> key_pages;  // of one layer, for windows whose frames are not kept
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

// Where the parts of a window lie in the workspace, in rows, and its keys and values.
struct WindowPlace {
    size_t mel, convolved, row;
    std::vector<char*> pages;
    std::vector<const char*> kept;  // pages computed before
    std::vector<float> biases;      // of its keys, to logits of base 2
};

// Windows on their way through the encoder; its methods are run by every thread.
class Encoding {
public:
    Encoding(const Encoder& encoder, const std::vector<EncoderWindow>& windows, EncoderWorkspace& work, int n_threads)
        : encoder_(encoder), dims_(encoder.dims), windows_(windows), work_(work), kernels_(kernels_in_use()),
          native_(*kernels_.encoder), d_(dims_.n_state),
          shape_{dims_.n_layer, dims_.n_head, dims_.d_head()} {
        int n_rows = 0, n_columns = 0;
        for (const EncoderWindow& window : windows) {
            n_rows += window.n_rows();
            n_columns += 2 * window.n_run + 1;
        }
        block_ = block_rows(n_rows, n_threads);
        column_block_ = block_rows(n_columns, n_threads);
        WindowPlace end{};
        size_t n_pages = 0;  // taken from the workspace
        for (const EncoderWindow& window : windows) {
            end.biases = key_biases(window.n_attended(), window.log_weights, kLog2E);
            place_keys(window, end, n_pages);
            places_.push_back(end);
            plan(static_cast<int>(places_.size()) - 1);
            end.mel += 2 * window.n_run + 3;
            end.convolved += 2 * window.n_run + 1;
            end.row += window.n_rows();
        }
        grow(work.mel, end.mel * dims_.n_mels * sizeof(float));
        grow(work.convolved, end.convolved * d_ * sizeof(float));
        for (Block* rows : {&work.queries, &work.attended}) grow(*rows, end.row * d_ * sizeof(float));
    }

    void run(Worker& worker) const {
        copy_kept(worker);
        lay_mel(worker);
        each(worker, columns_, [&](RowBlock rows) { convolve_mel(worker, rows); });
        for (int layer = 0; layer <= dims_.n_layer; ++layer) {
            const bool is_last = layer == dims_.n_layer;
            each(worker, rows_, [&](RowBlock rows) {  // everything between two attentions
                layer ? finish_layer(worker, layer - 1, rows) : embed(worker, rows);
                is_last ? finish(rows) : project(worker, layer, rows);
            });
            if (!is_last) each(worker, tasks_, [&](HeadTask task) { attend(layer, task); });
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
    const PageShape shape_;
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

    // A window whose frames are not kept has the keys and values of one layer at a time.
    static int layer_in(const EncoderWindow& window, int layer) { return window.frames ? layer : 0; }

    static std::shared_ptr<Block> zeros(size_t bytes) {
        auto page = std::make_shared<Block>(bytes);
        std::memset(page->as<char>(), 0, bytes);
        return page;
    }

    // Give a window its pages: those before the first frame that changes are shared.
    void place_keys(const EncoderWindow& window, WindowPlace& place, size_t& n_taken) const {
        const size_t n_pages = (window.n_attended() + kKeyPage - 1) / kKeyPage;
        place.pages.clear();
        place.kept.clear();
        if (!window.frames) {
            for (; place.pages.size() < n_pages; ++n_taken) {
                if (n_taken == work_.key_pages.size()) work_.key_pages.push_back(zeros(shape_.at(1, 0)));
                place.pages.push_back(work_.key_pages[n_taken]->as<char>());
            }
            return;
        }
        std::vector<std::shared_ptr<const Block>> pages;
        if (window.kept) {
            for (const auto& page : window.kept->pages) place.kept.push_back(page->as<char>());
            pages.assign(window.kept->pages.begin(), window.kept->pages.begin() + window.n_before / kKeyPage);
        }
        while (pages.size() < n_pages) pages.push_back(zeros(shape_.bytes()));
        for (const auto& page : pages) place.pages.push_back(page->as<char>());
        if (window.n_before % kKeyPage) {  // a page of frames that are kept and of others
            const int page = window.n_before / kKeyPage;
            std::memcpy(place.pages[page], place.kept[page], shape_.bytes());
        }
        window.frames->pages = std::move(pages);
    }

    void copy_kept(Worker& worker) const {  // the frames behind all
        for (size_t w = 0; w < windows_.size(); ++w) {
            const EncoderWindow& window = windows_[w];
            worker.each(window.n_after, [&](int i) {
                copy_frame(shape_, places_[w].kept.data(), window.first_after + i, places_[w].pages.data(),
                           window.n_before + window.n_rows() + i);
            });
        }
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
        for (int r = 0; r < rows.n; ++r) {
            std::copy(both[r], both[r] + d, work_.queries.as<float>() + (place.row + rows.first + r) * d);
            lay_frame(native_, shape_, layer_in(window, layer), both[r] + d, values[r], window.n_before + rows.first + r,
                      place.pages.data());
        }
    }

    void attend(int layer, HeadTask task) const {
        const WindowPlace& place = places_[task.window];
        const EncoderWindow& window = windows_[task.window];
        const size_t d = d_, at = (place.row + task.first) * d + static_cast<size_t>(task.head) * dims_.d_head();
        const WordHead head{place.pages.data(), shape_.at(layer_in(window, layer), task.head), shape_.d_pad()};
        native_.attend({work_.queries.as<float>() + at, d, kLog2E / std::sqrt(static_cast<float>(dims_.d_head())), head,
                        place.biases.data(), task.n, window.n_attended(), dims_.d_head(), work_.attended.as<float>() + at,
                        d});
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
