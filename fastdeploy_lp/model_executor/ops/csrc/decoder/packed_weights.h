// Weight matrices packed in the order in which products read them: panels of 32 columns, and in those groups of 32 inputs.
//
// A matrix is stored in the shortest format that represents its numbers. float32 and float16: a group is [32 inputs][32 columns].
// bfloat16: [16 pairs of inputs][32 columns][2], as matrix units read it; a pair is a 32-bit word, whose halves are floats after a shift.
// Levels of 8, 5 or 4 bits (weight_levels.h): for each half panel of 16 columns, the levels, then 16 scales and 16 minima as half floats.
// Levels of 8 bits are in 8 lines of [16 columns][4 consecutive inputs]; the low 4 bits of shorter ones in 4 such lines, line i with those
// of line i + 4 in its high bits. Higher bits follow: of 5 bits in one line, bit i of a byte for line i; of 6 bits in two lines, bits 2i
// and 2i + 1 for lines i and i + 4. Partial panels and groups are padded with zeros.
//
// Levels of GGUF's K-quants have scales at two places: 8 groups follow a header with 16 scales and, but for those of 6 bits, 16 minima for
// each half panel, as half floats, which the group's integers multiply: 16 scales and 16 minima or, of 6 bits, 16 scales for each 16
// inputs.
#pragma once

#include <initializer_list>

#include "decoder/weight_levels.h"

// Calls FDLP_FORMAT(format) for all formats; a program that multiplies with some of them may name those alone.
#if !defined(FDLP_FORMATS)
#define FDLP_FORMATS      \
    FDLP_FORMAT(float32)  \
    FDLP_FORMAT(float16)  \
    FDLP_FORMAT(bfloat16) \
    FDLP_FORMAT(levels8) FDLP_FORMAT(levels5) FDLP_FORMAT(levels4) FDLP_FORMAT(levels6k) FDLP_FORMAT(levels5k) FDLP_FORMAT(levels4k)
#endif

namespace packed_weights {

// Mirrored by `WeightFormat` in packed_weight.py.
enum class Format : int32_t { float32, float16, bfloat16, levels8, levels5, levels4, levels6k, levels5k, levels4k };
// The first ones, from the longest to the shortest, are found for any numbers; the others hold GGUF's blocks as they are.
constexpr int kFoundFormats = 6;

using weight_levels::groups_of;
using weight_levels::kGroup;
constexpr int kPanel = 2 * kLanes;
constexpr int kLine = 4 * kLanes;
constexpr int kLines = kGroup / 4;
constexpr int bits_of(Format format) {
    switch (format) {
        case Format::float32: return 32;
        case Format::float16:
        case Format::bfloat16: return 16;
        case Format::levels8: return 8;
        case Format::levels6k: return 6;
        case Format::levels5:
        case Format::levels5k: return 5;
        case Format::levels4:
        case Format::levels4k: return 4;
    }
    return 0;
}
constexpr bool is_levels(Format format) { return bits_of(format) <= 8; }
constexpr bool has_header(Format format) { return format == Format::levels6k || format == Format::levels5k || format == Format::levels4k; }
// A level of 0 is that many steps below zero; 0 for formats with separate minima.
constexpr int center_of(Format format) { return format == Format::levels6k ? 32 : 0; }
// Scales of a group, one after another for as many inputs each.
constexpr int parts_of(Format format) { return format == Format::levels6k ? 2 : 1; }

constexpr int level_bytes(Format format) { return kGroup * kLanes * bits_of(format) / 8; }
constexpr int scale_bytes(Format format) { return !is_levels(format) ? 0 : has_header(format) ? 2 * kLanes : 2 * kLanes * 2; }
constexpr int half_bytes(Format format) { return level_bytes(format) + scale_bytes(format); }
constexpr int group_bytes(Format format) { return 2 * half_bytes(format); }
constexpr int half_header_bytes(Format format) { return !has_header(format) ? 0 : center_of(format) > 0 ? 2 * kLanes : 2 * kLanes * 2; }
// Groups that share a header, and their bytes with it.
constexpr int block_groups(Format format) { return has_header(format) ? 8 : 1; }
constexpr int block_bytes(Format format) { return 2 * half_header_bytes(format) + block_groups(format) * group_bytes(format); }
// A group's share of its block.
constexpr int group_share(Format format) { return block_bytes(format) / block_groups(format); }
inline int64_t panel_bytes(Format format, int in) { return static_cast<int64_t>(groups_of(in)) * group_share(format); }
inline int panels_of(int out) { return (out + kPanel - 1) / kPanel; }

// Weights [out][in].
struct Matrix {
    const float* weights;
    int in, out;

    // The weights of a column's group, in `room` if it is a partial one, which is padded with zeros.
    const float* group(int column, int g, float (&room)[kGroup]) const {
        const float* from = weights + static_cast<int64_t>(column) * in + g * kGroup;
        const int left = column < out ? in - g * kGroup : 0;
        if (left >= kGroup) return from;
        for (int k = 0; k < kGroup; ++k) room[k] = k < left ? from[k] : 0.0f;
        return room;
    }
    weight_levels::Group levels(int column, int g) const {
        const int left = in - g * kGroup;
        const float* from = weights + static_cast<int64_t>(column) * in + g * kGroup;
        return weight_levels::quantize(from, column < out ? (left < kGroup ? left : kGroup) : 0);
    }
};

// Sets of formats have bit 1 << format for each.
constexpr unsigned set_of(Format format) { return 1u << static_cast<int>(format); }

constexpr unsigned kFoundLevels = set_of(Format::levels8) | set_of(Format::levels5) | set_of(Format::levels4);

// Those that have the group's levels, rounded or not.
inline unsigned formats_of(const weight_levels::Group& group) {
    const int most = group.largest_level();
    unsigned formats = 0;
    for (const Format format : {Format::levels8, Format::levels5, Format::levels4})
        if (most >> bits_of(format) == 0) formats |= set_of(format);
    return formats;
}

// True if the numbers of a group are the same in 16 bits.
inline bool all_bfloat16(const float* w) {
    bool same = true;
    for (int k = 0; k < kGroup; ++k) same &= bfloat16_to_float(float_to_bfloat16(w[k])) == w[k];
    return same;
}
inline bool all_half(const float* w) {
    bool same = true;
    for (int k = 0; k < kGroup; ++k) same &= half_to_float(float_to_half(w[k])) == w[k];
    return same;
}

// Subset of `formats` that represents the weights of a panel exactly.
inline unsigned exact_formats(const Matrix& m, unsigned formats) {
    for (int column = 0; column < kPanel; ++column)
        for (int g = 0; g < groups_of(m.in); ++g) {
            if (formats & kFoundLevels) {
                const weight_levels::Group group = m.levels(column, g);
                formats &= ~kFoundLevels | (group.exact ? formats_of(group) : 0);
            }
            float room[kGroup];
            const float* w = m.group(column, g, room);
            if (formats & set_of(Format::bfloat16) && !all_bfloat16(w)) formats &= ~set_of(Format::bfloat16);
            if (formats & set_of(Format::float16) && !all_half(w)) formats &= ~set_of(Format::float16);
        }
    return formats;
}

// Subset of `formats`, all of levels, that has the levels of a panel, rounded or not.
inline unsigned rounded_formats(const Matrix& m, unsigned formats) {
    for (int column = 0; column < kPanel; ++column)
        for (int g = 0; g < groups_of(m.in) && formats != 0; ++g) formats &= formats_of(m.levels(column, g));
    return formats;
}

// The levels of one column.
inline void pack_levels(uint8_t* half, Format format, const uint8_t (&q)[kGroup], int lane) {
    // The 4 levels of each line at once.
    uint32_t lines[kLines], bytes[kLines] = {};
    std::memcpy(lines, q, sizeof lines);
    const int bits = bits_of(format), higher = bits - 4;
    if (bits == 8) std::memcpy(bytes, lines, sizeof bytes);
    for (int line = 0; line < kLines && bits < 8; ++line) {
        constexpr uint32_t kDigits = 0x0f0f0f0f;
        bytes[line % (kLines / 2)] |= (lines[line] & kDigits) << line / (kLines / 2) * 4;
        const int bit = line * higher;
        bytes[kLines / 2 + bit / 8] |= ((lines[line] & ~kDigits) >> 4) << bit % 8;
    }
    for (int line = 0; line < bits; ++line) std::memcpy(half + line * kLine + lane * 4, bytes + line, sizeof *bytes);
}

inline void pack_levels(uint8_t* half, Format format, const weight_levels::Group& group, int lane) {
    pack_levels(half, format, group.q, lane);
    uint16_t* scales = reinterpret_cast<uint16_t*>(half + level_bytes(format));
    scales[lane] = group.scale, scales[kLanes + lane] = group.minimum;
}

// Packs a column's group of numbers at column `i` of a panel's group; false if they are not the same in that format.
inline bool pack_numbers(uint8_t* group, Format format, const float* w, int i) {
    if (format == Format::float32) {
        for (int k = 0; k < kGroup; ++k) reinterpret_cast<float*>(group)[k * kPanel + i] = w[k];
        return true;
    }
    uint16_t halves[kGroup];
    for (int k = 0; k < kGroup; ++k) halves[k] = format == Format::bfloat16 ? float_to_bfloat16(w[k]) : float_to_half(w[k]);
    if (format == Format::bfloat16) {
        uint32_t pairs[kGroup / 2];
        std::memcpy(pairs, halves, sizeof pairs);
        for (int pair = 0; pair < kGroup / 2; ++pair) reinterpret_cast<uint32_t*>(group)[pair * kPanel + i] = pairs[pair];
        return all_bfloat16(w);
    }
    for (int k = 0; k < kGroup; ++k) reinterpret_cast<uint16_t*>(group)[k * kPanel + i] = halves[k];
    return all_half(w);
}

// Packs a panel, which is zero at first; false at the first group that the format does not hold, exactly unless `rounding`.
inline bool pack_panel(uint8_t* packed, Format format, const Matrix& m, bool rounding) {
    uint8_t* group = packed;
    float room[kGroup];
    for (int g = 0; g < groups_of(m.in); ++g, group += group_bytes(format))
        for (int i = 0; i < kPanel; ++i) {
            if (!is_levels(format)) {
                if (!pack_numbers(group, format, m.group(i, g, room), i) && !rounding) return false;
                continue;
            }
            const weight_levels::Group levels = m.levels(i, g);
            if (!(formats_of(levels) & set_of(format)) || !(levels.exact || rounding)) return false;
            pack_levels(group + i / kLanes * half_bytes(format), format, levels, i % kLanes);
        }
    return true;
}

// Half a panel's group of levels as products read it: lines `pair` and `pair` + 4, whose levels are 0 … 255, and for each part of the group
// (see `parts_of`) scales and minima: a weight is minimum + scale * level.
template <Format format>
struct HalfGroup {
    const uint8_t *at, *header;

    void lines(int pair, Bytes* low, Bytes* high) const {
        if constexpr (format == Format::levels8) {
            *low = load(at + pair * kLine);
            *high = load(at + (kLines / 2 + pair) * kLine);
        } else {
            split_nibbles(load(at + pair * kLine), low, high);
        }
        const uint8_t* higher = at + kLines / 2 * kLine;
        if constexpr (bits_of(format) == 5) {
            const Bytes bits = load(higher);
            *low |= moved_bits(bits, 4 - pair, 0x10);
            *high |= moved_bits(bits, -pair, 0x10);
        } else if constexpr (bits_of(format) == 6) {
            *low |= moved_bits(load(higher), 4 - 2 * pair, 0x30);
            *high |= moved_bits(load(higher + kLine), 4 - 2 * pair, 0x30);
        }
    }
    // All lines in order: where they are, or unpacked into `room` [kLines][kLine].
    const uint8_t* all_lines(uint8_t* room) const {
        if constexpr (format == Format::levels8) return at;
        for (int pair = 0; pair < kLines / 2; ++pair) {
            Bytes low, high;
            lines(pair, &low, &high);
            store(room + pair * kLine, low);
            store(room + (kLines / 2 + pair) * kLine, high);
        }
        return room;
    }
    // Products of a half float and an 8-bit integer are exact.
    Floats scales(int part = 0) const {
        if constexpr (has_header(format))
            return load(halves(header)) * to_floats(load_ints(integers() + part * kLanes));
        else
            return load(halves(at + level_bytes(format)));
    }
    Floats minima(int part = 0) const {
        if constexpr (center_of(format) > 0)
            return scales(part) * splat(-center_of(format));
        else if constexpr (has_header(format))
            return load(halves(header) + kLanes) * to_floats(load_ints(integers() + kLanes));
        else
            return load(halves(at + level_bytes(format)) + kLanes);
    }

   private:
    const int8_t* integers() const { return reinterpret_cast<const int8_t*>(at + level_bytes(format)); }
    static const uint16_t* halves(const uint8_t* from) { return reinterpret_cast<const uint16_t*>(from); }
};

// Group `g` of a panel.
template <Format format>
struct PanelGroup {
    const uint8_t *at, *header;

    static PanelGroup of(const uint8_t* panel, int g) {
        constexpr int kGroups = block_groups(format);
        const uint8_t* block = panel + static_cast<int64_t>(g / kGroups) * block_bytes(format);
        return {block + 2 * half_header_bytes(format) + g % kGroups * group_bytes(format), block};
    }
    HalfGroup<format> half(int i) const { return {at + i * half_bytes(format), header + i * half_header_bytes(format)}; }
};

// Calls use(k, weights of columns 0-15, of columns 16-31), as floats, for the first `n` inputs of a panel's group in ascending order.
template <Format format, class Use>
inline void each_input(const PanelGroup<format>& group, int n, const Use& use) {
    if constexpr (is_levels(format)) {
        const HalfGroup<format> halves[2] = {group.half(0), group.half(1)};
        Floats scales[2], minima[2];
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part) {
            for (int half = 0; half < 2 && part < parts_of(format); ++half)
                scales[half] = halves[half].scales(part), minima[half] = halves[half].minima(part);
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
        }
    } else if constexpr (format == Format::float32) {
        const auto from = reinterpret_cast<const float*>(group.at);
        for (int k = 0; k < n; ++k) use(k, load(from + k * kPanel), load(from + k * kPanel + kLanes));
    } else if constexpr (format == Format::bfloat16) {
        const uint8_t* at = group.at;
        for (int k = 0; k < n; k += 2, at += 2 * kLine) {
            const Words low = (Words)load(at), high = (Words)load(at + kLine);
            use(k, first_of_pairs(low), first_of_pairs(high));
            if (k + 1 < n) use(k + 1, second_of_pairs(low), second_of_pairs(high));
        }
    } else {
        const auto from = reinterpret_cast<const uint16_t*>(group.at);
        for (int k = 0; k < n; ++k) use(k, load(from + k * kPanel), load(from + k * kPanel + kLanes));
    }
}

// Group `g` of a panel as floats [32 inputs][32 columns].
inline void expand_group(float* to, Format format, const uint8_t* panel, int g) {
    const auto put = [=](int k, Floats low, Floats high) {
        store(to + k * kPanel, low);
        store(to + k * kPanel + kLanes, high);
    };
    switch (format) {
#define FDLP_FORMAT(f) \
    case Format::f: return each_input(PanelGroup<Format::f>::of(panel, g), kGroup, put);
        FDLP_FORMATS
#undef FDLP_FORMAT
    }
}

// Row `row` of the packed matrix [out][in] as floats [in].
inline void unpack_row(float* to, const uint8_t* packed, Format format, int in, int row) {
    const uint8_t* panel = packed + row / kPanel * panel_bytes(format, in);
    alignas(64) float room[kGroup * kPanel];
    for (int g = 0; g < groups_of(in); ++g) {
        expand_group(room, format, panel, g);
        for (int k = g * kGroup; k < in && k < (g + 1) * kGroup; ++k) to[k] = room[k % kGroup * kPanel + row % kPanel];
    }
}

}  // namespace packed_weights
