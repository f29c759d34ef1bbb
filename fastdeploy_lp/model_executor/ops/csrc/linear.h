// A linear layer of either precision, and the activations it takes.
#pragma once

#include "linear_float.h"
#include "linear_int8.h"
#include "team.h"

constexpr int kPanel = linear_float::kPanel;
static_assert(kPanel == packed_weights::kPanel, "callers count panels of one width");

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Mirrored by `LinearStruct` in decoder.py.
struct Linear {
    int32_t in, out;
    int32_t digits;  // 8-bit digits of an activation: 0 for float32, 1 or 2 with packed weights
    int32_t bits;    // of a packed weight: 8 or 4; 32 for float32
    const void* packed;
    const float* bias;  // [out] or null

    int panels() const { return (out + kPanel - 1) / kPanel; }
    // What a product reads of a panel in one step along `in`.
    int64_t step_bytes() const { return digits > 0 ? packed_weights::group_bytes(bits) : kPanel * static_cast<int64_t>(sizeof(float)); }
    int64_t panel_bytes() const { return digits > 0 ? packed_weights::panel_bytes(bits, in) : in * step_bytes(); }
    const char* panel(int index) const { return static_cast<const char*>(packed) + index * panel_bytes(); }
};

// Rows of activations as a layer of either precision takes them: `values` [rows][in] in float32, else what `prepare` makes of them.
struct Activations {
    float* values;
    int8_t* q;
    float *scale, *total;

    void prepare(const Linear& layer, int row) const { prepare(layer, row, 0, values + static_cast<int64_t>(row) * layer.in, layer.in); }

    // `n` columns alone, from `column` on, where a group begins; they end with a group or the row.
    void prepare(const Linear& layer, int row, int column, const float* columns, int n) const {
        if (layer.digits > 0) linear_int8::quantize_groups(columns, n, layer.digits, quantized(layer, row, column / linear_int8::kGroup));
    }

    // From a group of row `first` on.
    linear_int8::Activations quantized(const Linear& layer, int first, int group = 0) const {
        const int64_t at = static_cast<int64_t>(first) * linear_int8::groups_of(layer.in) + group;
        return {q + at * linear_int8::kGroup * layer.digits, scale + at, total + at};
    }
};

// The first rows of a panel bring it from memory: what lies ahead in it is asked for, and behind its end what this thread reads next.
struct PanelAhead {
    const char *end, *next;

    void ask(const void* further, int64_t bytes) const {
        const char* from = static_cast<const char*>(further);
        prefetch(from < end || next == nullptr ? from : next + (from - end), bytes);
    }
};

// Rows `first` … `first` + Rows - 1 times one panel.
template <int Rows, class Ahead>
void multiply_rows(const Linear& layer, const Activations& x, int first, int panel, Ahead& ahead, Floats (*sums)[2]) {
    if (layer.digits == 0)
        return linear_float::multiply<Rows>(x.values + static_cast<int64_t>(first) * layer.in, layer.in,
                                            reinterpret_cast<const float*>(layer.panel(panel)), layer.in, ahead, sums);
    const auto packed = reinterpret_cast<const uint8_t*>(layer.panel(panel));
    const int groups = linear_int8::groups_of(layer.in);
    const linear_int8::Activations rows = x.quantized(layer, first);
    if constexpr (Rows <= linear_int8::max_tile(1))
        if (layer.digits == 1)
            return layer.bits == 8 ? linear_int8::multiply<Rows, 1, 8>(rows, groups, packed, ahead, sums)
                                   : linear_int8::multiply<Rows, 1, 4>(rows, groups, packed, ahead, sums);
    if constexpr (Rows <= linear_int8::max_tile(2))
        return layer.bits == 8 ? linear_int8::multiply<Rows, 2, 8>(rows, groups, packed, ahead, sums)
                               : linear_int8::multiply<Rows, 2, 4>(rows, groups, packed, ahead, sums);
}

template <int Rows, class Ahead, class Store>
void multiply_tile(const Linear& layer, const Activations& x, int first, int panel, Ahead& ahead, const Store& put) {
    Floats sums[Rows][2];
    multiply_rows<Rows>(layer, x, first, panel, ahead, sums);
    if (layer.bias != nullptr) {
        float bias[kPanel] = {};
        const int column = panel * kPanel;
        std::memcpy(bias, layer.bias + column, sizeof(float) * (layer.out - column < kPanel ? layer.out - column : kPanel));
        for (auto& row : sums) row[0] += load(bias), row[1] += load(bias + kLanes);
    }
    for (int r = 0; r < Rows; ++r) put(first + r, sums[r][0], sums[r][1]);
}

template <class Ahead, class Store>
void multiply_tile(const Linear& layer, const Activations& x, int first, int rows, int panel, Ahead& ahead, const Store& put) {
    switch (rows) {
#define FDLP_TILE(n) \
    case n:          \
        multiply_tile<n>(layer, x, first, panel, ahead, put); break;
        FDLP_TILE(1) FDLP_TILE(2) FDLP_TILE(3) FDLP_TILE(4) FDLP_TILE(5)
        FDLP_TILE(6) FDLP_TILE(7) FDLP_TILE(8) FDLP_TILE(9) FDLP_TILE(10)
#undef FDLP_TILE
    }
}

// A product and the one after it, or null.
struct Product {
    const Linear& layer;
    const Linear* after;
};

// One panel of a product for all rows; put(row, columns 0-15, columns 16-31) takes the results.
template <class Ahead, class Store>
void multiply_panel(const Product& product, const Activations& x, int rows, int panel, Ahead& ahead, const Store& put) {
    const Linear& layer = product.layer;
    const int most = layer.digits > 0 ? linear_int8::max_tile(layer.digits) : linear_float::kMaxTile;
    const char* next = ahead.begin_panel(layer, product.after, panel, (rows + most - 1) / most);
    const PanelAhead panel_ahead{layer.panel(panel) + layer.panel_bytes(), next};
    for (int row = 0, height; row < rows; row += height) {
        // Tiles of equal height: a last tile of one row would read the panel for little.
        const int tiles = (rows - row + most - 1) / most;
        height = (rows - row + tiles - 1) / tiles;
        if (row == 0)
            multiply_tile(layer, x, row, height, panel, panel_ahead, put);
        else
            multiply_tile(layer, x, row, height, panel, ahead, put);
    }
}
