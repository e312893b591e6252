#include "audio.h"

namespace sottovoce {

void pack_keys(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* keys) {
    const int d_pad = shape.d_pad();
    for (int t = first; t < last; ++t)
        for (int head = 0; head < shape.n_head; ++head) {
            const float* from = rows + static_cast<size_t>(t - first) * stride + head * shape.d_head;
            uint16_t* block = keys + head * shape.head_size() + static_cast<size_t>(t / kBlock) * kBlock * d_pad;
            for (int i = 0; i < shape.d_head; ++i) block[(i / 2 * kBlock + t % kBlock) * 2 + i % 2] = to_bfloat16(from[i]);
        }
}

void pack_values(const AudioShape& shape, const float* rows, size_t stride, int first, int last, uint16_t* values) {
    const int d_pad = shape.d_pad();
    for (int t = first; t < last; ++t)
        for (int head = 0; head < shape.n_head; ++head) {
            const float* from = rows + static_cast<size_t>(t - first) * stride + head * shape.d_head;
            uint16_t* pair = values + head * shape.head_size() + static_cast<size_t>(t / 2) * d_pad * 2;
            for (int i = 0; i < shape.d_head; ++i) pair[2 * i + t % 2] = to_bfloat16(from[i]);
        }
}

}  // namespace sottovoce
