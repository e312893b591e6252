#include "packed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sottovoce {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kLargePage = size_t{1} << 21;

void* allocate(size_t bytes) {
    const size_t line = bytes >= 2 * kLargePage ? kLargePage : kLine;
    const size_t whole = (bytes + line - 1) / line * line;
#if defined(_MSC_VER) || defined(__MINGW32__)
    void* memory = _aligned_malloc(whole, line);
#else
    void* memory = nullptr;
    if (posix_memalign(&memory, line, whole) != 0) memory = nullptr;
#endif
    if (!memory) throw std::bad_alloc();
#if defined(__linux__)
    if (line == kLargePage) madvise(memory, whole, MADV_HUGEPAGE);
#endif
    return memory;
}

// The largest of |x|, in lanes that compilers put into registers.
float largest_of(const float* x, int n) {
    constexpr int kLanes = 16;
    float lanes[kLanes] = {0.0f};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j) {
            const float size = std::fabs(x[i + j]);
            lanes[j] = lanes[j] < size ? size : lanes[j];
        }
    for (; i < n; ++i) lanes[0] = std::max(lanes[0], std::fabs(x[i]));
    return *std::max_element(lanes, lanes + kLanes);
}

// Numbers times `inverse` as bytes up to 127, and their sum.
int32_t fill_bytes(const float* x, int n, float inverse, int8_t* bytes) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
        const float near = std::min(127.0f, std::max(-127.0f, nearest_whole(x[i] * inverse)));
        const auto value = static_cast<int32_t>(near);
        bytes[i] = static_cast<int8_t>(value);
        sum += value;
    }
    return sum;
}

}  // namespace

Block::Block(size_t bytes) : memory_(allocate(std::max<size_t>(bytes, 1))), size_(bytes) {}

void Block::Free::operator()(void* memory) const {
#if defined(_MSC_VER) || defined(__MINGW32__)
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

namespace {

// Of the first input of four.
size_t place(int output, int input, int depth) {
    const size_t panel = static_cast<size_t>(output / kPanel) * kPanel * depth;
    return panel + (static_cast<size_t>(input / kQuad) * kPanel + output % kPanel) * kQuad + input % kQuad;
}

}  // namespace

void pack_bytes(const PackedShape& shape, const float* rows, const float* bias, int first, int n, uint8_t* memory) {
    auto* values = reinterpret_cast<int8_t*>(memory);
    auto* scales = reinterpret_cast<float*>(memory + shape.scales());
    auto* biases = reinterpret_cast<float*>(memory + shape.biases());
    auto* sums = reinterpret_cast<int32_t*>(memory + shape.sums());
    std::vector<int8_t> bytes_of_row(padded(shape.n_in, kQuad));
    for (int r = 0; r < n; ++r) {
        const int output = first + r;
        const float* row = rows + static_cast<size_t>(r) * shape.n_in;
        const float largest = largest_of(row, shape.n_in);
        scales[output] = largest > 0.0f ? largest / 127.0f : 1.0f;
        biases[output] = bias ? bias[r] : 0.0f;
        sums[output] = fill_bytes(row, shape.n_in, 1.0f / scales[output], bytes_of_row.data());
        int8_t* to = values + place(output, 0, shape.depth());
        for (int k = 0; k < shape.n_in; k += kQuad)
            std::memcpy(to + static_cast<size_t>(k) * kPanel, &bytes_of_row[k], kQuad);
    }
}

Table table_in_bytes(const PackedShape& shape, const uint8_t* memory) {
    return {reinterpret_cast<const int8_t*>(memory), reinterpret_cast<const float*>(memory + shape.scales()),
            reinterpret_cast<const int32_t*>(memory + shape.sums()),
            reinterpret_cast<const float*>(memory + shape.biases()), shape.n_out, shape.n_in, shape.depth()};
}

void unpack_row(const Table& table, int row, float* to) {
    for (int k = 0; k < table.n_in; ++k)
        to[k] = table.scales[row] * static_cast<float>(table.values[place(row, k, table.depth)]);
}

void ActivationBuffer::resize(int n_rows, int depth) {
    constexpr size_t kWidest = 2;
    const size_t n = static_cast<size_t>(padded(n_rows, kTileRows));
    const size_t bytes = n * depth * kWidest;
    if (bytes > values_.size()) {
        values_ = Block(bytes);
        std::memset(values_.as<uint8_t>(), 0, bytes);
    }
    if (n > scales_.size()) {
        scales_.resize(n);
        zeros_.resize(n);
    }
}

Activations ActivationBuffer::rows(int depth, int bytes_an_activation) const {
    const size_t stride = static_cast<size_t>(depth) * bytes_an_activation;
    return {values_.as<uint8_t>(), stride, const_cast<float*>(scales_.data()), const_cast<int32_t*>(zeros_.data())};
}

}  // namespace sottovoce
