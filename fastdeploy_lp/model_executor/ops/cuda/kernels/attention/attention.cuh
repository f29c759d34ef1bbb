// Attention over the paged cache. Keys and values of a KV head are read once for all of its query heads.
//
// The keys of a row are divided into splits by its own position, and splits are merged in order. Whether different warps compute them
// (`split`, then `merge`) or one after the other (`whole`), the result has the same bits.
#pragma once

#include "softmax.cuh"

namespace fdlp {

// Writes the result of row `i` of a lane.
template <class Element, int kHeadDim>
__device__ void finish(const Attention& given, const LaneRow& row, const Part<kHeadDim>& part, int i) {
    auto* out = static_cast<typename Element::Stored*>(given.out) + (static_cast<long long>(row.row) * given.heads + row.head) * kHeadDim;
    const float inverse = 1.0f / part.sum[i];
#pragma unroll
    for (int c = 0; c < kHeadDim / kChunk; ++c) {
        Pairs<Element, 4> pairs;
        for (int p = 0; p < 4; ++p) {
            const int e = 2 * i + p / 2;
            const float first = part.values[4 * c + p % 2 * 2][e], second = part.values[4 * c + p % 2 * 2 + 1][e];
            pairs.at[p] = Element::pair(first * inverse, second * inverse);
        }
        *reinterpret_cast<Pairs<Element, 4>*>(out + kChunk * c + 8 * (lane() % 4)) = pairs;
    }
}

// Writes one split of row `i` of a lane for `merge`.
template <int kHeadDim>
__device__ void keep(const Attention& given, const LaneRow& row, const Part<kHeadDim>& part, int i, int split) {
    float* to = given.partial(row.row, row.head, split, kHeadDim);
#pragma unroll
    for (int c = 0; c < kHeadDim / kChunk; ++c) {
        for (int e = 0; e < 8; ++e) to[kChunk * c + 8 * (lane() % 4) + e] = part.values[4 * c + e % 4][2 * i + e / 4];
    }
    if (lane() % 4 == 0) {
        to[kHeadDim] = part.max[i];
        to[kHeadDim + 1] = part.sum[i];
    }
}

// A block for each tile and KV head along x; along y, warps share the splits. Rows with one split are finished here.
template <class Element, int kHeadDim>
__device__ void split(const Attention& given) {
    const int index = blockIdx.x / given.kv_heads;
    const Tile tile(given, index, blockIdx.x % given.kv_heads);
    if (given.contexts[tile.sequence] == 0) return;
    const Softmax<Element, kHeadDim> softmax(given, tile);
    for (int s = blockIdx.y * warps() + warp(); s < tile.splits; s += gridDim.y * warps()) {
        const int end = (s + 1) * tile.keys;
        const Part<kHeadDim> part = softmax.attend(s * tile.keys, end < tile.end ? end : tile.end);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const LaneRow& row = softmax.row(i);
            if (!row.used || row.position < s * tile.keys) continue;
            if (row.position < tile.keys) {
                finish<Element>(given, row, part, i);
            } else {
                keep(given, row, part, i, s);
            }
        }
    }
}

// A warp for each row and head of those that `split` has computed: the splits of rows that have several, in order.
template <class Element, int kHeadDim>
__device__ void merge(const Attention& given) {
    const int index = blockIdx.x * warps() + warp();
    const int row = index / given.heads, head = index % given.heads;
    if (row >= given.rows) return;
    const int sequence = given.sequence_of(row), position = given.position_of(sequence, row), keys = split_keys(position);
    if (given.contexts[sequence] == 0 || position < keys) return;
    float max = minus_infinity(), sum = 0.0f, values[kHeadDim / kChunk] = {};
#pragma unroll 1
    for (int s = 0; s * keys <= position; ++s) {
        const float* part = given.partial(row, head, s, kHeadDim);
        const Merge merged(max, part[kHeadDim]);
        max = merged.max;
        sum = merged(sum, part[kHeadDim + 1]);
        for (int c = 0; c < kHeadDim / kChunk; ++c) values[c] = merged(values[c], part[kChunk * c + lane()]);
    }
    auto* out = static_cast<typename Element::Stored*>(given.out) + (static_cast<long long>(row) * given.heads + head) * kHeadDim;
    const float inverse = 1.0f / sum;
    for (int c = 0; c < kHeadDim / kChunk; ++c) out[kChunk * c + lane()] = Element::rounded(values[c] * inverse);
}

// A warp for each tile along x, KV heads along y: all splits one after the other, what is merged meanwhile in shared memory.
template <class Element, int kHeadDim>
__device__ void whole(const Attention& given) {
    __shared__ float kept[kHeadDim / 2][kThreads];  // each thread has a column, so nobody waits
    const int index = blockIdx.x * warps() + warp();
    if (index >= given.num_tiles) return;
    const Tile tile(given, index, blockIdx.y);
    if (given.contexts[tile.sequence] == 0) return;
    const Softmax<Element, kHeadDim> softmax(given, tile);
    float max[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
#pragma unroll 1
    for (int s = 0; s < tile.splits; ++s) {
        const int end = (s + 1) * tile.keys;
        Part<kHeadDim> part = softmax.attend(s * tile.keys, end < tile.end ? end : tile.end);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Merge merged(max[i], part.max[i]);
            max[i] = merged.max;
            part.sum[i] = sum[i] = merged(sum[i], part.sum[i]);
            for (int v = 0; v < kHeadDim / 8; ++v) {
                for (int e = 2 * i; e < 2 * i + 2; ++e) {
                    float& before = kept[4 * v + e][threadIdx.x];
                    part.values[v][e] = before = merged(s == 0 ? 0.0f : before, part.values[v][e]);
                }
            }
            if (s + 1 == tile.splits && softmax.row(i).used) finish<Element>(given, softmax.row(i), part, i);
        }
    }
}

// Rotates queries in place and keys by their positions, and writes keys and values to the cache. A block for each row.
// Su et al., "RoFormer", 2021, rotating halves of a head.
template <class Element, int kHeadDim>
__device__ void store(const Attention& given) {
    typedef typename Element::Stored Stored;
    const int row = blockIdx.x, sequence = given.sequence_of(row), position = given.position_of(sequence, row);
    if (given.contexts[sequence] == 0) return;
    const int block = given.tables[static_cast<long long>(sequence) * given.width + position / given.block_size];
    Stored* from = static_cast<Stored*>(given.qkv) + static_cast<long long>(row) * (given.heads + 2 * given.kv_heads) * kHeadDim;
    const float* cos = given.cos + static_cast<long long>(position) * kHeadDim;
    const float* sin = given.sin + static_cast<long long>(position) * kHeadDim;
    const int half = kHeadDim / 2, rotated = given.heads + given.kv_heads;
    for (int at = threadIdx.x; at < (rotated + given.kv_heads) * half; at += blockDim.x) {
        const int head = at / half, element = at % half;
        Stored* source = from + head * kHeadDim + element;
        Stored left = source[0], right = source[half];
        if (head < rotated) {
            const float x = Element::value(left), y = Element::value(right);
            left = Element::rounded(x * cos[element] - y * sin[element]);
            right = Element::rounded(y * cos[element] + x * sin[element]);
        }
        Stored* target = source;
        if (head >= given.heads) {
            const int kv_head = head < rotated ? head - given.heads : head - rotated;
            const long long place =
                (static_cast<long long>(block) * given.kv_heads + kv_head) * given.block_size + position % given.block_size;
            target = static_cast<Stored*>(head < rotated ? given.keys : given.values) + place * kHeadDim + element;
        }
        target[0] = left;
        target[half] = right;
    }
}

}  // namespace fdlp
