// One pass over a row of logits: its maximum, the maximum's index, and whether the row is usable.
#pragma once

#include <cmath>
#include <limits>

#include "simd.h"

namespace fdlp {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Vectors of one AVX2 register: GCC keeps those of two registers in memory.
constexpr int64_t kWide = 8;
typedef float HalfFloats __attribute__((vector_size(kWide * sizeof(float))));
typedef int32_t HalfInts __attribute__((vector_size(kWide * sizeof(int32_t))));
typedef uint32_t HalfWords __attribute__((vector_size(kWide * sizeof(uint32_t))));

inline HalfFloats load_half(const float* from) {
    HalfFloats v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

inline bool any(HalfInts mask) {
#if defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t joined = 0;
    for (int64_t lane = 0; lane < kWide; ++lane) joined |= mask[lane];
    return joined != 0;
#endif
}

using ::any;

inline int64_t count_true(Ints lanes) { return -static_cast<int64_t>(sum(lanes)); }

struct RowScan {
    float max;
    int64_t argmax;  // the first of equals
    bool usable;     // no NaN, and a finite maximum
};

inline RowScan scan_row(const float* row, int64_t size) {
    constexpr int64_t kBlock = 4096, kParts = 4, kStride = kParts * kWide;
    float max = kMinusInfinity;
    int64_t block_of_max = 0;
    HalfInts bad = {};
    int64_t tail_bad = 0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
        const int64_t end = begin + kBlock < size ? begin + kBlock : size;
        HalfFloats highest[kParts];
        for (HalfFloats& each : highest) each = HalfFloats{} + kMinusInfinity;
        int64_t at = begin;
        for (; at + kStride <= end; at += kStride) {
            for (int64_t part = 0; part < kParts; ++part) {
                const HalfFloats values = load_half(row + at + part * kWide);
                highest[part] = values > highest[part] ? values : highest[part];
                bad |= values != values;
            }
        }
        float block_max = kMinusInfinity;
        for (const HalfFloats& each : highest)
            for (int64_t lane = 0; lane < kWide; ++lane) block_max = each[lane] > block_max ? each[lane] : block_max;
        for (; at < end; ++at) {
            block_max = row[at] > block_max ? row[at] : block_max;
            tail_bad |= row[at] != row[at];
        }
        if (block_max > max) {
            max = block_max;
            block_of_max = begin;
        }
    }
    if (any(bad) || tail_bad || !std::isfinite(max)) return {max, 0, false};
    int64_t argmax = block_of_max;
    while (row[argmax] != max) ++argmax;
    return {max, argmax, true};
}

}  // namespace fdlp
