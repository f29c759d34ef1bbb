// Attention of 16 rows to a range of keys, by one warp, tile by tile of keys: a softmax whose maximum and sum run along.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022, for the values.
#pragma once

#include "cache_tiles.cuh"

namespace fdlp {

// Of rows `lane / 4` and `lane / 4 + 8` of a warp. values[j][2 h + e]: of row h the element 8 j + 2 (lane % 4) + e.
template <int kHeadDim>
struct Part {
    float max[2], sum[2];
    float values[kHeadDim / 8][4];

    __device__ Part() {
        for (int h = 0; h < 2; ++h) {
            max[h] = minus_infinity();
            sum[h] = 0.0f;
        }
        for (auto& four : values) {
            for (float& value : four) value = 0.0f;
        }
    }
};

// What maxima below are counted from. Where no key is visible yet, any finite number will do.
__device__ inline float base_of(float max) { return max == minus_infinity() ? 0.0f : max; }

// The factors of two sums of powers of 2, below these maxima, when both are counted from the greater one.
struct Merge {
    float max, old_factor, new_factor;

    __device__ Merge(float old_max, float new_max) : max(fmaxf(old_max, new_max)) {
        old_factor = power_of_2(old_max - base_of(max));
        new_factor = power_of_2(new_max - base_of(max));
    }

    __device__ float operator()(float older, float newer) const { return fmaf(older, old_factor, newer * new_factor); }
};

// Four lanes share a row.
template <class Combine>
__device__ float reduce_row(float value, const Combine& combine) {
    for (int distance = 1; distance < 4; distance *= 2) value = combine(value, __shfl_xor_sync(kEveryLane, value, distance));
    return value;
}

// The block has kBlockThreads threads, which copy the tiles together.
template <class Element, int kHeadDim, int kBlockThreads>
class Softmax {
   public:
    typedef typename Element::Stored Stored;
    typedef typename Element::Pair Pair;
    typedef CacheTiles<Element, kHeadDim, kBlockThreads> Tiles;
    // Products have 16 elements or keys at once, and 8 keys or elements of a result.
    static constexpr int kSteps = kHeadDim / 16, kKeyGroups = Tiles::kKeys / 16;

    __device__ Softmax(const Attention& given, const Tile& tile)
        : rows_{LaneRow(tile, lane() / 4), LaneRow(tile, lane() / 4 + 8)}, scale_(given.scale), warp_(tile) {
        const int width = (given.heads + 2 * given.kv_heads) * kHeadDim;
        for (int h = 0; h < 2; ++h) {
            const Stored* query = static_cast<const Stored*>(given.qkv) + static_cast<long long>(rows_[h].row) * width;
            query += rows_[h].head * kHeadDim + 2 * (lane() % 4);
            for (int step = 0; step < kSteps; ++step) {
                queries_[step][h] = *reinterpret_cast<const Pair*>(query + 16 * step);
                queries_[step][2 + h] = *reinterpret_cast<const Pair*>(query + 16 * step + 8);
            }
        }
    }

    // Attends to keys [begin, end), of which the first tile has been requested; after the last one, requests that from `following` on.
    __device__ Part<kHeadDim> attend(Tiles& tiles, int begin, int end, int following) const {
        Part<kHeadDim> part;
#pragma unroll 1
        for (int first = begin; first < end; first += Tiles::kKeys) {
            const int next = first + Tiles::kKeys;
            const typename Tiles::Loaded loaded = tiles.advance(next < end ? next : following);
            if (first < warp_.end) step(part, loaded, first);
        }
        for (float& sum : part.sum) sum = reduce_row(sum, [](float a, float b) { return a + b; });
        return part;
    }

    __device__ const LaneRow& row(int h) const { return rows_[h]; }

   private:
    __device__ void step(Part<kHeadDim>& part, const typename Tiles::Loaded& loaded, int first) const {
        float weights[2 * kKeyGroups][4] = {};
        score(weights, loaded.keys);
        // A key after a row's own is hidden from it.
        if (first + Tiles::kKeys > warp_.position + 1) hide(weights, first);
        weigh(part, weights);
        add_values(part, weights, loaded.values);
    }

    // scores[i][2 h + e]: of row h with key 8 i + 2 (lane % 4) + e.
    __device__ void score(float (&scores)[2 * kKeyGroups][4], const Stored* keys) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int group = 0; group < kKeyGroups; ++group) {
                Pair b[2][2];
                Element::template rows<Tiles>(b, keys, 16 * group, 16 * step);
                for (int i = 0; i < 2; ++i) Element::multiply(scores[2 * group + i], queries_[step], b[i]);
            }
        }
    }

    __device__ void hide(float (&scores)[2 * kKeyGroups][4], int first) const {
#pragma unroll
        for (int i = 0; i < 2 * kKeyGroups; ++i) {
            for (int place = 0; place < 4; ++place) {
                const int key = first + 8 * i + 2 * (lane() % 4) + place % 2;
                if (key > rows_[place / 2].position) scores[i][place] = minus_infinity();
            }
        }
    }

    // Turns scores into weights below the new maximum, and what is summed already with them. A lane's sum is that of its own keys.
    __device__ void weigh(Part<kHeadDim>& part, float (&scores)[2 * kKeyGroups][4]) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float max = minus_infinity();
            for (const auto& four : scores) max = fmaxf(max, fmaxf(four[2 * h], four[2 * h + 1]));
            max = scale_ * reduce_row(max, [](float a, float b) { return fmaxf(a, b); });
            const Merge merge(part.max[h], max);
            const float base = base_of(merge.max);
            float sum = 0.0f;
            for (auto& four : scores) {
                for (int e = 0; e < 2; ++e) {
                    float& weight = four[2 * h + e];
                    // Not fused: the greatest score is exactly the base, however large it is.
                    weight = power_of_2(weight * scale_ - base);
                    sum += weight;
                }
            }
            part.max[h] = merge.max;
            part.sum[h] = fmaf(part.sum[h], merge.old_factor, sum);
            // Seldom after the first tiles, and a factor of 1 changes nothing.
            if (__ballot_sync(kEveryLane, merge.old_factor != 1.0f) == 0) continue;
            for (auto& four : part.values) {
                for (int e = 0; e < 2; ++e) four[2 * h + e] *= merge.old_factor;
            }
        }
    }

    __device__ void add_values(Part<kHeadDim>& part, const float (&weights)[2 * kKeyGroups][4], const Stored* values) const {
#pragma unroll
        for (int group = 0; group < kKeyGroups; ++group) {
            Pair a[4];
            for (int i = 0; i < 4; ++i) {
                const float* two = &weights[2 * group + i / 2][i % 2 * 2];
                a[i] = Element::pair(two[0], two[1]);
            }
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                Pair b[2][2];
                Element::template columns<Tiles>(b, values, 16 * group, 16 * step);
                for (int i = 0; i < 2; ++i) Element::multiply(part.values[2 * step + i], a, b[i]);
            }
        }
    }

    const LaneRow rows_[2];
    const float scale_;
    const WarpRows warp_;
    Pair queries_[kSteps][4];
};

}  // namespace fdlp
