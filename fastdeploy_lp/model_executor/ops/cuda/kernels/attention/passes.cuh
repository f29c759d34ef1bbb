// The rows of a pass: their sequences, positions and tiles. A row is a token; its context is the cache up to and including it.
#pragma once

#include "elements.cuh"

// At most 256 threads a block, so that a thread may have up to 255 registers.
#define FDLP_ATTENTION extern "C" __global__ void __launch_bounds__(256)

namespace fdlp {

// Rows of a warp, those of a product on tensor cores: a row is a token and a query head. Bytes of one element of all keys of a tile.
constexpr int kTileRows = 16, kTileKeyBytes = 128;
// Threads that share a tile of keys. Larger heads leave no room in shared memory for more.
template <int kHeadDim>
constexpr int kThreads = kHeadDim <= 64 ? 256 : 128;
// Keys of a split; of long contexts it is doubled until so many splits hold the context.
constexpr int kSplitKeys = 256, kMostSplits = 32;

// A layer's attention; `AttentionStruct` in Python. Element types are those of the kernel. Rows are counted from the pass's first.
struct Attention {
    void* qkv;               // [rows, heads + 2 * kv_heads, head_dim]
    void *keys, *values;     // [blocks, kv_heads, block_size, head_dim]
    void* out;               // [rows, heads, head_dim]
    const float *cos, *sin;  // [positions, head_dim], the second half as the first
    const int* tables;       // [seqs, width]: the blocks of each sequence
    const int* contexts;     // [seqs]: tokens of each sequence, those of the pass included; 0 for no sequence
    const int* first_rows;   // [seqs + 1]
    const int* tiles;        // [tiles, 3]: sequence, first row, rows
    float* partials;         // [rows, heads, most_splits, head_dim + 2]: values, then maximum and sum of each split
    int rows, seqs, width, heads, kv_heads, block_size, most_splits;
    float scale;  // of products of queries and keys, times log2(e)

    __device__ int sequence_of(int row) const {
        int first = 0, last = seqs - 1;
        while (first < last) {
            const int middle = (first + last + 1) / 2;
            if (first_rows[middle] <= row) {
                first = middle;
            } else {
                last = middle - 1;
            }
        }
        return first;
    }

    __device__ int position_of(int sequence, int row) const { return contexts[sequence] - (first_rows[sequence + 1] - row); }

    __device__ float* partial(int row, int head, int split, int head_dim) const {
        return partials + ((static_cast<long long>(row) * heads + head) * most_splits + split) * (head_dim + 2);
    }
};

// Depends on the row's own context alone, so that the order of all sums does.
__device__ inline int split_keys(int position) {
    int keys = kSplitKeys;
    while (keys * kMostSplits <= position) keys *= 2;
    return keys;
}

// Neighboring rows of one sequence with all query heads of one KV head; splits of all of them have the same size. The warps of a block
// share them, each with the heads of as many rows as it holds.
struct Tile {
    int sequence, first_row, rows, position, keys, splits, end, kv_head, group, of_warp;

    __device__ Tile(const Attention& given, int index, int head) : kv_head(head), group(given.heads / given.kv_heads) {
        sequence = given.tiles[3 * index];
        first_row = given.tiles[3 * index + 1];
        rows = given.tiles[3 * index + 2];
        position = given.position_of(sequence, first_row);
        keys = split_keys(position);
        end = position + rows;
        splits = (end - 1) / keys + 1;
        of_warp = kTileRows / group;
    }
};

// The position of a warp's first row, and the keys that its last row sees; none if the tile has no row for it.
struct WarpRows {
    int position, end;

    __device__ explicit WarpRows(const Tile& tile) {
        const int first = warp() * tile.of_warp, last = first + tile.of_warp;
        position = tile.position + first;
        end = first < tile.rows ? tile.position + (last < tile.rows ? last : tile.rows) : 0;
    }
};

// A row of a warp, of 16: its token and head; those beyond the tile repeat another one and are not written.
struct LaneRow {
    int row, head, position;
    bool used;

    __device__ LaneRow(const Tile& tile, int index) {
        int token = warp() * tile.of_warp + index / tile.group;
        used = index < tile.of_warp * tile.group && token < tile.rows;
        if (!used) token = 0;
        row = tile.first_row + token;
        head = tile.kv_head * tile.group + index % tile.group;
        position = tile.position + token;
    }
};

}  // namespace fdlp
