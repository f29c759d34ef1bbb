// Attention of 16 rows to a range of keys, by one warp, in tiles of 16 keys: a softmax whose maximum and sum run along.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022, for the values.
#pragma once

#include "passes.cuh"

namespace fdlp {

constexpr int kTileKeys = 16;
// A lane's share of a row: 8 of 32 elements, or of 32 neighboring elements of a key 8, and of a value 4.
constexpr int kChunk = 32;

// Of rows `lane / 4` and `lane / 4 + 8` of a tile. values[4 * c + e] has, of each row, elements 32 c + 8 (lane % 4) + e and 4 after it.
template <int kHeadDim>
struct Part {
    float max[2], sum[2];
    float values[kHeadDim / 8][4];

    __device__ Part() {
        for (int i = 0; i < 2; ++i) {
            max[i] = minus_infinity();
            sum[i] = 0.0f;
        }
        for (auto& four : values) {
            for (float& value : four) value = 0.0f;
        }
    }
};

// The factors of two sums of powers of 2, below these maxima, when both are counted from the greater one.
struct Merge {
    float max, old_factor, new_factor;

    __device__ Merge(float old_max, float new_max) : max(fmaxf(old_max, new_max)) {
        // Where no key is visible yet, any finite number will do.
        const float base = max == minus_infinity() ? 0.0f : max;
        old_factor = exp2f(old_max - base);
        new_factor = exp2f(new_max - base);
    }

    __device__ float operator()(float older, float newer) const { return fmaf(older, old_factor, newer * new_factor); }
};

template <class Element, int kHeadDim>
class Softmax {
   public:
    typedef typename Element::Stored Stored;
    typedef typename Element::Pair Pair;
    static constexpr int kChunks = kHeadDim / kChunk;

    __device__ Softmax(const Attention& given, const Tile& tile)
        : given_(given), tile_(tile), rows_{LaneRow(given, tile, lane() / 4), LaneRow(given, tile, lane() / 4 + 8)} {
        const int width = (given.heads + 2 * given.kv_heads) * kHeadDim;
        for (int i = 0; i < 2; ++i) {
            const Stored* query = static_cast<const Stored*>(given.qkv) + static_cast<long long>(rows_[i].row) * width;
            for (int c = 0; c < kChunks; ++c) {
                queries_[i][c] = load<Element, 4>(query + rows_[i].head * kHeadDim + kChunk * c + 8 * (lane() % 4), rows_[i].used);
            }
        }
    }

    // Attends to keys [begin, end), of which `begin` is a multiple of a tile's.
    __device__ Part<kHeadDim> attend(int begin, int end) const {
        Part<kHeadDim> part;
        const int* blocks = given_.tables + static_cast<long long>(tile_.sequence) * given_.width;
#pragma unroll 1
        for (int first = begin; first < end; first += kTileKeys) {
            const long long block = static_cast<long long>(blocks[first / given_.block_size]) * given_.kv_heads + tile_.kv_head;
            const long long place = (block * given_.block_size + first % given_.block_size) * kHeadDim;
            step(part, static_cast<const Stored*>(given_.keys) + place, static_cast<const Stored*>(given_.values) + place, first, end);
        }
        return part;
    }

    __device__ const LaneRow& row(int i) const { return rows_[i]; }

   private:
    // Tensor cores take keys in any order of elements that queries have, too, and values in any order: each lane loads neighbors.
    __device__ void step(Part<kHeadDim>& part, const Stored* keys, const Stored* values, int first, int end) const {
        const int quad = lane() / 4, place = lane() % 4;
        Pairs<Element, 4> key[2][kChunks];
        Pairs<Element, 2> value[4][kChunks];
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            for (int i = 0; i < 2; ++i) {
                const int at = 8 * i + quad;
                key[i][c] = load<Element, 4>(keys + at * kHeadDim + kChunk * c + 8 * place, first + at < end);
            }
            for (int i = 0; i < 4; ++i) {
                const int at = 2 * place + i % 2 + i / 2 * 8;
                value[i][c] = load<Element, 2>(values + at * kHeadDim + kChunk * c + 4 * quad, first + at < end);
            }
        }
        float weights[2][4] = {};
        score(weights, key);
        weigh(part, weights, first);
        add_values(part, weights, value);
    }

    // scores[i][2 h + e]: of row h with key 8 i + 2 (lane % 4) + e.
    __device__ void score(float (&scores)[2][4], const Pairs<Element, 4> (&key)[2][kChunks]) const {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            for (int p = 0; p < 4; p += 2) {
                const Pair a[4] = {queries_[0][c].at[p], queries_[1][c].at[p], queries_[0][c].at[p + 1], queries_[1][c].at[p + 1]};
                for (int i = 0; i < 2; ++i) {
                    const Pair b[2] = {key[i][c].at[p], key[i][c].at[p + 1]};
                    Element::multiply(scores[i], a, b);
                }
            }
        }
    }

    // Turns scores into weights below the new maximum, and what is summed already with them.
    __device__ void weigh(Part<kHeadDim>& part, float (&scores)[2][4], int first) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float max = minus_infinity();
            for (int i = 0; i < 2; ++i) {
                for (int e = 0; e < 2; ++e) {
                    const bool visible = first + 8 * i + 2 * (lane() % 4) + e <= rows_[h].position;
                    float& score = scores[i][2 * h + e];
                    score = visible ? score * given_.scale : minus_infinity();
                    max = fmaxf(max, score);
                }
            }
            // Four lanes share a row.
            for (int distance = 1; distance < 4; distance *= 2) max = fmaxf(max, __shfl_xor_sync(kEveryLane, max, distance));
            const Merge merge(part.max[h], max);
            const float base = merge.max == minus_infinity() ? 0.0f : merge.max;
            float sum = 0.0f;
            for (int i = 0; i < 2; ++i) {
                for (int e = 0; e < 2; ++e) {
                    float& weight = scores[i][2 * h + e];
                    weight = exp2f(weight - base);
                    sum += weight;
                }
            }
            for (int distance = 1; distance < 4; distance *= 2) sum += __shfl_xor_sync(kEveryLane, sum, distance);
            part.max[h] = merge.max;
            part.sum[h] = fmaf(part.sum[h], merge.old_factor, sum);
            for (auto& four : part.values) {
                for (int e = 0; e < 2; ++e) four[2 * h + e] *= merge.old_factor;
            }
        }
    }

    __device__ void add_values(Part<kHeadDim>& part, const float (&weights)[2][4], const Pairs<Element, 2> (&value)[4][kChunks]) const {
        Pair a[4];
        for (int i = 0; i < 4; ++i) a[i] = Element::pair(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            for (int p = 0; p < 2; ++p) {
                Pair even[2], odd[2];
                for (int i = 0; i < 2; ++i) interleave(value[2 * i][c].at[p], value[2 * i + 1][c].at[p], even[i], odd[i]);
                Element::multiply(part.values[4 * c + 2 * p], a, even);
                Element::multiply(part.values[4 * c + 2 * p + 1], a, odd);
            }
        }
    }

    const Attention& given_;
    const Tile& tile_;
    const LaneRow rows_[2];
    Pairs<Element, 4> queries_[2][kChunks];
};

}  // namespace fdlp
