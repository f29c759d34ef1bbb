// Matrix products with float32 weights, packed so that they are read once and in order.
//
// Columns lie in panels of 32, each [in][32]. Every output element is one chain of multiply-adds over `in` in ascending order,
// whatever the number of rows: a row's result has the same bits alone and in a crowd.
#pragma once

#include "simd.h"

namespace linear_float {

constexpr int kPanel = 2 * kLanes;
constexpr int kMaxTile = 10;
constexpr int kAhead = 64 * kPanel;

inline int64_t packed_floats(int in, int out) { return static_cast<int64_t>((out + kPanel - 1) / kPanel) * kPanel * in; }

// weights [out][in] → panels; columns beyond `out` are zero.
inline void pack_panel(float* packed, const float* weights, int in, int out, int panel) {
    float* to = packed + static_cast<int64_t>(panel) * kPanel * in;
    for (int column = 0; column < kPanel; ++column) {
        const int row = panel * kPanel + column;
        for (int k = 0; k < in; ++k) to[k * kPanel + column] = row < out ? weights[static_cast<int64_t>(row) * in + k] : 0.0f;
    }
}

// One panel for `Rows` rows of x [..][in]: sums[row] holds its 32 columns. `ahead` as in linear_int8.h.
template <int Rows, class Ahead>
inline void multiply(const float* x, int64_t stride, const float* panel, int in, Ahead& ahead, Floats (*sums)[2]) {
    Floats low[Rows] = {}, high[Rows] = {};
    for (int k = 0; k < in; ++k) {
        ahead.ask(panel + k * kPanel + kAhead, kPanel * sizeof(float));
        const Floats w0 = load(panel + k * kPanel), w1 = load(panel + k * kPanel + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            const Floats a = splat(x[r * stride + k]);
            low[r] += a * w0;
            high[r] += a * w1;
        }
    }
    for (int r = 0; r < Rows; ++r) sums[r][0] = low[r], sums[r][1] = high[r];
}

}  // namespace linear_float
