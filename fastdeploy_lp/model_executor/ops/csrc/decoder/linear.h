// A linear layer of either precision, and the activations it takes.
#pragma once

#include "decoder/linear_float.h"
#include "decoder/linear_int8.h"
#include "team.h"

using packed_weights::Format;
using packed_weights::kPanel;

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Mirrored by `LinearStruct` in structs.py.
struct Linear {
    int32_t in, out;
    int32_t digits;  // 8-bit digits of an activation: 0 for float32, 1 or 2 with weights packed as levels
    Format format;
    const uint8_t* packed;
    const float* bias;  // [out] or null

    int panels() const { return packed_weights::panels_of(out); }
    int64_t panel_bytes() const { return packed_weights::panel_bytes(format, in); }
    const uint8_t* panel(int index) const { return packed + index * panel_bytes(); }
    // Number of prefetches during a product with a panel, packed or `expanded`.
    int asks(bool expanded) const {
        const int inputs = digits > 0 ? linear_int8::kGroup : linear_float::inputs_per_ask(expanded ? Format::float32 : format);
        return packed_weights::groups_of(in) * (packed_weights::kGroup / inputs);
    }
    int max_tile() const { return digits > 0 ? linear_int8::max_tile(digits) : linear_float::kMaxTile; }
};

// Rows of activations for a layer of either precision: `values` [rows][in] in float32, else quantized by `prepare`.
struct Activations {
    float* values;
    int8_t* q;
    float *scale, *total;

    const float* row(const Linear& layer, int index) const { return values + static_cast<int64_t>(index) * layer.in; }

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

// The first pass over a panel loads it from memory: prefetches ahead within the panel, and after its end what this thread reads next.
struct PanelPrefetcher {
    const uint8_t *end, *next;

    void ask(const uint8_t* further, int64_t bytes) const {
        prefetch(further < end || next == nullptr ? further : next + (further - end), bytes);
    }
};

// One panel of a layer, as it is packed or expanded to float32.
struct Panel {
    const Linear& layer;
    int index;
    Format format;
    const uint8_t* packed;
};

// Rows `first` … `first` + Rows - 1 times one panel.
template <int Rows, Format format, class Prefetcher>
void multiply_rows(const Panel& panel, const Activations& x, int first, Prefetcher& prefetcher, Floats (*sums)[2]) {
    const Linear& layer = panel.layer;
    if (layer.digits == 0)
        return linear_float::multiply<Rows, format>(x.row(layer, first), layer.in, panel.packed, layer.in, prefetcher, sums);
    if constexpr (packed_weights::is_levels(format)) {
        const int groups = packed_weights::groups_of(layer.in);
        const linear_int8::Activations rows = x.quantized(layer, first);
        if constexpr (Rows <= linear_int8::max_tile(1))
            if (layer.digits == 1) return linear_int8::multiply<Rows, 1, format>(rows, groups, panel.packed, prefetcher, sums);
        if constexpr (Rows <= linear_int8::max_tile(2))
            return linear_int8::multiply<Rows, 2, format>(rows, groups, panel.packed, prefetcher, sums);
    }
}

template <int Rows, class Prefetcher>
void multiply_rows(const Panel& panel, const Activations& x, int first, Prefetcher& prefetcher, Floats (*sums)[2]) {
    switch (panel.format) {
#define FDLP_FORMAT(f) \
    case Format::f: return multiply_rows<Rows, Format::f>(panel, x, first, prefetcher, sums);
        FDLP_FORMAT(float32) FDLP_FORMAT(float16) FDLP_FORMAT(bfloat16) FDLP_FORMAT(levels8) FDLP_FORMAT(levels4)
#undef FDLP_FORMAT
    }
}

template <int Rows, class Prefetcher, class Store>
void multiply_tile(const Panel& panel, const Activations& x, int first, Prefetcher& prefetcher, const Store& put) {
    Floats sums[Rows][2];
    multiply_rows<Rows>(panel, x, first, prefetcher, sums);
    if (panel.layer.bias != nullptr) {
        float bias[kPanel] = {};
        const int column = panel.index * kPanel, left = panel.layer.out - column;
        std::memcpy(bias, panel.layer.bias + column, sizeof(float) * (left < kPanel ? left : kPanel));
        for (auto& row : sums) row[0] += load(bias), row[1] += load(bias + kLanes);
    }
    for (int r = 0; r < Rows; ++r) put(first + r, sums[r][0], sums[r][1]);
}

template <class Prefetcher, class Store>
void multiply_tile(const Panel& panel, const Activations& x, int first, int rows, Prefetcher& prefetcher, const Store& put) {
    switch (rows) {
#define FDLP_TILE(n) \
    case n: multiply_tile<n>(panel, x, first, prefetcher, put); break;
        FDLP_TILE(1) FDLP_TILE(2) FDLP_TILE(3) FDLP_TILE(4) FDLP_TILE(5) FDLP_TILE(6) FDLP_TILE(7) FDLP_TILE(8) FDLP_TILE(9) FDLP_TILE(10)
#undef FDLP_TILE
    }
}

// A product and the one after it, or null.
struct Product {
    const Linear& layer;
    const Linear* after;
};

// Panel `index` of a product for all rows; put(row, columns 0-15, columns 16-31) takes the results. `room` is for a panel as floats.
template <class Prefetcher, class Store>
void multiply_panel(const Product& product, const Activations& x, int rows, int index, float* room, Prefetcher& prefetcher,
                    const Store& put) {
    const Linear& layer = product.layer;
    const int most = layer.max_tile(), tiles = (rows + most - 1) / most;
    // If several tiles need the panel as floats, it is expanded once.
    const bool expands = tiles > 1 && layer.digits == 0 && layer.format != Format::float32;
    // The first pass prefetches the panel's own bytes.
    const uint8_t* next = prefetcher.begin_panel(layer, product.after, index, (tiles + expands - 1) * layer.asks(expands));
    const PanelPrefetcher panel_prefetcher{layer.panel(index) + layer.panel_bytes(), next};
    Panel panel{layer, index, layer.format, layer.panel(index)};
    if (expands) {
        linear_float::expand(room, layer.format, panel.packed, layer.in, panel_prefetcher);
        panel.format = Format::float32, panel.packed = reinterpret_cast<const uint8_t*>(room);
    }
    for (int row = 0, height; row < rows; row += height) {
        // Tiles of equal height: a last tile of one row would read the panel for little.
        const int left = (rows - row + most - 1) / most;
        height = (rows - row + left - 1) / left;
        if (row == 0 && !expands)
            multiply_tile(panel, x, row, height, panel_prefetcher, put);
        else
            multiply_tile(panel, x, row, height, prefetcher, put);
    }
}
