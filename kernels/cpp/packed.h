// Tables of weights in eight bits, laid out for the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace sottovoce {

// The whole number next to x, of two the even one, for |x| below 2^22: an addition where `nearbyint` is a call.
inline float nearest_whole(float x) {
    constexpr float kBigger = 12582912.0f;  // whole numbers alone lie around it
    return (x + kBigger) - kBigger;
}

// Memory that begins at a cache line; large pages where the system has them.
class Block {
public:
    Block() = default;
    explicit Block(size_t bytes);

    template <class T>
    T* as() const { return static_cast<T*>(memory_.get()); }
    size_t size() const { return size_; }

private:
    struct Free {
        void operator()(void* memory) const;
    };
    std::unique_ptr<void, Free> memory_;
    size_t size_ = 0;
};

// Places and numbers of packed tables, of eight bits and of words. Raise it whenever either changes: tables that were
// packed before are no longer read.
constexpr int kPackedLayout = 1;

// Where the parts of a packed table lie, in bytes: its values, one row of them after the other in panels, then for each
// output the scale, the bias and (in eight bits) the sum.
struct PackedShape {
    int n_out, n_in, bytes_a_value;

    int depth() const { return padded(n_in, bytes_a_value == 1 ? kDepth : 2); }
    size_t n_padded() const { return padded(n_out, kPanel); }
    size_t scales() const { return n_padded() * depth() * bytes_a_value; }
    size_t biases() const { return scales() + n_padded() * sizeof(float); }
    size_t sums() const { return biases() + n_padded() * sizeof(float); }
    size_t size() const { return bytes_a_value == 1 ? sums() + n_padded() * sizeof(int32_t) : sums(); }
};

// Pack rows [first, first + n) of a table in eight bits. rows: (n, n_in) float32. bias: (n), or nothing. memory: of the
// whole table, zeros before.
void pack_bytes(const PackedShape& shape, const float* rows, const float* bias, int first, int n, uint8_t* memory);

// The table that lies in memory, which must stay where it is.
Table table_in_bytes(const PackedShape& shape, const uint8_t* memory);

// One row of a table as numbers (n_in).
void unpack_row(const Table& table, int row, float* to);

// Room for rows of activations, of any instruction set.
class ActivationBuffer {
public:
    // Room for so many rows of so many numbers; what was there is lost.
    void resize(int n_rows, int depth);

    // The rows, for kernels that take so many bytes for each number.
    Activations rows(int depth, int bytes_an_activation) const;

private:
    Block values_;
    std::vector<float> scales_;
    std::vector<int32_t> zeros_;
};

}  // namespace sottovoce
