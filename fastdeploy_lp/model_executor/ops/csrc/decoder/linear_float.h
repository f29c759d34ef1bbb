// Matrix products of float32 activations and packed weights of any format (packed_weights.h), which are float32 numbers once they are read.
//
// Every output element is one chain of multiply-adds over `in` in ascending order, whatever the number of rows and the format: a row's
// result has the same bits alone and in a crowd, and for the same weights in every format that holds them.
#pragma once

#include <algorithm>

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

// One panel for `Rows` rows of x [..][in]: sums[row] holds its 32 columns. `prefetcher` as in linear_int8.h.
template <int Rows, Format format, class Prefetcher>
inline void multiply(const float* x, int64_t stride, const uint8_t* panel, int in, Prefetcher& prefetcher, Floats (*sums)[2]) {
    constexpr int kShare = packed_weights::group_share(format), kInputs = inputs_per_ask(format), kBytes = kShare * kInputs / kGroup;
    Floats low[Rows] = {}, high[Rows] = {};
    for (int first = 0; first < in; first += kGroup) {
        const float* from = x + first;
        const int g = first / kGroup;
        const uint8_t* ahead = panel + static_cast<int64_t>(g) * kShare + kBytesAhead;
        const auto group = packed_weights::PanelGroup<format>::of(panel, g);
        packed_weights::each_input(group, in - first < kGroup ? in - first : kGroup, [&](int k, Floats w0, Floats w1) {
            if (k % kInputs == 0) prefetcher.ask(ahead + k / kInputs * kBytes, kBytes);
            add_products<Rows>(from + k, stride, w0, w1, low, high);
        });
    }
    for (int r = 0; r < Rows; ++r) sums[r][0] = low[r], sums[r][1] = high[r];
}

// More rows than one tile has: a panel is taken in pieces of so many inputs, which as floats stay in the first-level cache while all rows
// pass. Sums wait in memory between pieces, which changes no bit of them.
constexpr int kPiece = 128;
constexpr int kMaxPieceTile = kSums / 2;
constexpr int kInputsPerAsk = 8;

inline int piece_tiles(int rows) { return (rows + kMaxPieceTile - 1) / kMaxPieceTile; }
// Number of prefetches by the tiles of a panel.
inline int piece_asks(int rows, int in) { return piece_tiles(rows) * (in / kInputsPerAsk); }

// Adds the products of a tile's inputs x [..][stride] and a piece [inputs][32] to sums [Rows][32].
template <int Rows, class Prefetcher>
inline void add_piece(const float* x, int64_t stride, const float* piece, int inputs, Prefetcher& prefetcher, float* sums) {
    Floats low[Rows], high[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) low[r] = load(sums + r * kPanel), high[r] = load(sums + r * kPanel + kLanes);
    const auto add = [&](int k) {
        const float* weights = piece + k * kPanel;
        add_products<Rows>(x + k, stride, load(weights), load(weights + kLanes), low, high);
    };
    int k = 0;
    for (; k + kInputsPerAsk <= inputs; k += kInputsPerAsk) {
        prefetcher.ask(nullptr, 0);
        for (int i = 0; i < kInputsPerAsk; ++i) add(k + i);
    }
    for (; k < inputs; ++k) add(k);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) store(sums + r * kPanel, low[r]), store(sums + r * kPanel + kLanes, high[r]);
}

template <class Prefetcher>
inline void add_piece(int rows, const float* x, int64_t stride, const float* piece, int inputs, Prefetcher& prefetcher, float* sums) {
    switch (rows) {
#define FDLP_N(n)                                                                                   \
    case n:                                                                                         \
        if constexpr (n <= kMaxPieceTile) add_piece<n>(x, stride, piece, inputs, prefetcher, sums); \
        break;
        FDLP_N(1) FDLP_N(2) FDLP_N(3) FDLP_N(4) FDLP_N(5) FDLP_N(6) FDLP_N(7) FDLP_N(8) FDLP_N(9) FDLP_N(10) FDLP_N(11) FDLP_N(12)
#undef FDLP_N
    }
}

// `inputs` of a panel, from input `first` on, where a group begins, as floats [inputs][32]: where they are, or expanded into `room`
// [kPiece][32].
template <class Loader>
inline const float* take_piece(float* room, Format format, const uint8_t* panel, int first, int inputs, const Loader& loader) {
    const int64_t share = packed_weights::group_share(format);
    for (int k = 0; k < inputs; k += kGroup) {
        const int g = (first + k) / kGroup;
        loader.ask(panel + g * share + kBytesAhead, share);
        if (format != Format::float32) packed_weights::expand_group(room + k * kPanel, format, panel, g);
    }
    return format == Format::float32 ? reinterpret_cast<const float*>(panel + first / kGroup * share) : room;
}

// A panel for all rows of x [rows][in]: sums [rows][32]. `loader` prefetches the panel, `prefetcher` memory that is needed later.
template <class Loader, class Prefetcher>
inline void multiply_in_pieces(const float* x, int rows, int in, Format format, const uint8_t* panel, const Loader& loader,
                               Prefetcher& prefetcher, float* sums) {
    alignas(64) float room[kPiece * kPanel];
    std::fill_n(sums, static_cast<int64_t>(rows) * kPanel, 0.0f);
    for (int first = 0; first < in; first += kPiece) {
        const int inputs = std::min(in - first, kPiece);
        const float* piece = take_piece(room, format, panel, first, inputs, loader);
        for (int row = 0, height, left = piece_tiles(rows); row < rows; row += height, --left) {
            height = (rows - row + left - 1) / left;
            add_piece(height, x + static_cast<int64_t>(row) * in + first, in, piece, inputs, prefetcher,
                      sums + static_cast<int64_t>(row) * kPanel);
        }
    }
}

}  // namespace linear_float
