// Products of rows of activations with a table, given how an instruction set multiplies one panel; included after
// math.h and a Panel that has `kRows`, and `sums<R>(...)` for R rows at a time.
#pragma once

namespace sottovoce {
namespace {

constexpr size_t kKeptNear = 1u << 19;  // bytes of activations that stay near while panels go by

inline void apply_epilogue(F value, float* out, int count, Epilogue epilogue) {
    if (epilogue == Epilogue::gelu) value = gelu(value);
    if (count >= F::n) {
        if (epilogue == Epilogue::add) value = value + F::load(out);
        value.store(out);
    } else if (count > 0) {
        if (epilogue == Epilogue::add) value = value + F::load_some(out, count);
        value.store_some(out, count);
    }
}

// Whole sums of one row over one panel into numbers.
inline void store_row(const Product& p, int row, int panel, const int32_t* sums) {
    const int first = panel * kPanel;
    const F scale = F::set(p.rows.scales[row]), zero = F::set(static_cast<float>(p.rows.zeros[row]));
    float* out = p.out + static_cast<size_t>(row) * p.out_stride + first;
    for (int i = 0; i < kPanel; i += F::n) {
        const int left = p.table.n_out - first - i;
        if (left <= 0) return;
        const F whole = F::from_ints(sums + i) - zero * F::from_ints(p.table.sums + first + i);
        const F value = whole * (scale * F::load(p.table.scales + first + i)) + F::load(p.table.bias + first + i);
        apply_epilogue(value, out + i, left, p.epilogue);
    }
}

template <class Panel, int R>
void multiply_rows(const Product& p, int first_row, int panel) {
    alignas(64) int32_t sums[R][kPanel];
    const int8_t* values = p.table.values + static_cast<size_t>(panel) * kPanel * p.table.depth;
    const uint8_t* rows = p.rows.values + static_cast<size_t>(first_row) * p.rows.stride;
    Panel::template sums<R>(rows, p.rows.stride, values, p.table.depth / kQuad, sums);
    for (int r = 0; r < R; ++r) store_row(p, first_row + r, panel, sums[r]);
}

template <class Panel, int R>
void multiply_rest(const Product& p, int first_row, int n_rows, int panel) {
    if constexpr (R > 0) {
        if (n_rows == R)
            multiply_rows<Panel, R>(p, first_row, panel);
        else
            multiply_rest<Panel, R - 1>(p, first_row, n_rows, panel);
    }
}

// Panels over rows [first_row, last_row).
template <class Panel>
void multiply_block(const Product& p, int first_row, int last_row, int first_panel, int last_panel) {
    for (int panel = first_panel; panel < last_panel; ++panel) {
        int row = first_row;
        for (; row + Panel::kRows <= last_row; row += Panel::kRows) multiply_rows<Panel, Panel::kRows>(p, row, panel);
        multiply_rest<Panel, Panel::kRows - 1>(p, row, last_row - row, panel);
    }
}

template <class Panel>
void multiply(const Product& p, int first_panel, int last_panel) {
    const int rows = static_cast<int>(kKeptNear / p.rows.stride) / (2 * Panel::kRows) * (2 * Panel::kRows);
    const int step = rows > 0 ? rows : Panel::kRows;
    for (int row = 0; row < p.n_rows; row += step) {
        const int last = row + step < p.n_rows ? row + step : p.n_rows;
        multiply_block<Panel>(p, row, last, first_panel, last_panel);
    }
}

}  // namespace
}  // namespace sottovoce
