// Activations in groups of 32 along `in`, quantized to one or two 8-bit digits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "decoder/packed_weights.h"
#include "of_sixteen.h"

namespace linear_int8 {

constexpr int kGroup = packed_weights::kGroup;

using packed_weights::groups_of;

// A group with no larger activation counts as zero: the inverse of its step would overflow float32.
constexpr float kNothing = 1e-30f;

// A row of activations: for each group 32 high digits and, if there are two, 32 low ones; its scale; scale * Σ a; and, unless null, Σ a of
// its first and of its last 16, for levels that are multiplied with an offset (offset_of).
struct Activations {
    int8_t* q;
    float* scale;
    float* total;
    int32_t* sums;

    // Σ a of a part of the group at index `at`.
    int32_t sum_of(int at, int part, int parts) const { return parts == 2 ? sums[2 * at + part] : sums[2 * at] + sums[2 * at + 1]; }
};

template <int Digits>
constexpr float kLevels = Digits == 1 ? 127.0f : 127.0f * 256.0f;

// Stores the digits of half a group and returns its levels.
template <int Digits>
inline Ints quantize_half(const float* x, int half, float inverse, int8_t* q) {
    const Ints level = round_to_ints(load(x + half * kLanes) * splat(inverse));
    const Ints high = Digits == 1 ? level : (level + 128) >> 8;
    store_bytes(q + half * kLanes, high);
    if (Digits == 2) store_bytes(q + kGroup + half * kLanes, level - high * 256);
    return level;
}

// Quantizes a group [32]; a NaN or an infinity makes the scale NaN, so that the row's result is NaN.
template <int Digits>
inline void quantize_group(const float* x, int8_t* q, float* scale, float* total, int32_t* sums) {
    const float most = largest_magnitude(load(x), load(x + kLanes));
    if (!(most <= std::numeric_limits<float>::max())) {
        std::memset(q, 0, Digits * kGroup);
        *scale = *total = std::numeric_limits<float>::quiet_NaN();
        if (sums != nullptr) sums[0] = sums[1] = 0;
        return;
    }
    const float inverse = most > kNothing ? kLevels<Digits> / most : 0.0f;
    const Ints low = quantize_half<Digits>(x, 0, inverse, q), high = quantize_half<Digits>(x, 1, inverse, q);
    if (sums != nullptr) sums[0] = sum(low), sums[1] = sum(high);
    *scale = most / kLevels<Digits>;
    *total = *scale * static_cast<float>(sum(low + high));
}

// Groups [32] that are `stride` floats apart, and their results `step` groups apart from `to` on.
struct Groups {
    const float* x;
    int64_t stride;
    Activations to;
    int64_t step;

    template <int Digits>
    void quantize(int index) const {
        const int64_t at = index * step;
        quantize_group<Digits>(x + index * stride, to.q + at * Digits * kGroup, to.scale + at, to.total + at,
                               to.sums == nullptr ? nullptr : to.sums + 2 * at);
    }
};

#if defined(FDLP_OF_SIXTEEN)
// Quantizes 16 groups from `first` on, or fewer, with the same bits; returns false for groups with a NaN or an infinity.
template <int Digits>
inline bool quantize_sixteen(const Groups& groups, int first, int count) {
    const Ints without_sign = Ints{} + 0x7fffffff;
    Ints magnitudes[16], levels[2][16];
    for (int i = count; i < 16; ++i) magnitudes[i] = levels[0][i] = levels[1][i] = Ints{};
    for (int i = 0; i < count; ++i) {
        const float* x = groups.x + (first + i) * groups.stride;
        magnitudes[i] = (Ints)_mm512_max_epi32((__m512i)((Ints)load(x) & without_sign), (__m512i)((Ints)load(x + kLanes) & without_sign));
    }
    const Floats most = (Floats)of_sixteen::largest(magnitudes);
    if (_mm512_cmp_ps_mask((__m512)most, (__m512)splat(std::numeric_limits<float>::max()), _CMP_NLE_UQ) != 0) return false;
    alignas(64) float inverse[16], scales[16], totals[16];
    store(inverse, select(most > splat(kNothing), splat(kLevels<Digits>) / most, Floats{}));
    const Floats scale = most / splat(kLevels<Digits>);
    for (int i = 0; i < count; ++i) {
        const float* x = groups.x + (first + i) * groups.stride;
        int8_t* q = groups.to.q + (first + i) * groups.step * Digits * kGroup;
        for (int half = 0; half < 2; ++half) levels[half][i] = quantize_half<Digits>(x, half, inverse[i], q);
    }
    alignas(64) int32_t sums[2][16];
    const bool by_half = groups.to.sums != nullptr;
    if (!by_half)
        for (int i = 0; i < count; ++i) levels[0][i] += levels[1][i];
    const Ints low = of_sixteen::sums(levels[0]), high = by_half ? of_sixteen::sums(levels[1]) : Ints{};
    write_vector(sums[0], low), write_vector(sums[1], high);
    store(scales, scale), store(totals, scale * to_floats(low + high));
    for (int i = 0; i < count; ++i) {
        const int64_t at = (first + i) * groups.step;
        groups.to.scale[at] = scales[i], groups.to.total[at] = totals[i];
        if (by_half) groups.to.sums[2 * at] = sums[0][i], groups.to.sums[2 * at + 1] = sums[1][i];
    }
    return true;
}
#endif

template <int Digits>
inline void quantize_groups(const Groups& groups, int count) {
    int done = 0;
#if defined(FDLP_OF_SIXTEEN)
    // Fewer take longer together than alone.
    for (; count - done >= 4; done += 16)
        if (!quantize_sixteen<Digits>(groups, done, std::min(count - done, 16)))
            for (int i = done; i < count && i < done + 16; ++i) groups.quantize<Digits>(i);
#endif
    for (; done < count; ++done) groups.quantize<Digits>(done);
}

// Quantizes whole groups.
inline void quantize_groups(const Groups& groups, int count, int digits) {
    if (digits == 1)
        quantize_groups<1>(groups, count);
    else
        quantize_groups<2>(groups, count);
}

// Quantizes `n` activations from the start of a group; `row` is the destination of that group.
inline void quantize_groups(const float* x, int n, int digits, Activations row) {
    const int whole = n / kGroup;
    quantize_groups(Groups{x, kGroup, row, 1}, whole, digits);
    if (whole * kGroup == n) return;
    float filled[kGroup] = {};
    std::memcpy(filled, x + whole * kGroup, sizeof(float) * (n - whole * kGroup));
    const Activations last{row.q + whole * digits * kGroup, row.scale + whole, row.total + whole,
                           row.sums == nullptr ? nullptr : row.sums + 2 * whole};
    quantize_groups(Groups{filled, kGroup, last, 1}, 1, digits);
}

}  // namespace linear_int8
