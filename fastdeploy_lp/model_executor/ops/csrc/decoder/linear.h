// A linear layer of any precision, and the activations it takes.
#pragma once

#include "decoder/bfloat16_tiles.h"
#include "decoder/int8_tiles.h"
#include "decoder/linear_bfloat16.h"
#include "decoder/linear_float.h"
#include "decoder/linear_int8.h"
#include "team.h"

using packed_weights::Format;
using packed_weights::kPanel;

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Panels of one format, up to the next section's. Mirrored by `SectionStruct` in structs.py.
struct Section {
    int32_t first;
    Format format;
    const uint8_t* packed;
};
constexpr int kSections = 3;

// Mirrored by `LinearStruct` in structs.py.
struct Linear {
    int32_t in, out;
    int32_t digits;               // 8-bit digits of an activation: 0 for floats, 1 or 2 with weights packed as levels
    int32_t count;                // of sections
    Section sections[kSections];  // projections of one input may have different formats
    const float* bias;            // [out] or null
    int32_t bfloat16;             // activations are rounded to bfloat16, in which weights are packed

    int panels() const { return packed_weights::panels_of(out); }
    const Section& section(int panel) const {
        int last = count - 1;
        while (last > 0 && panel < sections[last].first) --last;
        return sections[last];
    }
    Format format(int panel) const { return section(panel).format; }
    int64_t panel_bytes(int panel) const { return packed_weights::panel_bytes(format(panel), in); }
    const uint8_t* panel(int index) const { return section(index).packed + (index - section(index).first) * panel_bytes(index); }
    // True if products take activations that `prepare` has rounded or quantized.
    bool prepares() const { return digits > 0 || bfloat16; }
    // True if products need the sums of activations.
    bool needs_sums() const {
        bool needed = false;
        for (int i = 0; i < count; ++i) needed |= linear_int8::offset_of(sections[i].format, digits) != 0;
        return needed;
    }
    // Tiles then compute any number of rows: even one row's weights take longer to load.
    bool in_bfloat16_tiles() const { return bfloat16 && tiles::available(); }
    // Prefetches of later memory during a product with a panel: by the first pass over it none.
    int asks(int rows, int panel) const {
        if (takes_tiles(rows, panel)) return 2 * int8_tiles::Blocks{rows}.count() * packed_weights::groups_of(in);
        if (takes_pieces(rows)) return linear_float::piece_asks(rows, in);
        return (passes(rows) - 1) * packed_weights::groups_of(in) * asks_of_group();
    }
    bool takes_tiles(int rows, int panel) const { return int8_tiles::computes(format(panel), digits, rows); }
    bool takes_pieces(int rows) const { return !prepares() && rows > max_tile(); }
    // Passes over a panel by `multiply_tile`.
    int passes(int rows) const { return (rows + max_tile() - 1) / max_tile(); }
    int max_tile() const {
        if (bfloat16) return in_bfloat16_tiles() ? bfloat16_tiles::kMaxTile : linear_bfloat16::kMaxTile;
        return digits > 0 ? linear_int8::max_tile(digits) : linear_float::kMaxTile;
    }
    int asks_of_group() const {
        if (bfloat16) return in_bfloat16_tiles() ? bfloat16_tiles::kAsks : linear_bfloat16::kAsks;
        return 1;
    }
    // Row `index` as floats [in].
    void expand_row(float* to, int index) const {
        packed_weights::unpack_row(to, panel(index / kPanel), format(index / kPanel), in, index % kPanel);
    }
};

// Rows of activations for a layer of any precision: `values` [rows][in] in float32, else rounded or quantized by `prepare`.
struct Activations {
    float* values;
    int8_t* q;  // with bfloat16: [rows][whole groups] of linear_bfloat16.h or bfloat16_tiles.h
    float *scale, *total;
    int32_t* sums;

    static constexpr int kBytesPerInput = sizeof(float);  // of `q`, at most

    const float* row(const Linear& layer, int index) const { return values + static_cast<int64_t>(index) * layer.in; }

    void prepare(const Linear& layer, int row) const { prepare(layer, row, 0, values + static_cast<int64_t>(row) * layer.in, layer.in); }

    // `n` columns alone, from `column` on, where a group begins; they end with a group or the row.
    void prepare(const Linear& layer, int row, int column, const float* columns, int n) const {
        if (layer.in_bfloat16_tiles())
            bfloat16_tiles::round_groups(columns, n, rounded<uint16_t>(layer, row) + column);
        else if (layer.bfloat16)
            linear_bfloat16::round_groups(columns, n, rounded<linear_bfloat16::Element>(layer, row) + column);
        if (layer.digits > 0) linear_int8::quantize_groups(columns, n, layer.digits, to_quantize(layer, row, column / linear_int8::kGroup));
    }

    // The same for all of `rows` rows, whose columns are `stride` floats apart.
    void prepare_rows(const Linear& layer, int rows, int column, const float* columns, int64_t stride, int n) const {
        if (layer.digits > 0 && n == linear_int8::kGroup) {
            const linear_int8::Activations first = to_quantize(layer, 0, column / linear_int8::kGroup);
            linear_int8::quantize_groups({columns, stride, first, linear_int8::groups_of(layer.in)}, rows, layer.digits);
            return;
        }
        for (int row = 0; row < rows; ++row) prepare(layer, row, column, columns + row * stride, n);
    }

    template <class Element>
    Element* rounded(const Linear& layer, int first) const {
        return reinterpret_cast<Element*>(q) + static_cast<int64_t>(first) * packed_weights::groups_of(layer.in) * packed_weights::kGroup;
    }

    // From a group of row `first` on.
    linear_int8::Activations quantized(const Linear& layer, int first, int group = 0) const {
        const int64_t at = static_cast<int64_t>(first) * linear_int8::groups_of(layer.in) + group;
        return {q + at * linear_int8::kGroup * layer.digits, scale + at, total + at, sums + 2 * at};
    }

   private:
    // The same without sums that no product needs.
    linear_int8::Activations to_quantize(const Linear& layer, int first, int group) const {
        linear_int8::Activations rows = quantized(layer, first, group);
        if (!layer.needs_sums()) rows.sums = nullptr;
        return rows;
    }
};

// The first pass over a panel loads it from memory: prefetches ahead within the panel, and after its end what this thread reads next.
struct PanelPrefetcher {
    const uint8_t *end, *next;

    void ask(const uint8_t* further, int64_t bytes) const {
        prefetch(further < end || next == nullptr ? further : next + (further - end), bytes);
    }
};

// One panel of a layer.
struct Panel {
    const Linear& layer;
    int index;
    Format format;
    const uint8_t* packed;
};

// A panel's part of the bias, if the layer has one.
class PanelBias {
   public:
    PanelBias(const Linear& layer, int index) : present_(layer.bias != nullptr) {
        if (!present_) return;
        const int column = index * kPanel;
        for (int half = 0; half < 2; ++half)
            values_[half] = load_first(layer.bias + column + half * kLanes, layer.out - column - half * kLanes);
    }

    Floats add(Floats sums, int half) const { return present_ ? sums + values_[half] : sums; }

   private:
    bool present_;
    Floats values_[2] = {};
};

// Rows `first` … `first` + Rows - 1 times one panel.
template <int Rows, Format format, class Prefetcher>
void multiply_rows(const Panel& panel, const Activations& x, int first, Prefetcher& prefetcher, Floats (*sums)[2]) {
    const Linear& layer = panel.layer;
    if (layer.bfloat16) {
        if constexpr (format == Format::bfloat16 && Rows <= linear_bfloat16::kMaxTile) {
            const auto* rows = x.rounded<linear_bfloat16::Element>(layer, first);
            linear_bfloat16::multiply<Rows>(rows, packed_weights::groups_of(layer.in), panel.packed, prefetcher, sums);
        }
        return;
    }
    if (layer.digits == 0) {
        if constexpr (Rows <= linear_float::kMaxTile)
            linear_float::multiply<Rows, format>(x.row(layer, first), layer.in, panel.packed, layer.in, prefetcher, sums);
        return;
    }
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
        FDLP_FORMATS
#undef FDLP_FORMAT
    }
}

template <int Rows, class Prefetcher, class Store>
void multiply_tile(const Panel& panel, const Activations& x, int first, Prefetcher& prefetcher, const Store& put) {
    Floats sums[Rows][2];
    multiply_rows<Rows>(panel, x, first, prefetcher, sums);
    const PanelBias bias(panel.layer, panel.index);
    for (int r = 0; r < Rows; ++r) put(first + r, bias.add(sums[r][0], 0), bias.add(sums[r][1], 1));
}

// The same with the same bits, the sums computed by tile instructions.
template <class Prefetcher, class Store>
void multiply_bfloat16_tiles(const Panel& panel, const Activations& x, int first, int rows, Prefetcher& prefetcher, const Store& put) {
    const Linear& layer = panel.layer;
    alignas(64) float sums[bfloat16_tiles::kMaxTile][kPanel];
    const uint16_t* from = x.rounded<uint16_t>(layer, first);
    bfloat16_tiles::multiply(from, packed_weights::groups_of(layer.in), rows, panel.packed, prefetcher, sums[0]);
    const PanelBias bias(layer, panel.index);
    for (int r = 0; r < rows; ++r) put(first + r, bias.add(load(sums[r]), 0), bias.add(load(sums[r] + kLanes), 1));
}

template <class Prefetcher, class Store>
void multiply_tile(const Panel& panel, const Activations& x, int first, int rows, Prefetcher& prefetcher, const Store& put) {
    if (panel.layer.in_bfloat16_tiles()) return multiply_bfloat16_tiles(panel, x, first, rows, prefetcher, put);
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

// Panel `index` of a product in tiles, with the same bits; as `multiply_panel`.
template <class Prefetcher, class Store>
void multiply_panel_in_tiles(const Product& product, const Activations& x, int rows, int index, Prefetcher& prefetcher, const Store& put) {
    const Linear& layer = product.layer;
    const int groups = packed_weights::groups_of(layer.in);
    const uint8_t* next = prefetcher.begin_panel(layer, product.after, index, layer.asks(rows, index));
    const PanelPrefetcher loader{layer.panel(index) + layer.panel_bytes(index), next};
    const PanelBias bias(layer, index);
    const int8_tiles::Task task{x.quantized(layer, 0), groups, rows, layer.digits, layer.panel(index)};
    const auto add_bias = [&](int row, Floats low, Floats high) { put(row, bias.add(low, 0), bias.add(high, 1)); };
    switch (layer.format(index)) {
#define FDLP_FORMAT(f)                                                                                                   \
    case Format::f:                                                                                                      \
        if constexpr (int8_tiles::takes(Format::f)) int8_tiles::multiply<Format::f>(task, loader, prefetcher, add_bias); \
        break;
        FDLP_FORMATS
#undef FDLP_FORMAT
    }
}

// The same for float32, in pieces; `sums` has room for [rows][32].
template <class Prefetcher, class Store>
void multiply_panel_in_pieces(const Product& product, const Activations& x, int rows, int index, float* sums, Prefetcher& prefetcher,
                              const Store& put) {
    const Linear& layer = product.layer;
    const uint8_t* next = prefetcher.begin_panel(layer, product.after, index, layer.asks(rows, index));
    const Panel panel{layer, index, layer.format(index), layer.panel(index)};
    const PanelPrefetcher loader{panel.packed + layer.panel_bytes(index), next};
    std::fill_n(sums, static_cast<int64_t>(rows) * kPanel, 0.0f);
    const linear_float::PieceRows all{x.row(layer, 0), rows, layer.in, sums};
    switch (panel.format) {
#define FDLP_FORMAT(f) \
    case Format::f: linear_float::multiply_in_pieces<Format::f>(all, panel.packed, loader, prefetcher); break;
        FDLP_FORMATS
#undef FDLP_FORMAT
    }
    const PanelBias bias(layer, index);
    for (int row = 0; row < rows; ++row) {
        const float* of_row = sums + static_cast<int64_t>(row) * kPanel;
        put(row, bias.add(load(of_row), 0), bias.add(load(of_row + kLanes), 1));
    }
}

// Panel `index` of a product for all rows; put(row, columns 0-15, columns 16-31) takes the results. `sums` is room for [rows][32].
template <class Prefetcher, class Store>
void multiply_panel(const Product& product, const Activations& x, int rows, int index, float* sums, Prefetcher& prefetcher,
                    const Store& put) {
    const Linear& layer = product.layer;
    if (layer.takes_tiles(rows, index)) return multiply_panel_in_tiles(product, x, rows, index, prefetcher, put);
    if (layer.takes_pieces(rows)) return multiply_panel_in_pieces(product, x, rows, index, sums, prefetcher, put);
    // The first pass prefetches the panel's own bytes. Of two, the second one alone would request later memory faster than it comes: both
    // do, if the panel is there. Of more passes, the others are enough, and a billion parameters took 2 to 4 % longer if all did.
    const bool both = layer.passes(rows) == 2 && prefetcher.has(layer, index);
    const uint8_t* next = prefetcher.begin_panel(layer, product.after, index, layer.asks(rows, index) * (both ? 2 : 1));
    const Panel panel{layer, index, layer.format(index), layer.panel(index)};
    const PanelPrefetcher panel_prefetcher{panel.packed + layer.panel_bytes(index), next};
    for (int row = 0, height, left = layer.passes(rows); row < rows; row += height, --left) {
        // Tiles of equal height: a last tile of one row would read the panel for little.
        height = (rows - row + left - 1) / left;
        if (row == 0 && !both)
            multiply_tile(panel, x, row, height, panel_prefetcher, put);
        else
            multiply_tile(panel, x, row, height, prefetcher, put);
    }
}
