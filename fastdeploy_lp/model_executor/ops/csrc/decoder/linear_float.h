// Matrix products of float32 activations and packed weights of any format (packed_weights.h), which are float32 numbers once they are read.
//
// Every output element is one chain of multiply-adds over `in` in ascending order, whatever the number of rows and the format: a row's
// result has the same bits alone and in a crowd, and for the same weights in every format that holds them.
#pragma once

#include "decoder/packed_weights.h"

namespace linear_float {

using packed_weights::Format;
using packed_weights::kGroup;
using packed_weights::kPanel;

constexpr int kMaxTile = 10;
// Prefetch distance in bytes.
constexpr int kBytesAhead = 8192;

// Inputs per prefetch: with more, too many lines are requested at a time. A power of 2.
constexpr int inputs_per_ask(Format format) {
    return format == Format::float32 ? 1 : format == Format::levels8 ? 4 : format == Format::levels4 ? 8 : 2;
}

// One panel for `Rows` rows of x [..][in]: sums[row] holds its 32 columns. `prefetcher` as in linear_int8.h.
template <int Rows, Format format, class Prefetcher>
inline void multiply(const float* x, int64_t stride, const uint8_t* panel, int in, Prefetcher& prefetcher, Floats (*sums)[2]) {
    constexpr int kGroupBytes = packed_weights::group_bytes(format), kInputs = inputs_per_ask(format);
    Floats low[Rows] = {}, high[Rows] = {};
    for (int first = 0; first < in; first += kGroup, panel += kGroupBytes) {
        const float* from = x + first;
        packed_weights::each_input<format>(panel, in - first < kGroup ? in - first : kGroup, [&](int k, Floats w0, Floats w1) {
            if (k % kInputs == 0) prefetcher.ask(panel + kBytesAhead + k * (kGroupBytes / kGroup), kInputs * (kGroupBytes / kGroup));
#pragma GCC unroll 16
            for (int r = 0; r < Rows; ++r) {
                const Floats a = splat(from[r * stride + k]);
                low[r] += a * w0;
                high[r] += a * w1;
            }
        });
    }
    for (int r = 0; r < Rows; ++r) sums[r][0] = low[r], sums[r][1] = high[r];
}

// A panel as floats [in][32], in whole groups.
template <class Prefetcher>
inline void expand(float* to, Format format, const uint8_t* panel, int in, Prefetcher& prefetcher) {
    const int bytes = packed_weights::group_bytes(format);
    for (int first = 0; first < in; first += kGroup, panel += bytes, to += kGroup * kPanel) {
        prefetcher.ask(panel + kBytesAhead, bytes);
        packed_weights::expand_group(to, format, panel);
    }
}

}  // namespace linear_float
