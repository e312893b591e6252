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

// A linear layer: its table, the scales of its outputs, its bias.
class Packed {
public:
    Packed() = default;

    // weight: (n_out, n_in) float32. bias: (n_out), or nothing.
    Packed(const float* weight, const float* bias, int n_out, int n_in);

    Table table() const;
    int n_out() const { return n_out_; }
    int n_in() const { return n_in_; }
    int depth() const { return padded(n_in_, kDepth); }

    // One row of the table as numbers (n_in).
    void row(int at, float* to) const;

private:
    int n_out_ = 0, n_in_ = 0;
    Block values_;
    std::vector<float> scales_, bias_;
    std::vector<int32_t> sums_;

    size_t place(int output, int input) const;
};

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
