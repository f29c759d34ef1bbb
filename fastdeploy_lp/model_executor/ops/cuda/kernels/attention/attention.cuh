// Attention over the paged cache. Keys and values of a KV head are read once for all of its query heads.
//
// The keys of a row are divided into splits by its own position, and splits are merged in order. Whether different warps compute them
// (`split`, then `merge`) or one after the other (`whole`), the result has the same bits.
#pragma once

#include "softmax.cuh"

namespace fdlp {

// Writes the result of row `h` of a lane.
template <class Element, int kHeadDim>
__device__ void finish(const Attention& given, const LaneRow& row, const Part<kHeadDim>& part, int h) {
    auto* out = static_cast<typename Element::Stored*>(given.out) + (static_cast<long long>(row.row) * given.heads + row.head) * kHeadDim;
    const float inverse = 1.0f / part.sum[h];
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
        const typename Element::Pair pair = Element::pair(part.values[j][2 * h] * inverse, part.values[j][2 * h + 1] * inverse);
        *reinterpret_cast<typename Element::Pair*>(out + 8 * j + 2 * (lane() % 4)) = pair;
    }
}

// Writes one split of row `h` of a lane for `merge`.
template <int kHeadDim>
__device__ void keep(const Attention& given, const LaneRow& row, const Part<kHeadDim>& part, int h, int split) {
    float* to = given.partial(row.row, row.head, split, kHeadDim);
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j + 2 * (lane() % 4)) = {part.values[j][2 * h], part.values[j][2 * h + 1]};
    }
    if (lane() % 4 == 0) *reinterpret_cast<float2*>(to + kHeadDim) = {part.max[h], part.sum[h]};
}

// A block of one warp for each tile and KV head along x; along y, blocks share the splits. Rows with one split are finished here.
template <class Element, int kHeadDim>
__device__ void split(const Attention& given) {
    const Tile tile(given, blockIdx.x / given.kv_heads, blockIdx.x % given.kv_heads);
    if (given.contexts[tile.sequence] == 0 || blockIdx.y >= tile.splits) return;
    CacheTiles<Element, kHeadDim, kWarpSize> tiles(given, tile);
    tiles.start(blockIdx.y * tile.keys);
    const Softmax<Element, kHeadDim, kWarpSize> softmax(given, tile);
    for (int s = blockIdx.y; s < tile.splits; s += gridDim.y) {
        const int begin = s * tile.keys, end = begin + tile.keys < tile.end ? begin + tile.keys : tile.end;
        const Part<kHeadDim> part = softmax.attend(tiles, begin, end, begin + gridDim.y * tile.keys);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const LaneRow& row = softmax.row(h);
            if (!row.used || row.position < begin) continue;
            if (row.position < tile.keys) {
                finish<Element>(given, row, part, h);
            } else {
                keep(given, row, part, h, s);
            }
        }
    }
}

// The factors of the splits of a row, one for each lane, when they are merged in order.
struct SplitFactors {
    float old_factor, new_factor;

    __device__ explicit SplitFactors(float max) {
        float before = minus_infinity();  // the maximum of earlier splits
        for (int distance = 1; distance < kMostSplits; distance *= 2) {
            const float other = __shfl_up_sync(kEveryLane, fmaxf(before, max), distance);
            if (lane() >= distance) before = fmaxf(before, other);
        }
        const Merge merged(before, max);
        old_factor = merged.old_factor;
        new_factor = merged.new_factor;
    }
};

// A warp for each row and head of those that `split` has computed: the splits of rows that have several, in order.
template <class Element, int kHeadDim>
__device__ void merge(const Attention& given) {
    static_assert(kMostSplits == kWarpSize, "a lane for each split");
    // Splits that are requested before the first of them is used.
    constexpr int kAtOnce = 8, kShare = kHeadDim / kWarpSize;
    const int index = blockIdx.x * warps() + warp();
    const int row = index / given.heads, head = index % given.heads;
    if (row >= given.rows) return;
    const int sequence = given.sequence_of(row), position = given.position_of(sequence, row), keys = split_keys(position);
    if (given.contexts[sequence] == 0 || position < keys) return;
    const int splits = position / keys + 1;
    const float2 mine = *reinterpret_cast<const float2*>(given.partial(row, head, lane() < splits ? lane() : 0, kHeadDim) + kHeadDim);
    const SplitFactors factors(lane() < splits ? mine.x : minus_infinity());
    float sum = 0.0f, values[kShare] = {};
#pragma unroll 1
    for (int first = 0; first < splits; first += kAtOnce) {
        float parts[kAtOnce][kShare];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const float* part = given.partial(row, head, first + i < splits ? first + i : first, kHeadDim);
            for (int c = 0; c < kShare; ++c) parts[i][c] = part[kWarpSize * c + lane()];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int s = first + i;
            const float old_factor = __shfl_sync(kEveryLane, factors.old_factor, s),
                        new_factor = __shfl_sync(kEveryLane, factors.new_factor, s);
            const float of_split = __shfl_sync(kEveryLane, mine.y, s);
            if (s >= splits) continue;
            sum = fmaf(sum, old_factor, of_split * new_factor);
            for (int c = 0; c < kShare; ++c) values[c] = fmaf(values[c], old_factor, parts[i][c] * new_factor);
        }
    }
    auto* out = static_cast<typename Element::Stored*>(given.out) + (static_cast<long long>(row) * given.heads + head) * kHeadDim;
    const float inverse = 1.0f / sum;
    for (int c = 0; c < kShare; ++c) out[kWarpSize * c + lane()] = Element::rounded(values[c] * inverse);
}

// A block for each tile along x, KV heads along y: all splits one after the other, what is merged meanwhile in shared memory.
template <class Element, int kHeadDim>
__device__ void whole(const Attention& given) {
    const Tile tile(given, blockIdx.x, blockIdx.y);
    if (given.contexts[tile.sequence] == 0) return;
    CacheTiles<Element, kHeadDim, kThreads<kHeadDim>> tiles(given, tile);
    tiles.start(0);
    const Softmax<Element, kHeadDim, kThreads<kHeadDim>> softmax(given, tile);
    float* kept = static_cast<float*>(tiles.rest()) + threadIdx.x;  // each thread has a column, so nobody waits
    float max[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
#pragma unroll 1
    for (int s = 0; s < tile.splits; ++s) {
        const int end = (s + 1) * tile.keys;
        Part<kHeadDim> part = softmax.attend(tiles, s * tile.keys, end < tile.end ? end : tile.end, end);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Merge merged(max[h], part.max[h]);
            max[h] = merged.max;
            part.sum[h] = sum[h] = merged(sum[h], part.sum[h]);
            for (int j = 0; j < kHeadDim / 8; ++j) {
                for (int e = 2 * h; e < 2 * h + 2; ++e) {
                    float& before = kept[(4 * j + e) * kThreads<kHeadDim>];
                    part.values[j][e] = before = merged(s == 0 ? 0.0f : before, part.values[j][e]);
                }
            }
            if (s + 1 == tile.splits && softmax.row(h).used) finish<Element>(given, softmax.row(h), part, h);
        }
    }
}

// Rotates queries in place and keys by their positions, and writes keys and values to the cache. A row of blocks for each row, a thread
// for 8 elements of either half of a head.
// Su et al., "RoFormer", 2021, rotating halves of a head.
template <class Element, int kHeadDim>
__device__ void store(const Attention& given) {
    typedef typename Element::Stored Stored;
    typedef Eight<Element> Elements;
    constexpr int kHalf = kHeadDim / 2, kParts = kHalf / 8;
    const int row = blockIdx.x, sequence = given.sequence_of(row), position = given.position_of(sequence, row);
    const int index = blockIdx.y * blockDim.x + threadIdx.x, head = index / kParts, element = index % kParts * 8;
    if (given.contexts[sequence] == 0 || head >= given.heads + 2 * given.kv_heads) return;
    const int rotated = given.heads + given.kv_heads;
    Stored* source =
        static_cast<Stored*>(given.qkv) + (static_cast<long long>(row) * (rotated + given.kv_heads) + head) * kHeadDim + element;
    Elements left = *reinterpret_cast<const Elements*>(source), right = *reinterpret_cast<const Elements*>(source + kHalf);
    if (head < rotated) {
        const float* cos = given.cos + static_cast<long long>(position) * kHeadDim + element;
        const float* sin = given.sin + static_cast<long long>(position) * kHeadDim + element;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float x = Element::value(left.at[e]), y = Element::value(right.at[e]);
            left.at[e] = Element::rounded(x * cos[e] - y * sin[e]);
            right.at[e] = Element::rounded(y * cos[e] + x * sin[e]);
        }
    }
    Stored* target = source;
    if (head >= given.heads) {
        const int block = given.tables[static_cast<long long>(sequence) * given.width + position / given.block_size];
        const int kv_head = head < rotated ? head - given.heads : head - rotated;
        const long long place = (static_cast<long long>(block) * given.kv_heads + kv_head) * given.block_size + position % given.block_size;
        target = static_cast<Stored*>(head < rotated ? given.keys : given.values) + place * kHeadDim + element;
    }
    *reinterpret_cast<Elements*>(target) = left;
    *reinterpret_cast<Elements*>(target + kHalf) = right;
}

}  // namespace fdlp
