// The products of linear_bfloat16.h in tiles, whose instruction adds in the same order: results have the same bits.
#pragma once

#include "decoder/linear_bfloat16.h"
#include "decoder/tile_unit.h"

namespace bfloat16_tiles {

using linear_bfloat16::kBytesAhead;
using packed_weights::kGroup;
using packed_weights::kLine;
using packed_weights::kPanel;

// Rows per pass over a panel.
constexpr int kMaxTile = 2 * tiles::kMaxRows;
// Prefetches per group.
constexpr int kAsks = 4;

// Rounds `n` activations from the start of a group to the upper halves of floats; zeros fill the last group up.
inline void round_groups(const float* x, int n, uint16_t* to) {
    for (int k = 0; k < (n + kGroup - 1) / kGroup * kGroup; k += kLanes)
        store_uppers(to + k, (Words)round_to_bfloat16(load_first(x + k, n - k)));
}

// Tiles 0 and 1 hold the sums of up to 16 rows and all columns, 2 and 3 those of 16 further rows; 4 and 5 the rows' activations of one
// group, 6 and 7 the weights of 16 columns each.
constexpr tiles::Configuration configuration_of(int rows) {
    tiles::Configuration c;
    for (int weights = 6; weights < 8; ++weights) c.set(weights, kGroup / 2, kLine);
    for (int part = 0; part < 2; ++part) {
        const int left = rows - part * tiles::kMaxRows, height = left < tiles::kMaxRows ? left : tiles::kMaxRows;
        if (height <= 0) break;
        for (int half = 0; half < 2; ++half) c.set(2 * part + half, height, kLine);
        c.set(4 + part, height, 2 * kGroup);
    }
    return c;
}

struct Configurations {
    tiles::Configuration of_rows[kMaxTile + 1];

    constexpr Configurations() : of_rows() {
        for (int rows = 0; rows <= kMaxTile; ++rows) of_rows[rows] = configuration_of(rows);
    }
};
inline constexpr Configurations kConfigurations;

// One panel for up to 16 rows of x [..][groups * 32], or with `Both` for more, up to 32: `sums` [rows][32].
template <class Instructions, bool Both, class Prefetcher>
inline void multiply(const uint16_t* x, int groups, const uint8_t* panel, Prefetcher& prefetcher, float* sums) {
    constexpr int64_t kPairBytes = 2 * kLine, kRowBytes = kPanel * sizeof(float), kAskBytes = kGroup * kLine / kAsks;
    const int64_t stride = static_cast<int64_t>(groups) * kGroup * sizeof(uint16_t);
    const uint16_t* further = x + tiles::kMaxRows * static_cast<int64_t>(groups) * kGroup;
    const auto ask = [&](int part) { prefetcher.ask(panel + kBytesAhead + part * kAskBytes, kAskBytes); };
    Instructions::template zero<0>();
    Instructions::template zero<1>();
    if constexpr (Both) Instructions::template zero<2>(), Instructions::template zero<3>();
    for (int g = 0; g < groups; ++g, x += kGroup, further += kGroup, panel += kGroup * kLine) {
        Instructions::template load<4>(x, stride);
        if constexpr (Both) Instructions::template load<5>(further, stride);
        Instructions::template load<6>(panel, kPairBytes);
        ask(0);
        Instructions::template multiply_bfloat16<0, 4, 6>();
        ask(1);
        if constexpr (Both) Instructions::template multiply_bfloat16<2, 5, 6>();
        Instructions::template load<7>(panel + kLine, kPairBytes);
        ask(2);
        Instructions::template multiply_bfloat16<1, 4, 7>();
        ask(3);
        if constexpr (Both) Instructions::template multiply_bfloat16<3, 5, 7>();
    }
    Instructions::template store<0>(sums, kRowBytes);
    Instructions::template store<1>(sums + kLanes, kRowBytes);
    if constexpr (Both) {
        Instructions::template store<2>(sums + tiles::kMaxRows * kPanel, kRowBytes);
        Instructions::template store<3>(sums + tiles::kMaxRows * kPanel + kLanes, kRowBytes);
    }
}

// One panel for `rows` rows, at most kMaxTile.
template <class Prefetcher>
inline void multiply(const uint16_t* x, int groups, int rows, const uint8_t* panel, Prefetcher& prefetcher, float* sums) {
    tiles::with_instructions([&](auto instructions) {
        using Instructions = decltype(instructions);
        tiles::configure<Instructions>(kConfigurations.of_rows[rows]);
        if (rows > tiles::kMaxRows)
            multiply<Instructions, true>(x, groups, panel, prefetcher, sums);
        else
            multiply<Instructions, false>(x, groups, panel, prefetcher, sums);
    });
}

}  // namespace bfloat16_tiles
