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

Packed::Packed(const float* weight, const float* bias, int n_out, int n_in) : n_out_(n_out), n_in_(n_in) {
    const int n_padded = padded(n_out, kPanel);
    const size_t bytes = static_cast<size_t>(n_padded) * depth();
    values_ = Block(bytes);
    scales_.assign(n_padded, 0.0f);
    bias_.assign(n_padded, 0.0f);
    sums_.assign(n_padded, 0);
    if (bias) std::copy(bias, bias + n_out, bias_.begin());
    int8_t* values = values_.as<int8_t>();
    std::memset(values, 0, bytes);
    std::vector<int8_t> bytes_of_row(padded(n_in, kQuad));
    for (int n = 0; n < n_out; ++n) {
        const float* row = weight + static_cast<size_t>(n) * n_in;
        const float largest = largest_of(row, n_in);
        scales_[n] = largest > 0.0f ? largest / 127.0f : 1.0f;
        sums_[n] = fill_bytes(row, n_in, 1.0f / scales_[n], bytes_of_row.data());
        int8_t* to = values + place(n, 0);
        for (int k = 0; k < n_in; k += kQuad)
            std::memcpy(to + static_cast<size_t>(k) * kPanel, &bytes_of_row[k], kQuad);
    }
}

Table Packed::table() const {
    return {values_.as<int8_t>(), scales_.data(), sums_.data(), bias_.data(), n_out_, n_in_, depth()};
}

size_t Packed::place(int output, int input) const {
    const size_t panel = static_cast<size_t>(output / kPanel) * kPanel * depth();
    return panel + (static_cast<size_t>(input / kQuad) * kPanel + output % kPanel) * kQuad + input % kQuad;
}

void Packed::row(int at, float* to) const {
    const int8_t* values = values_.as<int8_t>();
    for (int k = 0; k < n_in_; ++k) to[k] = scales_[at] * static_cast<float>(values[place(at, k)]);
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
