// The products of linear_int8.h for many rows, their sums within a group computed in tiles.
//
// A tile product of one group is exact, and scales are applied by the same code in the same order, so results have the same bits.
//
// Work is done in blocks of 16 rows, first for the panel's columns 0-15 and then for 16-31: the float32 sums fit 16 registers, and a store
// of a tile of 16 rows costs little more than one of 8. While the sums of one group are scaled, the tiles of later groups are computed.
// Sums wait first in tiles, since a store of a tile that is not computed yet holds up all later memory accesses, and then in a ring.
#pragma once

#include <type_traits>

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

// Rows of a block.
constexpr int kRows = 16;
// With fewer rows, whole steps were faster without tiles.
constexpr int kLeastRows = 64;
// Formats with one scale and one minimum for each group; products of others do without tiles.
constexpr bool takes(Format format) {
    return packed_weights::is_levels(format) && packed_weights::parts_of(format) == 1 && packed_weights::center_of(format) == 0;
}

inline bool computes(Format format, int digits, int rows) {
    return digits > 0 && rows >= kLeastRows && takes(format) && tiles::available();
}

// Groups of a panel at a time: so much of it stays in the first-level cache while all rows are computed.
constexpr int kMostGroups = 24;
// Blocks at a time: their sums stay in the second-level cache from one part of the panel to the next.
constexpr int kMostBlocks = 16;
constexpr int kProductInts = kRows * kLanes;

// Groups whose sums wait in tiles, and as many in the ring. The ring has 4 KiB, since accesses 4 KiB apart hinder each other.
constexpr int waiting(int digits) { return 4 / digits; }

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
    int32_t ring[waiting(1)][kProductInts];
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
                    store(room.lines[g][half] + pair * kLine, low);
                    store(room.lines[g][half] + (pair + kLines / 2) * kLine, high);
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

// Computes the tiles of blocks `block` … `end` - 1, for each block the part's groups of columns 0-15 and then those of 16-31, `kAhead`
// groups before their sums are used.
template <class Instructions, int Digits>
class Products {
   public:
    Products(const Activations& x, int groups, Blocks blocks, int block, int end, const Part& part, Room& room)
        : q_(x.q + static_cast<int64_t>(part.first) * kBytes), row_bytes_(static_cast<int64_t>(groups) * kBytes), part_(part),
          blocks_(blocks), turn_(2 * block), end_(2 * end), ring_(room.ring[0]) {
        if (turn_ < end_) begin_turn();
        for (int i = 0; i < kAhead; ++i) replace();
    }

    // Exact sums of the oldest group: [digit][row][column].
    const int32_t* oldest() const { return ring_ + (step_ + 1) % kWaiting * kSlot; }

    // Replaces the oldest group by the one that has waited longest in tiles, and this one by the next group, if any is left.
    void replace() {
        switch (step_) {
            case 0: replace<0>(); break;
            case 1: replace<1>(); break;
            case 2: replace<2 % kWaiting>(); break;
            default: replace<3 % kWaiting>();
        }
        step_ = (step_ + 1) % kWaiting;
    }

   private:
    static constexpr int kBytes = Digits * kGroup, kSlot = Digits * kProductInts, kWaiting = waiting(Digits), kAhead = 2 * kWaiting - 1;

    // A turn is one half of a panel with the rows of one block.
    void begin_turn() {
        a_ = q_ + blocks_.first_row(turn_ / 2) * row_bytes_;
        lines_ = part_.lines + turn_ % 2 * part_.half_bytes;
        left_ = part_.count;
    }

    template <int Step>
    void replace() {
        constexpr int kOldest = (Step + 1) % kWaiting;
        if (turn_ < end_) multiply<Step>();
        for_digits([&](auto digit) {
            Instructions::template store<kOldest * Digits + digit>(ring_ + kOldest * kSlot + digit * kProductInts, kLanes * 4);
        });
    }

    // Tiles alternate, so that a product need not wait for the one before it.
    template <int Step>
    void multiply() {
        constexpr int kWeights = 6 + Step % 2;
        Instructions::template load<kWeights>(lines_, kLine);
        for_digits([&](auto digit) {
            constexpr int kSums = Step * Digits + digit, kA = 4 + (Step * Digits + digit) % 2;
            Instructions::template zero<kSums>();
            Instructions::template load<kA>(a_ + digit * kGroup, row_bytes_);
            Instructions::template multiply_int8<kSums, kA, kWeights>();
        });
        a_ += kBytes, lines_ += part_.group_bytes;
        if (--left_ == 0 && ++turn_ < end_) begin_turn();
    }

    template <class Do>
    static void for_digits(const Do& act) {
        act(std::integral_constant<int, 0>{});
        if constexpr (Digits == 2) act(std::integral_constant<int, 1>{});
    }

    const int8_t* const q_;
    const int64_t row_bytes_;
    const Part part_;
    const Blocks blocks_;
    int turn_;
    const int end_;
    int32_t* const ring_;
    // The next group to compute, and the groups left in its turn.
    const int8_t* a_ = nullptr;
    const uint8_t* lines_ = nullptr;
    int left_ = 0, step_ = 0;
};

// Adds the part's groups to the sums of blocks `block` … `end` - 1, which begin at 0 with the panel's first group.
template <class Instructions, int Digits, class Prefetcher>
__attribute__((noinline)) void add_part(const Activations& x, int groups, Blocks blocks, int block, int end, const Part& part,
                                        Prefetcher& prefetcher, Room& room) {
    Products<Instructions, Digits> products(x, groups, blocks, block, end, part, room);
    const int count = part.count;
    for (int turn = 2 * block; turn < 2 * end; ++turn) {
        const int index = turn / 2, half = turn % 2;
        float(*sums)[kPanel] = room.sums[index - block];
        Floats out[kRows] = {};
        if (part.first > 0)
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) out[r] = load(sums[r] + half * kLanes);
        const int64_t at = static_cast<int64_t>(blocks.first_row(index)) * groups + part.first;
        const float *scale = x.scale + at, *total = x.total + at, *steps = part.steps + half * kLanes;
        for (int g = 0; g < count; ++g, ++scale, ++total, steps += kSteps) {
            prefetcher.ask(nullptr, 0);
            const int32_t* product = products.oldest();
            const Floats scales = load(steps), minima = load(steps + 2 * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                Ints acc[Digits];
#pragma GCC unroll 2
                for (int d = 0; d < Digits; ++d) std::memcpy(&acc[d], product + d * kProductInts + r * kLanes, sizeof acc[d]);
                linear_int8::add_group<Digits>(&out[r], acc, scales, minima, scale[r * groups], total[r * groups]);
            }
            products.replace();
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) store(sums[r] + half * kLanes, out[r]);
    }
}

// A panel and all rows that are multiplied by it, at least kLeastRows.
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
