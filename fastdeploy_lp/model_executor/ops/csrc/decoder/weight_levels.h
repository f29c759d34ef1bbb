// Groups of up to 32 weights in 8 bits: a weight is minimum + scale * q, q in 0 … 255, with scale and minimum as half floats.
//
// Groups from GGUF blocks of 32 (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) get the steps of those blocks again, without loss.
#pragma once

#include "simd.h"

namespace weight_levels {

constexpr int kGroup = 32;
constexpr int kMost = 255;

inline int groups_of(int in) { return (in + kGroup - 1) / kGroup; }

struct Group {
    uint16_t scale, minimum;
    uint8_t q[kGroup];
    bool exact;  // no weight was rounded

    int largest_level() const {
        uint8_t most = 0;
        for (const uint8_t level : q) most = level > most ? level : most;
        return most;
    }
};

// w [n] in steps of `scale` from `minimum` on; false at the first weight that they do not hold exactly, unless those may be rounded. Steps
// are counted with the numbers as they are stored, so that their rounding is made up for.
inline bool take_steps(Group* group, const float* w, int n, float minimum, float scale, bool rounding) {
    group->scale = float_to_half(scale), group->minimum = float_to_half(minimum);
    scale = half_to_float(group->scale), minimum = half_to_float(group->minimum);
    for (int i = 0; i < n; ++i) {
        float step = scale != 0.0f ? __builtin_rintf((w[i] - minimum) / scale) : 0.0f;
        step = step > 0.0f ? step : 0.0f;
        step = step > kMost ? kMost : step;
        if (!rounding && minimum + scale * step != w[i]) return false;
        group->q[i] = static_cast<uint8_t>(step);
    }
    return true;
}

// The same for a whole group, in vectors.
inline bool take_steps(Group* group, const Floats (&w)[2], float minimum, float scale, bool rounding) {
    group->scale = float_to_half(scale), group->minimum = float_to_half(minimum);
    scale = half_to_float(group->scale), minimum = half_to_float(group->minimum);
    for (int half = 0; half < 2; ++half) {
        Ints step{};
        if (scale != 0.0f) {
            const Floats exact = maximum((w[half] - splat(minimum)) / splat(scale), splat(0.0f));
            step = round_to_ints(select(exact > splat(kMost), splat(kMost), exact));
        }
        if (!rounding && any(splat(minimum) + splat(scale) * to_floats(step) != w[half])) return false;
        store_bytes(reinterpret_cast<int8_t*>(group->q) + half * kLanes, step);
    }
    return true;
}

struct Range {
    float low, high;

    // Of equal extremes, which are zeros of both signs, the first one.
    static Range of(const float* w, int n) {
        if (n == kGroup) {
            const Floats first = load(w), second = load(w + kLanes);
            const Range range{-largest(maximum(-first, -second)), largest(maximum(first, second))};
            if (range.low != 0.0f && range.high != 0.0f) return range;
        }
        Range range{w[0], w[0]};
        for (int i = 1; i < n; ++i) {
            range.low = w[i] < range.low ? w[i] : range.low;
            range.high = w[i] > range.high ? w[i] : range.high;
        }
        return range;
    }
};

// Quantizes `n` weights; levels beyond them are 0.
inline Group quantize(const float* w, int n) {
    Group group{};
    if (n <= 0) return group.exact = true, group;
    const auto [low, high] = Range::of(w, n);
    const float range = high - low, extreme = high > -low ? high : low;
    const float step_of_q8 = half_to_float(float_to_half((extreme < 0.0f ? -extreme : extreme) / 127.0f));
    const float blocks[][2] = {
        {low, range / 15.0f},                // Q4_1
        {extreme, extreme / -8.0f},          // Q4_0
        {low, range / 31.0f},                // Q5_1
        {extreme, extreme / -16.0f},         // Q5_0
        {-128.0f * step_of_q8, step_of_q8},  // Q8_0
    };
    const auto take = [&](const auto&... weights) {
        for (const auto& [minimum, scale] : blocks)
            if (take_steps(&group, weights..., minimum, scale, false)) return true;
        take_steps(&group, weights..., low, range / static_cast<float>(kMost), true);
        return false;
    };
    if (n == kGroup) {
        const Floats whole[2] = {load(w), load(w + kLanes)};
        group.exact = take(whole);
    } else {
        group.exact = take(w, n);
    }
    return group;
}

}  // namespace weight_levels
