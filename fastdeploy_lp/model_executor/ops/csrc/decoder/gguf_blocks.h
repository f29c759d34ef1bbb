// Blocks of 256 weights in GGUF's K-quants, as a checkpoint stores them: read as floats, or packed as they are.
//
// A weight is d * scale * q - dmin * minimum (Q4_K, Q5_K) or d * scale * (q - 32) (Q6_K), with d and dmin as half floats for the block, and
// integers for its groups of 32 or 16. Each product is exact in float32, so that the order of operations does not matter.
#pragma once

#include "decoder/packed_weights.h"

namespace gguf_blocks {

using packed_weights::Format;
using weight_levels::kGroup;
constexpr int kBlock = 256;
constexpr int kGroups = kBlock / kGroup;

struct Q4K {
    static constexpr Format kFormat = Format::levels4k;
    uint16_t scale, minimum;
    uint8_t steps[12], q[kBlock / 2];
};

struct Q5K {
    static constexpr Format kFormat = Format::levels5k;
    uint16_t scale, minimum;
    uint8_t steps[12], high[kGroup], q[kBlock / 2];
};

struct Q6K {
    static constexpr Format kFormat = Format::levels6k;
    uint8_t q[kBlock / 2], high[kBlock / 4];
    int8_t steps[kBlock / 16];
    uint16_t scale;
};

static_assert(sizeof(Q4K) == 144 && sizeof(Q5K) == 176 && sizeof(Q6K) == 210);

// A group: its levels and its integers, as `HalfGroup` has them.
struct Group {
    uint8_t q[kGroup];
    int8_t steps[2];
};

// Scale and minimum of group `g` in 6 bits each; the upper 2 bits of the last four are in the upper bits of the first eight bytes.
inline void read_steps(Group* to, const uint8_t (&steps)[12], int g) {
    for (int kind = 0; kind < 2; ++kind) {
        const uint8_t* from = steps + 4 * kind;
        const int i = g % 4;
        to->steps[kind] = static_cast<int8_t>(g < 4 ? from[i] & 63 : (steps[8 + i] >> 4 * kind & 15) | from[i] >> 6 << 4);
    }
}

inline void read(Group* to, const Q4K& block, int g) {
    read_steps(to, block.steps, g);
    for (int k = 0; k < kGroup; ++k) to->q[k] = block.q[g / 2 * kGroup + k] >> g % 2 * 4 & 15;
}

inline void read(Group* to, const Q5K& block, int g) {
    read_steps(to, block.steps, g);
    for (int k = 0; k < kGroup; ++k) to->q[k] = (block.q[g / 2 * kGroup + k] >> g % 2 * 4 & 15) | (block.high[k] >> g & 1) << 4;
}

// A half of the block has its groups' low bits in the low and the high half of 64 bytes, and their high bits in 32 bytes.
inline void read(Group* to, const Q6K& block, int g) {
    const int half = g / 4, quarter = g % 4;
    const uint8_t *low = block.q + half * 64 + quarter % 2 * kGroup, *high = block.high + half * kGroup;
    for (int k = 0; k < kGroup; ++k) to->q[k] = (low[k] >> quarter / 2 * 4 & 15) | (high[k] >> 2 * quarter & 3) << 4;
    std::memcpy(to->steps, block.steps + 2 * g, sizeof to->steps);
}

// Scale and minimum of a block for `HalfGroup`, which adds the minimum.
inline uint16_t minimum_of(const Q6K&) { return 0; }
template <class Block>
inline uint16_t minimum_of(const Block& block) {
    return block.minimum ^ 0x8000;
}

inline bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// The scales of a row [in] of blocks are numbers.
template <class Block>
inline bool all_finite(const uint8_t* row, int in) {
    const Block* blocks = reinterpret_cast<const Block*>(row);
    bool finite = true;
    for (int b = 0; b < in / kBlock; ++b) finite &= is_finite(blocks[b].scale) && is_finite(minimum_of(blocks[b]));
    return finite;
}

// A row [in] of blocks as floats.
template <class Block>
inline void expand(float* to, const uint8_t* row, int in) {
    const Block* blocks = reinterpret_cast<const Block*>(row);
    for (int b = 0; b < in / kBlock; ++b) {
        const float scale = half_to_float(blocks[b].scale), minimum = half_to_float(minimum_of(blocks[b]));
        for (int g = 0; g < kGroups; ++g, to += kGroup) {
            Group group;
            read(&group, blocks[b], g);
            constexpr int kCenter = packed_weights::center_of(Block::kFormat), kPart = kGroup / packed_weights::parts_of(Block::kFormat);
            const float lowest = kCenter > 0 ? 0.0f : minimum * group.steps[1];
            for (int k = 0; k < kGroup; ++k) to[k] = scale * group.steps[k / kPart] * (group.q[k] - kCenter) + lowest;
        }
    }
}

// Packs a row [in] of blocks as column `column` of a panel, which is zero at first.
template <class Block>
inline void pack_column(uint8_t* panel, const uint8_t* row, int in, int column) {
    constexpr Format kFormat = Block::kFormat;
    const int half = column / kLanes, lane = column % kLanes;
    const Block* blocks = reinterpret_cast<const Block*>(row);
    for (int b = 0; b < in / kBlock; ++b, panel += packed_weights::block_bytes(kFormat)) {
        uint16_t* scales = reinterpret_cast<uint16_t*>(panel + half * packed_weights::half_header_bytes(kFormat));
        scales[lane] = blocks[b].scale;
        if (packed_weights::center_of(kFormat) == 0) scales[kLanes + lane] = minimum_of(blocks[b]);
        uint8_t* to = panel + 2 * packed_weights::half_header_bytes(kFormat) + half * packed_weights::half_bytes(kFormat);
        for (int g = 0; g < kGroups; ++g, to += packed_weights::group_bytes(kFormat)) {
            Group group;
            read(&group, blocks[b], g);
            packed_weights::pack_levels(to, kFormat, group.q, lane);
            uint8_t* steps = to + packed_weights::level_bytes(kFormat);
            for (int i = 0; i < 2; ++i) steps[i * kLanes + lane] = static_cast<uint8_t>(group.steps[i]);
        }
    }
}

}  // namespace gguf_blocks
