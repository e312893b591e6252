// Phases that the decoder and the encoder share: rows normed, put into eight bits, multiplied.
#pragma once

#include <vector>

#include "decoder.h"
#include "isa.h"

namespace sottovoce {

// Room for rows on their way through a linear layer.
struct RowBuffers {
    ActivationBuffer activations;
    std::vector<std::vector<float>> normed;  // of each thread

    void resize(int n_rows, int widest, int n_threads) {
        activations.resize(n_rows, padded(widest, kDepth));
        if (static_cast<int>(normed.size()) < n_threads) normed.resize(n_threads);
        for (auto& row : normed)
            if (static_cast<int>(row.size()) < widest) row.resize(widest);
    }
};

// Numbers in rows.
struct Rows {
    float* data;
    size_t stride;

    float* operator[](int row) const { return data + static_cast<size_t>(row) * stride; }
};

// Rows into eight bits, normed before if there is a norm.
inline Activations quantize_rows(const Kernels& kernels, Worker& worker, RowBuffers& buffers, const Norm* norm,
                                 Rows from, int n_rows, const Table& table) {
    const Activations rows = buffers.activations.rows(table.depth, kernels.bytes_an_activation);
    worker.share(n_rows, [&](int first, int last) {
        for (int r = first; r < last; ++r) {
            const float* row = from[r];
            if (norm) {
                float* normed = buffers.normed[worker.index].data();
                kernels.layer_norm(row, norm->weight, norm->bias, table.n_in, normed);
                row = normed;
            }
            kernels.quantize(row, table.n_in, table.depth, rows.values + r * rows.stride, rows.scales + r, rows.zeros + r);
        }
    });
    return rows;
}

// The same, times a table.
inline void linear(const Kernels& kernels, Worker& worker, RowBuffers& buffers, const Norm* norm, Rows from, int n_rows,
                   const Table& table, Rows to, Epilogue epilogue) {
    const Activations rows = quantize_rows(kernels, worker, buffers, norm, from, n_rows, table);
    const Product product{table, rows, n_rows, to.data, to.stride, epilogue};
    worker.share(table.n_panels(), [&](int first, int last) { kernels.multiply(product, first, last); });
}

}  // namespace sottovoce
