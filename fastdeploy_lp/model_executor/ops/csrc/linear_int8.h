// Matrix products with 8-bit weights and activations of one or two 8-bit digits, all with scales for every group of 32 along `in`.
//
// A weight is minimum + scale * q with q in 0 … 255, for each output column and group; an activation is scale * a with a in -127 … 127
// (one digit) or -32512 … 32512 (two), for each row and group. Sums within a group are exact integers and groups are added in ascending
// order, so a row's result has the same bits alone and in a crowd.
//
// Packed: panels of 32 columns; for each group, for each half panel of 16 columns: 8 × [16 columns][4 consecutive k] of q, then 16 scales
// and 16 minima as half floats.
#pragma once

#include <cmath>
#include <limits>

#include "simd.h"

namespace linear_int8 {

constexpr int kGroup = 32;
constexpr int kPanel = 2 * kLanes;
constexpr int kHalfBytes = kGroup * kLanes + 2 * kLanes * 2;
constexpr int kGroupBytes = 2 * kHalfBytes;
constexpr int kAhead = 4 * kGroupBytes;

// Rows that share one reading of a panel: as many as have their sums in 32 registers.
inline int max_tile(int digits) { return digits == 1 ? 6 : 4; }
inline int groups_of(int in) { return (in + kGroup - 1) / kGroup; }
inline int64_t panel_bytes(int in) { return static_cast<int64_t>(groups_of(in)) * kGroupBytes; }
inline int64_t packed_bytes(int in, int out) { return (out + kPanel - 1) / kPanel * panel_bytes(in); }

// Activations of a group that has none larger count as zero: the inverse of their step would be no float32 number any more.
constexpr float kNothing = 1e-30f;

// A row of activations: for each group 32 high digits and, if there are two, 32 low ones; its scale; and scale * Σ a.
struct Activations {
    int8_t* q;
    float* scale;
    float* total;
};

// A group [32]; one with a NaN or an infinity gets a scale of NaN, so that its row shows it.
template <int Digits>
inline void quantize_group(const float* x, int8_t* q, float* scale, float* total) {
    constexpr float kLevels = Digits == 1 ? 127.0f : 127.0f * 256.0f;
    const float most = largest_magnitude_of_32(x);
    const bool finite = most <= std::numeric_limits<float>::max();
    const float inverse = finite && most > kNothing ? kLevels / most : 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
        const int32_t level = finite ? static_cast<int32_t>(__builtin_rintf(x[i] * inverse)) : 0;
        sum += level;
        const int32_t high = Digits == 1 ? level : (level + 128) >> 8;
        q[i] = static_cast<int8_t>(high);
        if (Digits == 2) q[kGroup + i] = static_cast<int8_t>(level - high * 256);
    }
    *scale = finite ? most / kLevels : std::numeric_limits<float>::quiet_NaN();
    *total = *scale * static_cast<float>(sum);
}

// Groups `first` … `last` - 1 of a row.
inline void quantize_groups(const float* x, int in, int digits, Activations row, int first, int last) {
    for (int g = first; g < last; ++g) {
        const int left = in - g * kGroup;
        const float* group = x + g * kGroup;
        float filled[kGroup] = {};
        if (left < kGroup) group = static_cast<const float*>(std::memcpy(filled, group, sizeof(float) * left));
        if (digits == 1)
            quantize_group<1>(group, row.q + g * kGroup, row.scale + g, row.total + g);
        else
            quantize_group<2>(group, row.q + 2 * g * kGroup, row.scale + g, row.total + g);
    }
}

inline void pack_group(uint8_t* to, const float* w, int n, int lane) {
    float low = n > 0 ? w[0] : 0.0f, high = low;
    for (int i = 1; i < n; ++i) low = w[i] < low ? w[i] : low, high = w[i] > high ? w[i] : high;
    uint16_t* scales = reinterpret_cast<uint16_t*>(to + kGroup * kLanes);
    scales[lane] = float_to_half((high - low) / 255.0f);
    scales[kLanes + lane] = float_to_half(low);
    // Steps are counted with the numbers as they are stored, so that their rounding is made up for.
    const float scale = half_to_float(scales[lane]), minimum = half_to_float(scales[kLanes + lane]);
    for (int i = 0; i < kGroup; ++i) {
        float step = i < n && scale > 0.0f ? __builtin_rintf((w[i] - minimum) / scale) : 0.0f;
        step = step < 0.0f ? 0.0f : step > 255.0f ? 255.0f : step;
        to[i / 4 * 4 * kLanes + lane * 4 + i % 4] = static_cast<uint8_t>(step);
    }
}

inline void pack_panel(uint8_t* packed, const float* weights, int in, int out, int panel) {
    uint8_t* to = packed + panel * panel_bytes(in);
    for (int g = 0; g < groups_of(in); ++g)
        for (int column = 0; column < kPanel; ++column) {
            const int row = panel * kPanel + column;
            const int n = row < out ? (in - g * kGroup < kGroup ? in - g * kGroup : kGroup) : 0;
            pack_group(to + g * kGroupBytes + column / kLanes * kHalfBytes, weights + static_cast<int64_t>(row) * in + g * kGroup, n,
                       column % kLanes);
        }
}

// Row `row` of the packed matrix as floats [in].
inline void unpack_row(float* to, const uint8_t* packed, int in, int row) {
    const uint8_t* panel = packed + row / kPanel * panel_bytes(in) + row % kPanel / kLanes * kHalfBytes;
    const int lane = row % kLanes;
    for (int k = 0; k < in; ++k) {
        const uint8_t* group = panel + k / kGroup * kGroupBytes;
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + kGroup * kLanes);
        const int i = k % kGroup;
        const float q = group[i / 4 * 4 * kLanes + lane * 4 + i % 4];
        to[k] = half_to_float(scales[kLanes + lane]) + half_to_float(scales[lane]) * q;
    }
}

// acc + Σ over 4 consecutive k of q [16][4] * a [4].
static inline Ints dot4(Ints acc, const uint8_t* q, const int8_t* a) {
    int32_t four;
    std::memcpy(&four, a, sizeof four);
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)acc, _mm512_loadu_si512(q), _mm512_set1_epi32(four));
#else
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) acc[lane] += static_cast<int32_t>(q[4 * lane + i]) * a[i];
    return acc;
#endif
}

// The digits of one row and group times one half panel: an exact integer.
template <int Digits>
static inline Ints combine(const Ints* acc) {
    return Digits == 1 ? acc[0] : acc[0] * 256 + acc[1];
}

// One panel for `Rows` rows: sums[row] holds its 32 columns. `groups` is also the stride of scale and total. `ahead` asks for memory
// that is needed later, a little with every group.
template <int Rows, int Digits, class Ahead>
inline void multiply(const Activations& x, int groups, const uint8_t* panel, Ahead& ahead, Floats (*sums)[2]) {
    constexpr int kStep = Digits * kGroup;
    Floats out[Rows][2] = {};
    for (int g = 0; g < groups; ++g, panel += kGroupBytes) {
        ahead.ask(panel + kAhead, kGroupBytes);
        Ints acc[Rows][2][Digits] = {};
#pragma GCC unroll 8
        for (int k = 0; k < kGroup; k += 4)
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
                for (int d = 0; d < Digits; ++d) {
                    const int8_t* a = x.q + (static_cast<int64_t>(r) * groups + g) * kStep + d * kGroup + k;
                    acc[r][0][d] = dot4(acc[r][0][d], panel + k * kLanes, a);
                    acc[r][1][d] = dot4(acc[r][1][d], panel + kHalfBytes + k * kLanes, a);
                }
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel + half * kHalfBytes + kGroup * kLanes);
            const Floats steps = load(scales), minima = load(scales + kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                out[r][half] += to_floats(combine<Digits>(acc[r][half])) * steps * splat(x.scale[r * groups + g]);
                out[r][half] += minima * splat(x.total[r * groups + g]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r) sums[r][0] = out[r][0], sums[r][1] = out[r][1];
}

}  // namespace linear_int8
