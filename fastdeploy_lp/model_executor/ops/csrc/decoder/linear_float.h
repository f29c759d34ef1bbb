// Matrix products of float32 activations and packed weights of any format (packed_weights.h), which are float32 numbers once they are read.
//
// Every output element is one chain of multiply-adds over `in` in ascending order, whatever the number of rows and the format: a row's
// result has the same bits alone and in a crowd, and for the same weights in every format that holds them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "decoder/packed_weights.h"

namespace linear_float {

using packed_weights::Format;
using packed_weights::kGroup;
using packed_weights::kPanel;

constexpr int kMaxTile = std::min(10, kSums / 2);
// Prefetch distance in bytes.
constexpr int kBytesAhead = 8192;

// Inputs per prefetch: with more, too many lines are requested at a time. A power of 2.
constexpr int inputs_per_ask(Format format) {
    const int bits = packed_weights::bits_of(format);
    return bits == 32 ? 1 : bits == 16 ? 2 : bits > 5 ? 4 : 8;
}

// Adds the products of an input of `Rows` rows and its 32 weights.
template <int Rows>
inline void add_products(const float* x, int64_t stride, Floats w0, Floats w1, Floats* low, Floats* high) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
        add_product(low + r, x[r * stride], w0);
        add_product(high + r, x[r * stride], w1);
    }
}

// Adds the products of `Rows` rows of x [..][in] and the panel's inputs from `first` on, where a group begins, to `end`; keep(input,
// columns 0-15, columns 16-31) takes their weights. `prefetcher` as in linear_int8.h.
template <int Rows, Format format, class Prefetcher, class Keep>
inline void add_packed(const float* x, int64_t stride, const uint8_t* panel, int first, int end, Prefetcher& prefetcher, const Keep& keep,
                       Floats* low, Floats* high) {
    constexpr int kShare = packed_weights::group_share(format), kInputs = inputs_per_ask(format), kBytes = kShare * kInputs / kGroup;
    for (; first < end; first += kGroup) {
        const float* from = x + first;
        const int g = first / kGroup;
        const uint8_t* ahead = panel + static_cast<int64_t>(g) * kShare + kBytesAhead;
        const auto group = packed_weights::PanelGroup<format>::of(panel, g);
        packed_weights::each_input(group, end - first < kGroup ? end - first : kGroup, [&](int k, Floats w0, Floats w1) {
            if (k % kInputs == 0) prefetcher.ask(ahead + k / kInputs * kBytes, kBytes);
            keep(first + k, w0, w1);
            add_products<Rows>(from + k, stride, w0, w1, low, high);
        });
    }
}

// One panel for `Rows` rows: sums[row] holds its 32 columns.
template <int Rows, Format format, class Prefetcher>
inline void multiply(const float* x, int64_t stride, const uint8_t* panel, int in, Prefetcher& prefetcher, Floats (*sums)[2]) {
    Floats low[Rows] = {}, high[Rows] = {};
    add_packed<Rows, format>(x, stride, panel, 0, in, prefetcher, [](int, Floats, Floats) {}, low, high);
    for (int r = 0; r < Rows; ++r) sums[r][0] = low[r], sums[r][1] = high[r];
}

// More rows than one tile has: a panel is taken in pieces of so many inputs. The first tile expands a piece to floats, which stay in the
// first-level cache while the other rows pass. Sums wait in memory between pieces, which changes no bit of them.
constexpr int kPiece = 128;
constexpr int kMaxPieceTile = kSums / 2;
constexpr int kInputsPerAsk = 8;
// False if the registers are too few for sums beside scales and minima: pieces are then expanded before the first tile.
constexpr bool kExpandsInTile = kSums >= 24;

inline int piece_tiles(int rows) { return (rows + kMaxPieceTile - 1) / kMaxPieceTile; }
// Rows of the tile that expands pieces, the lowest of tiles of equal height, as it needs more registers.
inline int expanding_rows(int rows) { return kExpandsInTile ? std::min(rows / piece_tiles(rows), kMaxTile) : 0; }
// Number of prefetches of later memory by the other tiles of a panel.
inline int piece_asks(int rows, int in) { return piece_tiles(rows - expanding_rows(rows)) * (in / kInputsPerAsk); }

// Rows x [rows][in] and their sums with a panel [rows][32].
struct PieceRows {
    const float* x;
    int rows, in;
    float* sums;

    PieceRows from(int row, int height) const { return {x + static_cast<int64_t>(row) * in, height, in, sums + row * kPanel}; }
};

// The sums of a tile, in registers.
template <int Rows>
struct TileSums {
    Floats low[Rows], high[Rows];

    explicit TileSums(const float* sums) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) low[r] = load(sums + r * kPanel), high[r] = load(sums + r * kPanel + kLanes);
    }
    void put(float* sums) const {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) store(sums + r * kPanel, low[r]), store(sums + r * kPanel + kLanes, high[r]);
    }
};

// Adds the products of a tile and the inputs from `first` on, whose weights are `piece` [inputs][32].
template <int Rows, class Prefetcher>
inline void add_piece(const PieceRows& tile, int first, const float* piece, int inputs, Prefetcher& prefetcher) {
    TileSums<Rows> sums(tile.sums);
    const float* x = tile.x + first;
    const auto add = [&](int k) {
        const float* weights = piece + k * kPanel;
        add_products<Rows>(x + k, tile.in, load(weights), load(weights + kLanes), sums.low, sums.high);
    };
    int k = 0;
    for (; k + kInputsPerAsk <= inputs; k += kInputsPerAsk) {
        prefetcher.ask(nullptr, 0);
        for (int i = 0; i < kInputsPerAsk; ++i) add(k + i);
    }
    for (; k < inputs; ++k) add(k);
    sums.put(tile.sums);
}

// The same, reading the weights from the panel; writes them to `room`, unless they already are floats.
template <int Rows, Format format, class Loader>
inline void expand_piece(const PieceRows& tile, int first, const uint8_t* panel, int inputs, const Loader& loader, float* room) {
    const auto keep = [=](int k, Floats low, Floats high) {
        if (format == Format::float32) return;
        store(room + (k - first) * kPanel, low);
        store(room + (k - first) * kPanel + kLanes, high);
    };
    TileSums<Rows> sums(tile.sums);
    add_packed<Rows, format>(tile.x, tile.in, panel, first, first + inputs, loader, keep, sums.low, sums.high);
    sums.put(tile.sums);
}

// The weights alone, as whole groups.
template <Format format, class Loader>
inline void expand_alone(int first, const uint8_t* panel, int inputs, const Loader& loader, float* room) {
    constexpr int64_t kShare = packed_weights::group_share(format);
    for (int k = 0; k < inputs; k += kGroup) {
        const int g = (first + k) / kGroup;
        loader.ask(panel + g * kShare + kBytesAhead, kShare);
        if (format != Format::float32) packed_weights::expand_group(room + k * kPanel, format, panel, g);
    }
}

// Calls use(an integral constant) with `rows`, which is from `least` to `most`.
template <int least, int most, class Use>
inline void with_rows(int rows, const Use& use) {
    switch (rows) {
#define FDLP_N(n)                                                                     \
    case n:                                                                           \
        if constexpr (least <= n && n <= most) use(std::integral_constant<int, n>{}); \
        break;
        FDLP_N(1) FDLP_N(2) FDLP_N(3) FDLP_N(4) FDLP_N(5) FDLP_N(6) FDLP_N(7) FDLP_N(8) FDLP_N(9) FDLP_N(10) FDLP_N(11) FDLP_N(12)
#undef FDLP_N
    }
}

// A panel for all rows, whose sums are 0. `loader` prefetches the panel, `prefetcher` memory that is needed later.
template <Format format, class Loader, class Prefetcher>
inline void multiply_in_pieces(const PieceRows& rows, const uint8_t* panel, const Loader& loader, Prefetcher& prefetcher) {
    alignas(64) float room[kPiece * kPanel];
    const int expanding = expanding_rows(rows.rows);
    for (int first = 0; first < rows.in; first += kPiece) {
        const int inputs = std::min(rows.in - first, kPiece);
        const float* piece = format == Format::float32 ? reinterpret_cast<const float*>(panel) + first * kPanel : room;
        if constexpr (kExpandsInTile)
            with_rows<kMaxPieceTile / 2, kMaxTile>(
                expanding, [&](auto n) { expand_piece<n.value, format>(rows.from(0, n.value), first, panel, inputs, loader, room); });
        else
            expand_alone<format>(first, panel, inputs, loader, room);
        for (int row = expanding, height, left = piece_tiles(rows.rows - expanding); left > 0; row += height, --left) {
            height = (rows.rows - row) / left;
            with_rows<1, kMaxPieceTile>(height,
                                        [&](auto n) { add_piece<n.value>(rows.from(row, n.value), first, piece, inputs, prefetcher); });
        }
    }
}

}  // namespace linear_float
