// A linear layer of either precision, and the activations it takes.
#pragma once

#include "linear_float.h"
#include "linear_int8.h"
#include "team.h"

constexpr int kPanel = linear_float::kPanel;
static_assert(kPanel == linear_int8::kPanel, "callers count panels of one width");

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Mirrored by `LinearStruct` in decoder.py.
struct Linear {
    int32_t in, out;
    int32_t digits;  // 8-bit digits of an activation: 0 for float32, 1 or 2 with 8-bit weights
    const void* packed;
    const float* bias;  // [out] or null

    int panels() const { return (out + kPanel - 1) / kPanel; }
};

// Rows of activations as a layer of either precision takes them; `values` [rows][in] are always there, the rest after `prepare`.
struct Activations {
    float* values;
    int8_t* q;
    float *scale, *total;

    void prepare(const Linear& layer, int row) const {
        if (layer.digits == 0) return;
        linear_int8::quantize_row(values + static_cast<int64_t>(row) * layer.in, layer.in, layer.digits, quantized(layer, row));
    }

    // From row `first` on.
    linear_int8::Activations quantized(const Linear& layer, int first) const {
        const int64_t groups = linear_int8::groups_of(layer.in);
        return {q + first * groups * linear_int8::kGroup * layer.digits, scale + first * groups, total + first * groups};
    }
};

template <int Rows, class Store>
void multiply_tile(const Linear& layer, const Activations& x, int first, int panel, const Store& put) {
    Floats sums[Rows][2];
    if (layer.digits > 0) {
        const uint8_t* packed = static_cast<const uint8_t*>(layer.packed) + panel * linear_int8::panel_bytes(layer.in);
        const auto multiply = layer.digits == 1 ? linear_int8::multiply<Rows, 1> : linear_int8::multiply<Rows, 2>;
        multiply(x.quantized(layer, first), linear_int8::groups_of(layer.in), packed, sums);
    } else {
        linear_float::multiply<Rows>(x.values + static_cast<int64_t>(first) * layer.in, layer.in,
                                     static_cast<const float*>(layer.packed) + static_cast<int64_t>(panel) * kPanel * layer.in, layer.in,
                                     sums);
    }
    if (layer.bias != nullptr) {
        float bias[kPanel] = {};
        const int column = panel * kPanel;
        std::memcpy(bias, layer.bias + column, sizeof(float) * (layer.out - column < kPanel ? layer.out - column : kPanel));
        for (auto& row : sums) row[0] += load(bias), row[1] += load(bias + kLanes);
    }
    for (int r = 0; r < Rows; ++r) put(first + r, sums[r][0], sums[r][1]);
}

// One panel of a product for all rows; put(row, columns 0-15, columns 16-31) takes the results.
template <class Store>
void multiply_panel(const Linear& layer, const Activations& x, int rows, int panel, const Store& put) {
    const int most = layer.digits > 0 ? linear_int8::max_tile(layer.digits) : linear_float::kMaxTile;
    int row = 0;
    while (row < rows) {
        // Tiles of equal height: a last tile of one row would read the panel for little.
        const int tiles = (rows - row + most - 1) / most;
        const int height = (rows - row + tiles - 1) / tiles;
        switch (height) {
#define FDLP_TILE(n) \
    case n:          \
        multiply_tile<n>(layer, x, row, panel, put); break;
            FDLP_TILE(1) FDLP_TILE(2) FDLP_TILE(3) FDLP_TILE(4) FDLP_TILE(5)
            FDLP_TILE(6) FDLP_TILE(7) FDLP_TILE(8) FDLP_TILE(9) FDLP_TILE(10)
#undef FDLP_TILE
        }
        row += height;
    }
}
