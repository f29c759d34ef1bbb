// Tiles of keys and values in shared memory, two of each: the block copies one while its warps compute with the other.
#pragma once

#include "passes.cuh"

namespace fdlp {

constexpr int kStages = 2;
// Keys that are copied of one block of the cache.
constexpr int kCopiedKeys = 16;

// All functions contain barriers or are parts of a copy, so every one of the block's kCopiers threads must call them.
template <class Element, int kHeadDim, int kCopiers>
class CacheTiles {
   public:
    typedef typename Element::Stored Stored;
    // 16 bytes are copied at once.
    static constexpr int kUnit = 16 / sizeof(Stored), kUnits = kHeadDim / kUnit;
    static constexpr int kKeys = kTileKeyBytes / sizeof(Stored);
    // Lanes read units of one number in 8 neighboring rows at once, so these are in different banks.
    static constexpr bool kExchanged = kUnits % 8 == 0;
    static constexpr int kStride = kExchanged ? kHeadDim : kHeadDim + kUnit;
    static constexpr int kElements = kKeys * kStride;
    // Neighboring threads that copy a key, keys that the block copies at once, and how often for those of one block of the cache.
    static constexpr int kLanes = kUnits <= 4 ? 4 : kUnits <= 8 ? 8 : kUnits <= 16 ? 16 : 32;
    static constexpr int kLines = kCopiers / kLanes, kRounds = kLines < kCopiedKeys ? kCopiedKeys / kLines : 1;

    struct Loaded {
        const Stored *keys, *values;
    };

    __device__ CacheTiles(const Attention& given, const Tile& tile)
        : given_(given), tile_(tile), blocks_(given.tables + static_cast<long long>(tile.sequence) * given.width),
          memory_(reinterpret_cast<Stored*>(launch_memory())), block_bits_(__ffs(given.block_size) - 1) {}

    // Requests the first tile, that of keys from `first` on. Keys after the sequence's are zeros.
    __device__ void start(int first) { request(stage_, first); }

    // Waits for the tile that was requested last, and requests the one from `next` on, if the sequence has any.
    __device__ Loaded advance(int next) {
        wait_for_copies();
        __syncthreads();  // the copies of all threads are there, and the tile before has been read
        const int stage = stage_;
        stage_ = (stage + 1) % kStages;
        if (next < tile_.end) request(stage_, next);
        return {keys(stage), values(stage)};
    }

    // Where a unit of a row of a tile begins.
    __device__ static int place(int row, int unit) { return row * kStride + (kExchanged ? unit ^ (row & 7) : unit) * kUnit; }

    // Memory after the tiles.
    __device__ void* rest() { return keys(kStages); }

   private:
    __device__ Stored* keys(int stage) { return memory_ + stage * 2 * kElements; }
    __device__ Stored* values(int stage) { return keys(stage) + kElements; }

    __device__ void request(int stage, int first) {
        if (first + kKeys <= tile_.end) {
            request(stage, first, [](int) { return true; });
        } else {
            request(stage, first, [&](int key) { return key < tile_.end; });
        }
        end_copies();
    }

    // there(key) returns whether the key is to be copied.
    template <class There>
    __device__ void request(int stage, int first, const There& there) {
        const Stored *all_keys = static_cast<const Stored*>(given_.keys), *all_values = static_cast<const Stored*>(given_.values);
        Stored *to_keys = keys(stage), *to_values = values(stage);
        const int line = threadIdx.x / kLanes, unit = threadIdx.x % kLanes;
        if (unit >= kUnits) return;
        // Of the thread's keys of a step, which are of one block of the cache, the first one of those copied at once.
        const int group = kLines > kCopiedKeys ? line / kCopiedKeys * kCopiedKeys : 0;
#pragma unroll
        for (int begin = 0; begin < kKeys; begin += kLines * kRounds) {
            const long long cached = there(first + begin + group) ? place_of(first + begin + group) : 0;
            const long long at = cached + (line - group) * kHeadDim + unit * kUnit;
#pragma unroll
            for (int round = 0; round < kRounds; ++round) {
                const int row = begin + line + round * kLines, to = place(row, unit);
                const bool copied = there(first + row);
                copy_later(to_keys + to, copied ? all_keys + at + round * kLines * kHeadDim : all_keys, copied);
                copy_later(to_values + to, copied ? all_values + at + round * kLines * kHeadDim : all_values, copied);
            }
        }
    }

    // Where a key of this sequence begins in the cache.
    __device__ long long place_of(int key) const {
        const long long block = static_cast<long long>(blocks_[key >> block_bits_]) * given_.kv_heads + tile_.kv_head;
        return ((block << block_bits_) + (key & (given_.block_size - 1))) * kHeadDim;
    }

    const Attention& given_;
    const Tile& tile_;
    const int* blocks_;
    Stored* memory_;
    const int block_bits_;
    int stage_ = 0;
};

}  // namespace fdlp
