#include "audio.h"

namespace sottovoce {

namespace {

uint16_t word(float value) { return to_bfloat16(value); }
uint16_t word(uint16_t value) { return value; }

template <class Number>
void lay_keys(const AudioShape& shape, const Number* rows, size_t stride, int first, int last, uint16_t* keys) {
    const int d_pad = shape.d_pad();
    for (int t = first; t < last; ++t)
        for (int head = 0; head < shape.n_head; ++head) {
            const Number* from = rows + static_cast<size_t>(t - first) * stride + head * shape.d_head;
            uint16_t* block = keys + head * shape.head_size() + static_cast<size_t>(t / kBlock) * kBlock * d_pad;
            for (int i = 0; i < shape.d_head; ++i) block[(i / 2 * kBlock + t % kBlock) * 2 + i % 2] = word(from[i]);
        }
}

template <class Number>
void lay_values(const AudioShape& shape, const Number* rows, size_t stride, int first, int last, uint16_t* values) {
    const int d_pad = shape.d_pad();
    for (int t = first; t < last; ++t)
        for (int head = 0; head < shape.n_head; ++head) {
            const Number* from = rows + static_cast<size_t>(t - first) * stride + head * shape.d_head;
            uint16_t* pair = values + head * shape.head_size() + static_cast<size_t>(t / 2) * d_pad * 2;
            for (int i = 0; i < shape.d_head; ++i) pair[2 * i + t % 2] = word(from[i]);
        }
}

}  // namespace

void pack_keys(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* keys) {
    lay_keys(shape, rows, stride, first, last, keys);
}

void pack_keys(const AudioShape& shape, const uint16_t* rows, size_t stride, int first, int last, uint16_t* keys) {
    lay_keys(shape, rows, stride, first, last, keys);
}

void pack_values(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* values) {
    lay_values(shape, rows, stride, first, last, values);
}

void pack_values(const AudioShape& shape, const uint16_t* rows, size_t stride, int first, int last, uint16_t* values) {
    lay_values(shape, rows, stride, first, last, values);
}

}  // namespace sottovoce
