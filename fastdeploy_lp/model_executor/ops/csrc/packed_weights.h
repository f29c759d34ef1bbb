// Weights in 8 bits with a scale and a minimum for every group of 32 along `in`, packed in the order in which products read them.
//
// A weight is minimum + scale * q with q in 0 … 255, for each output column and group. Where every q of a matrix is a multiple of 17, of
// which there are 16, it takes 4 bits: the same numbers in half the memory. Weights from 4-bit GGUF blocks (Q4_1) are of that kind.
//
// Panels of 32 columns; for each group, for each half panel of 16 columns: the levels, then 16 scales and 16 minima as half floats. Levels
// of 8 bits lie in 8 lines of [16 columns][4 consecutive k]; of 4 bits in 4 such lines, line i with those of line i + 4 in its high bits.
#pragma once

#include "simd.h"

namespace packed_weights {

constexpr int kGroup = 32;
constexpr int kPanel = 2 * kLanes;
constexpr int kLine = 4 * kLanes;
constexpr int kLines = kGroup / 4;
constexpr int kScaleBytes = 2 * kLanes * 2;
// q = 17 * level, level in 0 … 15.
constexpr int kStepOf4Bits = 17;

constexpr int level_bytes(int bits) { return kGroup * kLanes * bits / 8; }
constexpr int half_bytes(int bits) { return level_bytes(bits) + kScaleBytes; }
constexpr int group_bytes(int bits) { return 2 * half_bytes(bits); }
inline int groups_of(int in) { return (in + kGroup - 1) / kGroup; }
inline int64_t panel_bytes(int bits, int in) { return static_cast<int64_t>(groups_of(in)) * group_bytes(bits); }

// One column of one group.
struct Group {
    uint8_t q[kGroup];
    uint16_t scale, minimum;

    bool fits_4_bits() const {
        int left = 0;
        for (int i = 0; i < kGroup; ++i) left |= q[i] % kStepOf4Bits;
        return left == 0;
    }
};

// Of `n` weights; levels beyond them are 0.
inline Group quantize(const float* w, int n) {
    Group group{};
    float low = n > 0 ? w[0] : 0.0f, high = low;
    for (int i = 1; i < n; ++i) low = w[i] < low ? w[i] : low, high = w[i] > high ? w[i] : high;
    group.scale = float_to_half((high - low) / 255.0f);
    group.minimum = float_to_half(low);
    // Steps are counted with the numbers as they are stored, so that their rounding is made up for.
    const float scale = half_to_float(group.scale), minimum = half_to_float(group.minimum);
    for (int i = 0; i < n; ++i) {
        float step = scale > 0.0f ? __builtin_rintf((w[i] - minimum) / scale) : 0.0f;
        step = step < 0.0f ? 0.0f : step > 255.0f ? 255.0f : step;
        group.q[i] = static_cast<uint8_t>(step);
    }
    return group;
}

// Group `g` of column `column` of weights [out][in]; columns beyond `out` are zero.
inline Group quantize(const float* weights, int in, int out, int column, int g) {
    const int left = in - g * kGroup;
    return quantize(weights + static_cast<int64_t>(column) * in + g * kGroup, column < out ? (left < kGroup ? left : kGroup) : 0);
}

// Whether all levels of the panel are multiples of 17.
inline bool panel_fits_4_bits(const float* weights, int in, int out, int panel) {
    for (int column = panel * kPanel; column < (panel + 1) * kPanel; ++column)
        for (int g = 0; g < groups_of(in); ++g)
            if (!quantize(weights, in, out, column, g).fits_4_bits()) return false;
    return true;
}

inline void pack_panel(uint8_t* packed, int bits, const float* weights, int in, int out, int panel) {
    uint8_t* to = packed + panel * panel_bytes(bits, in);
    for (int g = 0; g < groups_of(in); ++g)
        for (int column = 0; column < kPanel; ++column) {
            const Group group = quantize(weights, in, out, panel * kPanel + column, g);
            const int lane = column % kLanes;
            uint8_t* half = to + g * group_bytes(bits) + column / kLanes * half_bytes(bits);
            for (int i = 0; i < kGroup; ++i) {
                const int line = i / 4, at = lane * 4 + i % 4;
                if (bits == 8)
                    half[line * kLine + at] = group.q[i];
                else
                    half[line % (kLines / 2) * kLine + at] |=
                        static_cast<uint8_t>(group.q[i] / kStepOf4Bits << (line < kLines / 2 ? 0 : 4));
            }
            uint16_t* scales = reinterpret_cast<uint16_t*>(half + level_bytes(bits));
            scales[lane] = group.scale, scales[kLanes + lane] = group.minimum;
        }
}

// Row `row` of the packed matrix [out][in] as floats [in].
inline void unpack_row(float* to, const uint8_t* packed, int bits, int in, int row) {
    const uint8_t* column = packed + row / kPanel * panel_bytes(bits, in) + row % kPanel / kLanes * half_bytes(bits);
    const int lane = row % kLanes;
    for (int g = 0; g < groups_of(in); ++g) {
        const uint8_t* half = column + static_cast<int64_t>(g) * group_bytes(bits);
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(half + level_bytes(bits));
        const float scale = half_to_float(scales[lane]), minimum = half_to_float(scales[kLanes + lane]);
        const int left = in - g * kGroup, n = left < kGroup ? left : kGroup;
        for (int i = 0; i < n; ++i) {
            const int line = i / 4, at = lane * 4 + i % 4;
            const int level = bits == 8              ? half[line * kLine + at]
                              : line < kLines / 2 ? (half[line * kLine + at] & 15) * kStepOf4Bits
                                                  : (half[(line - kLines / 2) * kLine + at] >> 4) * kStepOf4Bits;
            to[g * kGroup + i] = minimum + scale * static_cast<float>(level);
        }
    }
}

// Half a panel's group as products take it: lines `pair` and `pair` + 4.
template <int Bits>
struct HalfGroup {
    const uint8_t* at;

    void lines(int pair, Bytes* low, Bytes* high) const {
        if constexpr (Bits == 8) {
            *low = load(at + pair * kLine);
            *high = load(at + (kLines / 2 + pair) * kLine);
        } else {
            split_nibbles(load(at + pair * kLine), low, high);
        }
    }
    // What one of a line's numbers is worth.
    Floats steps() const {
        const Floats scale = load(scales());
        return Bits == 8 ? scale : scale * static_cast<float>(kStepOf4Bits);
    }
    Floats minima() const { return load(scales() + kLanes); }

   private:
    const uint16_t* scales() const { return reinterpret_cast<const uint16_t*>(at + level_bytes(Bits)); }
};

}  // namespace packed_weights
