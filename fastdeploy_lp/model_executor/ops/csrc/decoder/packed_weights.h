// Weight matrices packed in the order in which products read them: panels of 32 columns, and in those groups of 32 inputs.
//
// A matrix is stored in the shortest format that represents its numbers. Floats of 32 or 16 bits: a group is [32 inputs][32 columns].
// Levels of 8 or 4 bits (weight_levels.h): for each half panel of 16 columns, the levels, then 16 scales and 16 minima as half floats.
// Levels of 8 bits are in 8 lines of [16 columns][4 consecutive inputs]; of 4 bits in 4 such lines, line i with those of line i + 4 in its
// high bits. Partial panels and groups are padded with zeros.
#pragma once

#include "decoder/weight_levels.h"

namespace packed_weights {

// Mirrored by `WeightFormat` in packed_weight.py.
enum class Format : int32_t { float32, float16, bfloat16, levels8, levels4 };
constexpr int kFormats = 5;

using weight_levels::groups_of;
using weight_levels::kGroup;
constexpr int kPanel = 2 * kLanes;
constexpr int kLine = 4 * kLanes;
constexpr int kLines = kGroup / 4;
constexpr int kScaleBytes = 2 * kLanes * 2;

constexpr int bits_of(Format format) {
    return format == Format::float32 ? 32 : format == Format::levels8 ? 8 : format == Format::levels4 ? 4 : 16;
}
constexpr bool is_levels(Format format) { return format == Format::levels8 || format == Format::levels4; }
constexpr int half_bytes(Format format) { return kGroup * kLanes * bits_of(format) / 8 + (is_levels(format) ? kScaleBytes : 0); }
constexpr int group_bytes(Format format) { return 2 * half_bytes(format); }
inline int64_t panel_bytes(Format format, int in) { return static_cast<int64_t>(groups_of(in)) * group_bytes(format); }
inline int panels_of(int out) { return (out + kPanel - 1) / kPanel; }

// Weights [out][in].
struct Matrix {
    const float* weights;
    int in, out;

    float at(int column, int k) const { return column < out && k < in ? weights[static_cast<int64_t>(column) * in + k] : 0.0f; }
    weight_levels::Group levels(int column, int g) const {
        const int left = in - g * kGroup;
        const float* from = weights + static_cast<int64_t>(column) * in + g * kGroup;
        return weight_levels::quantize(from, column < out ? (left < kGroup ? left : kGroup) : 0);
    }
};

// Sets of formats have bit 1 << format for each.
constexpr unsigned set_of(Format format) { return 1u << static_cast<int>(format); }

// Subset of `formats` that represents the panel's weights exactly.
inline unsigned exact_formats(const Matrix& m, int panel, unsigned formats) {
    for (int column = panel * kPanel; column < (panel + 1) * kPanel; ++column)
        for (int g = 0; g < groups_of(m.in); ++g) {
            if (formats & (set_of(Format::levels8) | set_of(Format::levels4))) {
                const weight_levels::Group group = m.levels(column, g);
                if (!group.exact) formats &= ~(set_of(Format::levels8) | set_of(Format::levels4));
                if (!group.fits_4_bits()) formats &= ~set_of(Format::levels4);
            }
            if (formats & (set_of(Format::bfloat16) | set_of(Format::float16)))
                for (int k = g * kGroup; k < (g + 1) * kGroup; ++k) {
                    const float w = m.at(column, k);
                    if (bfloat16_to_float(float_to_bfloat16(w)) != w) formats &= ~set_of(Format::bfloat16);
                    if (half_to_float(float_to_half(w)) != w) formats &= ~set_of(Format::float16);
                }
        }
    return formats;
}

// True if all levels of the panel, rounded or not, fit 4 bits.
inline bool panel_fits_4_bits(const Matrix& m, int panel) {
    for (int column = panel * kPanel; column < (panel + 1) * kPanel; ++column)
        for (int g = 0; g < groups_of(m.in); ++g)
            if (!m.levels(column, g).fits_4_bits()) return false;
    return true;
}

inline void pack_levels(uint8_t* half, Format format, const weight_levels::Group& group, int lane) {
    // The 4 levels of each line at once.
    uint32_t lines[kLines];
    std::memcpy(lines, group.q, sizeof lines);
    const int count = format == Format::levels8 ? kLines : kLines / 2;
    for (int line = 0; line < count; ++line) {
        const uint32_t bytes = format == Format::levels8 ? lines[line] : lines[line] | lines[line + kLines / 2] << 4;
        std::memcpy(half + line * kLine + lane * 4, &bytes, sizeof bytes);
    }
    uint16_t* scales = reinterpret_cast<uint16_t*>(half + half_bytes(format) - kScaleBytes);
    scales[lane] = group.scale, scales[kLanes + lane] = group.minimum;
}

// `packed` is zero at first.
inline void pack_panel(uint8_t* packed, Format format, const Matrix& m, int panel) {
    uint8_t* group = packed + panel * panel_bytes(format, m.in);
    for (int g = 0; g < groups_of(m.in); ++g, group += group_bytes(format))
        for (int i = 0; i < kPanel; ++i) {
            const int column = panel * kPanel + i;
            if (is_levels(format)) {
                pack_levels(group + i / kLanes * half_bytes(format), format, m.levels(column, g), i % kLanes);
                continue;
            }
            for (int k = 0; k < kGroup; ++k) {
                const float w = m.at(column, g * kGroup + k);
                if (format == Format::float32)
                    reinterpret_cast<float*>(group)[k * kPanel + i] = w;
                else
                    reinterpret_cast<uint16_t*>(group)[k * kPanel + i] =
                        format == Format::bfloat16 ? float_to_bfloat16(w) : float_to_half(w);
            }
        }
}

// Half a panel's group of levels as products read it: lines `pair` and `pair` + 4.
template <Format format>
struct HalfGroup {
    const uint8_t* at;

    void lines(int pair, Bytes* low, Bytes* high) const {
        if constexpr (format == Format::levels8) {
            *low = load(at + pair * kLine);
            *high = load(at + (kLines / 2 + pair) * kLine);
        } else {
            split_nibbles(load(at + pair * kLine), low, high);
        }
    }
    Floats scales() const { return load(steps()); }
    Floats minima() const { return load(steps() + kLanes); }

   private:
    const uint16_t* steps() const { return reinterpret_cast<const uint16_t*>(at + half_bytes(format) - kScaleBytes); }
};

// Calls use(k, weights of columns 0-15, of columns 16-31), as floats, for the first `n` inputs of a panel's group in ascending order.
template <Format format, class Use>
inline void each_input(const uint8_t* group, int n, const Use& use) {
    if constexpr (is_levels(format)) {
        const HalfGroup<format> halves[2] = {{group}, {group + half_bytes(format)}};
        const Floats scales[2] = {halves[0].scales(), halves[1].scales()}, minima[2] = {halves[0].minima(), halves[1].minima()};
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part)
            for (int pair = 0; pair < kLines / 2; ++pair) {
                Bytes lines[2][2];
                for (int half = 0; half < 2; ++half) halves[half].lines(pair, &lines[half][0], &lines[half][1]);
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) {
                    const int k = (part * kLines / 2 + pair) * 4 + i;
                    if (k < n)
                        use(k, minima[0] + scales[0] * to_floats(byte_of_each(lines[0][part], i)),
                            minima[1] + scales[1] * to_floats(byte_of_each(lines[1][part], i)));
                }
            }
    } else if constexpr (format == Format::float32) {
        const auto from = reinterpret_cast<const float*>(group);
        for (int k = 0; k < n; ++k) use(k, load(from + k * kPanel), load(from + k * kPanel + kLanes));
    } else {
        const auto floats = [](const uint16_t* from) { return format == Format::bfloat16 ? load_bfloat16(from) : load(from); };
        const auto from = reinterpret_cast<const uint16_t*>(group);
        for (int k = 0; k < n; ++k) use(k, floats(from + k * kPanel), floats(from + k * kPanel + kLanes));
    }
}

// A panel's group as floats [32 inputs][32 columns].
inline void expand_group(float* to, Format format, const uint8_t* group) {
    const auto put = [=](int k, Floats low, Floats high) {
        store(to + k * kPanel, low);
        store(to + k * kPanel + kLanes, high);
    };
    switch (format) {
        case Format::float32: return each_input<Format::float32>(group, kGroup, put);
        case Format::bfloat16: return each_input<Format::bfloat16>(group, kGroup, put);
        case Format::float16: return each_input<Format::float16>(group, kGroup, put);
        case Format::levels8: return each_input<Format::levels8>(group, kGroup, put);
        case Format::levels4: return each_input<Format::levels4>(group, kGroup, put);
    }
}

// Row `row` of the packed matrix [out][in] as floats [in].
inline void unpack_row(float* to, const uint8_t* packed, Format format, int in, int row) {
    const uint8_t* group = packed + row / kPanel * panel_bytes(format, in);
    alignas(64) float room[kGroup * kPanel];
    for (int g = 0; g < groups_of(in); ++g, group += group_bytes(format)) {
        expand_group(room, format, group);
        for (int k = g * kGroup; k < in && k < (g + 1) * kGroup; ++k) to[k] = room[k % kGroup * kPanel + row % kPanel];
    }
}

}  // namespace packed_weights
