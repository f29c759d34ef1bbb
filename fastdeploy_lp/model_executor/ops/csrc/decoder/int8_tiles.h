// The products of linear_int8.h for many rows, their sums within a group computed in tiles.
//
// A tile product of one group is exact, and scales are applied by the same code in the same order, so results have the same bits.
//
// Work is done in blocks of 8 rows and 32 columns, whose float32 sums fit 16 registers. While the sums of one group are scaled, the tiles
// of later groups are computed; a ring of stored tiles between both hides their latency.
#pragma once

#include "decoder/linear_int8.h"
#include "decoder/tile_unit.h"
#include "team.h"

namespace int8_tiles {

using linear_int8::Activations;
using packed_weights::Format;
using packed_weights::kGroup;
using packed_weights::kLine;
using packed_weights::kLines;
using packed_weights::kPanel;

// Rows of a block, and the least number of rows for which tiles are used: with fewer, reading the weights takes longer than either product.
constexpr int kRows = 8;
// Formats with one scale and one minimum for each group; products of others do without tiles.
constexpr bool takes(Format format) {
    return packed_weights::is_levels(format) && packed_weights::parts_of(format) == 1 && packed_weights::center_of(format) == 0;
}

inline bool computes(Format format, int digits, int rows) { return digits > 0 && rows >= kRows && takes(format) && tiles::available(); }

// Groups of a panel at a time: so much of it stays in the first-level cache while all rows are computed.
constexpr int kMostGroups = 24;
// Blocks at a time: their sums stay in the second-level cache from one part of the panel to the next.
constexpr int kMostBlocks = 32;
constexpr int kProductInts = kRows * kLanes;

// Groups between a tile product and its use; the ring has 4 KiB, since accesses 4 KiB apart hinder each other.
constexpr int lag(int digits) { return 4 / digits; }

constexpr int kHalfLines = kLines * kLine;
// Floats of a group's scales and minima: of columns 0-15, of columns 16-31.
constexpr int kSteps = 4 * kLanes;

// Tiles 0-3 hold sums, 4 and 5 activations, 6 and 7 the weights of 16 columns each.
constexpr tiles::Configuration make_configuration() {
    tiles::Configuration c;
    for (int sums = 0; sums < 4; ++sums) c.set(sums, kRows, kLanes * 4);
    for (int activations = 4; activations < 6; ++activations) c.set(activations, kRows, kGroup);
    for (int weights = 6; weights < 8; ++weights) c.set(weights, kLines, kLine);
    return c;
}
inline constexpr tiles::Configuration kConfiguration = make_configuration();

// Groups of a panel as tiles read them, with scales and minima as floats.
struct Part {
    int first, count;  // groups
    const uint8_t* lines;
    int64_t group_bytes, half_bytes;
    const float* steps;
};

// Memory of one panel's product.
struct alignas(64) Room {
    int32_t ring[lag(1)][2][kProductInts];
    float steps[kMostGroups][kSteps];
    uint8_t lines[kMostGroups][2][kHalfLines];
    float sums[kMostBlocks][kRows][kPanel];
};

// A share of a panel's groups; lines that are not bytes are unpacked into the room.
template <Format format, class Loader>
inline Part prepare(const uint8_t* panel, Share groups, const Loader& loader, Room& room) {
    constexpr int kBytes = packed_weights::group_share(format);
    const int count = groups.end - groups.first;
    for (int g = 0; g < count; ++g) {
        const int index = groups.first + g;
        loader.ask(panel + static_cast<int64_t>(index + linear_int8::kGroupsAhead) * kBytes, kBytes);
        const auto group = packed_weights::PanelGroup<format>::of(panel, index);
        for (int half = 0; half < 2; ++half) {
            const packed_weights::HalfGroup<format> from = group.half(half);
            store(room.steps[g] + half * kLanes, from.scales());
            store(room.steps[g] + (2 + half) * kLanes, from.minima());
            if constexpr (format != Format::levels8)
                for (int pair = 0; pair < kLines / 2; ++pair) {
                    Bytes low, high;
                    from.lines(pair, &low, &high);
                    std::memcpy(room.lines[g][half] + pair * kLine, &low, sizeof low);
                    std::memcpy(room.lines[g][half] + (pair + kLines / 2) * kLine, &high, sizeof high);
                }
        }
    }
    if constexpr (format == Format::levels8)
        return {groups.first, count, panel + static_cast<int64_t>(groups.first) * kBytes, kBytes, kBytes / 2, room.steps[0]};
    return {groups.first, count, room.lines[0][0], 2 * kHalfLines, kHalfLines, room.steps[0]};
}

// The first rows of all blocks: the last block overlaps the one before it, so that every block has kRows.
struct Blocks {
    int rows;

    int count() const { return (rows + kRows - 1) / kRows; }
    int first_row(int block) const { return kRows * (block + 1) > rows ? rows - kRows : kRows * block; }
    // The rows of a block that no earlier block has.
    int first_new_row(int block) const { return kRows * block - first_row(block); }
};

// Computes the tiles of blocks `block` … `end` - 1 group by group, `lag` groups before their sums are used.
template <class Instructions, int Digits>
class Products {
   public:
    Products(const Activations& x, int groups, Blocks blocks, int block, int end, const Part& part, Room& room)
        : q_(x.q + static_cast<int64_t>(part.first) * kBytes), row_bytes_(static_cast<int64_t>(groups) * kBytes), part_(part),
          blocks_(blocks), block_(block), end_(end), ring_(room.ring[0][0]) {
        if (block_ < end_) begin_block();
        for (int i = 0; i < lag(Digits); ++i) replace();
    }

    // Exact sums of the oldest group: [half panel][digit][row][column].
    const int32_t* oldest() const { return ring_ + slot_ * kSlot; }

    // Replaces the oldest group by the next one, if any is left.
    void replace() {
        if (block_ < end_) {
            if (Digits == 2)
                multiply_digits();
            else if (slot_ % 2 == 0)
                multiply<0>();
            else
                multiply<1>();
            a_ += kBytes, lines_ += part_.group_bytes;
            if (--left_ == 0 && ++block_ < end_) begin_block();
        }
        slot_ = (slot_ + 1) % lag(Digits);
    }

   private:
    static constexpr int kBytes = Digits * kGroup, kSlot = Digits * 2 * kProductInts;

    void begin_block() { a_ = q_ + blocks_.first_row(block_) * row_bytes_, lines_ = part_.lines, left_ = part_.count; }

    // Tiles alternate from group to group, so that a group need not wait until the one before it is stored.
    template <int Set>
    void multiply() {
        constexpr int kLow = 2 * Set, kHigh = kLow + 1, kA = 4 + Set;
        int32_t* to = ring_ + slot_ * kSlot;
        Instructions::template zero<kLow>();
        Instructions::template zero<kHigh>();
        Instructions::template load<kA>(a_, row_bytes_);
        Instructions::template load<6>(lines_, kLine);
        Instructions::template multiply_int8<kLow, kA, 6>();
        Instructions::template load<7>(lines_ + part_.half_bytes, kLine);
        Instructions::template multiply_int8<kHigh, kA, 7>();
        Instructions::template store<kLow>(to, kLanes * 4);
        Instructions::template store<kHigh>(to + kProductInts, kLanes * 4);
    }

    void multiply_digits() {
        int32_t* to = ring_ + slot_ * kSlot;
        Instructions::template zero<0>();
        Instructions::template zero<1>();
        Instructions::template zero<2>();
        Instructions::template zero<3>();
        Instructions::template load<4>(a_, row_bytes_);
        Instructions::template load<5>(a_ + kGroup, row_bytes_);
        Instructions::template load<6>(lines_, kLine);
        Instructions::template multiply_int8<0, 4, 6>();
        Instructions::template multiply_int8<1, 5, 6>();
        Instructions::template load<7>(lines_ + part_.half_bytes, kLine);
        Instructions::template multiply_int8<2, 4, 7>();
        Instructions::template multiply_int8<3, 5, 7>();
        Instructions::template store<0>(to, kLanes * 4);
        Instructions::template store<1>(to + kProductInts, kLanes * 4);
        Instructions::template store<2>(to + 2 * kProductInts, kLanes * 4);
        Instructions::template store<3>(to + 3 * kProductInts, kLanes * 4);
    }

    const int8_t* const q_;
    const int64_t row_bytes_;
    const Part part_;
    const Blocks blocks_;
    int block_;
    const int end_;
    int32_t* const ring_;
    // The next group to compute, and the groups left in its block.
    const int8_t* a_ = nullptr;
    const uint8_t* lines_ = nullptr;
    int left_ = 0, slot_ = 0;
};

// Adds the part's groups to the sums of blocks `block` … `end` - 1, which begin at 0 with the panel's first group.
template <class Instructions, int Digits, class Prefetcher>
__attribute__((noinline)) void add_part(const Activations& x, int groups, Blocks blocks, int block, int end, const Part& part,
                                        Prefetcher& prefetcher, Room& room) {
    Products<Instructions, Digits> products(x, groups, blocks, block, end, part, room);
    const int count = part.count;
    for (int index = block; index < end; ++index) {
        float(*sums)[kPanel] = room.sums[index - block];
        Floats out[kRows][2] = {};
        if (part.first > 0)
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) out[r][0] = load(sums[r]), out[r][1] = load(sums[r] + kLanes);
        const int64_t at = static_cast<int64_t>(blocks.first_row(index)) * groups + part.first;
        const float *scale = x.scale + at, *total = x.total + at, *steps = part.steps;
        for (int g = 0; g < count; ++g, ++scale, ++total, steps += kSteps) {
            prefetcher.ask(nullptr, 0);
            const int32_t* product = products.oldest();
            const Floats scales[2] = {load(steps), load(steps + kLanes)};
            const Floats minima[2] = {load(steps + 2 * kLanes), load(steps + 3 * kLanes)};
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    Ints acc[Digits];
#pragma GCC unroll 2
                    for (int d = 0; d < Digits; ++d)
                        std::memcpy(&acc[d], product + (half * Digits + d) * kProductInts + r * kLanes, sizeof acc[d]);
                    linear_int8::add_group<Digits>(&out[r][half], acc, scales[half], minima[half], scale[r * groups], total[r * groups]);
                }
            products.replace();
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) store(sums[r], out[r][0]), store(sums[r] + kLanes, out[r][1]);
    }
}

// A panel and all rows that are multiplied by it, at least kRows.
struct Task {
    Activations x;
    int groups, rows, digits;
    const uint8_t* panel;
};

template <class Prefetcher>
inline void add_part(const Task& task, Blocks blocks, int block, int end, const Part& part, Prefetcher& prefetcher, Room& room) {
    tiles::with_instructions([&](auto instructions) {
        using Instructions = decltype(instructions);
        tiles::configure<Instructions>(kConfiguration);
        if (task.digits == 1)
            add_part<Instructions, 1>(task.x, task.groups, blocks, block, end, part, prefetcher, room);
        else
            add_part<Instructions, 2>(task.x, task.groups, blocks, block, end, part, prefetcher, room);
    });
}

// put(row, columns 0-15, columns 16-31) takes the results. `loader` prefetches the panel while it is unpacked, `prefetcher` what is needed
// later.
template <Format format, class Loader, class Prefetcher, class Store>
inline void multiply(const Task& task, const Loader& loader, Prefetcher& prefetcher, const Store& put) {
    Room room;
    const Blocks blocks{task.rows};
    const int parts = (task.groups + kMostGroups - 1) / kMostGroups;
    for (int block = 0, end; block < blocks.count(); block = end) {
        end = block + kMostBlocks < blocks.count() ? block + kMostBlocks : blocks.count();
        for (int part = 0; part < parts; ++part) {
            const Share share = Share::of(task.groups, part, parts);
            add_part(task, blocks, block, end, prepare<format>(task.panel, share, loader, room), prefetcher, room);
        }
        for (int index = block; index < end; ++index)
            for (int r = blocks.first_new_row(index); r < kRows; ++r) {
                const float* sums = room.sums[index - block][r];
                put(blocks.first_row(index) + r, load(sums), load(sums + kLanes));
            }
    }
}

}  // namespace int8_tiles
