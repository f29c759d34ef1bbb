// Causal attention with grouped query heads over a paged cache.
//
// Keys lie [block][kv_head][head_dim][block_size] and values [block][kv_head][block_size][head_dim], the last axis filled up to a multiple of 16,
// in float32 or half: 16 keys are scored by one vector, and nothing is ever permuted. Each query's result depends on its own row, its
// length and the cache alone, with sums in a fixed order, so it has the same bits in a prompt's chunk of any size and in a decode step.
#pragma once

#include "linear.h"

// Mirrored by `CacheStruct` in structs.py.
struct Cache {
    int32_t block_size, kv_heads, head_dim, half;

    int key_width() const { return round_up(block_size, kLanes); }
    int value_width() const { return round_up(head_dim, kLanes); }
    int64_t element_bytes() const { return half ? sizeof(uint16_t) : sizeof(float); }
    int64_t key_at(int block, int head) const { return (static_cast<int64_t>(block) * kv_heads + head) * head_dim * key_width(); }
    int64_t value_at(int block, int head) const { return (static_cast<int64_t>(block) * kv_heads + head) * block_size * value_width(); }
};

inline Floats as_element(const float*, Floats x) { return x; }
// Beyond the largest half a value would be infinite, and 0 * infinity would reach queries that do not see it.
inline Floats as_element(const uint16_t*, Floats x) {
    const Floats most = splat(65504.0f);
    return select(x > most, most, select(x < -most, -most, x));
}

template <class Element>
void write_key_value(const Cache& cache, Element* keys, Element* values, int block, int offset, int head, const float* key,
                     const float* value) {
    Element* k = keys + cache.key_at(block, head) + offset;
    Element* v = values + cache.value_at(block, head) + static_cast<int64_t>(offset) * cache.value_width();
    for (int d = 0; d < cache.head_dim; d += kLanes) {
        const int left = cache.head_dim - d;
        Element narrow[kLanes];
        store(narrow, as_element(narrow, load_first(key + d, left)));
        for (int i = 0; i < kLanes && i < left; ++i) k[(d + i) * cache.key_width()] = narrow[i];
        // Behind the last of a value's numbers lies what fills its row up.
        store(v + d, as_element(v, load_first(value + d, left)));
    }
}

constexpr int kMaxAttentionRows = 6;

// Blocks lie anywhere, which the processor's own prefetching cannot foresee: keys are asked for so many blocks ahead.
constexpr int kBlocksAhead = 4;

inline int64_t key_bytes(const Cache& cache) { return static_cast<int64_t>(cache.head_dim) * cache.key_width() * cache.element_bytes(); }

// Where a pass over one sequence and head begins to read; asked for while another one computes.
inline void prefetch_first_keys(const Cache& cache, const void* keys, const int32_t* table, int blocks, int head) {
    const auto from = static_cast<const char*>(keys);
    for (int b = 0; b < blocks && b < kBlocksAhead; ++b)
        prefetch(from + cache.key_at(table[b], head) * cache.element_bytes(), key_bytes(cache));
}

// A strip's keys, the position of the first and the number of positions.
template <class Element>
struct Strip {
    const Element* keys;
    int position, count;
};

// The strips of `blocks` blocks, in order.
template <class Element>
class Strips {
   public:
    Strips(const Cache& cache, const Element* keys, const Element* values, const int32_t* table, int blocks, int head)
        : cache_(cache), keys_(keys), values_(values), table_(table), blocks_(blocks), head_(head) {}

    int count() const { return blocks_ * (cache_.key_width() / kLanes); }

    Strip<Element> next() {
        if (at_ == 0) ask();
        const Strip<Element> strip{keys_ + cache_.key_at(table_[block_], head_) + at_, block_ * cache_.block_size + at_,
                                   cache_.block_size - at_};
        at_ += kLanes;
        if (at_ == cache_.key_width()) at_ = 0, ++block_;
        return strip;
    }

   private:
    void ask() const {
        if (block_ + kBlocksAhead < blocks_) prefetch(keys_ + cache_.key_at(table_[block_ + kBlocksAhead], head_), key_bytes(cache_));
        prefetch(values_ + cache_.value_at(table_[block_], head_), cache_.block_size * cache_.value_width() * cache_.element_bytes());
    }

    const Cache& cache_;
    const Element *keys_, *values_;
    const int32_t* table_;
    int blocks_, head_, block_ = 0, at_ = 0;
};

// A strip's scores do not depend on those beside it.
template <int Rows, int Count, class Element>
void score_strips(Strips<Element>& strips, int width, int head_dim, const float* const* queries, float* scores, int64_t stride) {
    Strip<Element> taken[Count];
    for (Strip<Element>& strip : taken) strip = strips.next();
    Floats sums[Rows][Count] = {};
    for (int d = 0; d < head_dim; ++d) {
        Floats keys[Count];
#pragma GCC unroll 6
        for (int i = 0; i < Count; ++i) keys[i] = load(taken[i].keys + d * width);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
            const Floats q = splat(queries[r][d]);
#pragma GCC unroll 6
            for (int i = 0; i < Count; ++i) sums[r][i] += q * keys[i];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < Count; ++i)
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) store_first(scores + r * stride + taken[i].position, sums[r][i], taken[i].count);
}

// scores[r][position] = query r · key, for all positions of the strips: several strips at once, so that enough sums are under way to hide
// their latency.
template <int Rows, class Element>
void score(Strips<Element> strips, int width, int head_dim, const float* const* queries, float* scores, int64_t stride) {
    constexpr int kMost = Rows <= 4 ? 6 : 4;
    for (int left = strips.count(), count; left > 0; left -= count) {
        // Of equal numbers: a last strip alone would be slow.
        const int turns = (left + kMost - 1) / kMost;
        count = (left + turns - 1) / turns;
        switch (count) {
#define FDLP_STRIPS(n) \
    case n:            \
        score_strips<Rows, n <= kMost ? n : kMost>(strips, width, head_dim, queries, scores, stride); break;
            FDLP_STRIPS(1) FDLP_STRIPS(2) FDLP_STRIPS(3) FDLP_STRIPS(4) FDLP_STRIPS(5) FDLP_STRIPS(6)
#undef FDLP_STRIPS
        }
    }
}

// In place: the first `length` scores become e^(score - max), the rest up to `end` 0; gives 1 / their sum.
inline float soften(float* scores, int length, int end) {
    const Floats nothing = splat(-__builtin_inff());
    const int whole = length / kLanes * kLanes;
    if (whole < length) {
        const Ints seen = Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} < length - whole;
        store(scores + whole, select(seen, load(scores + whole), nothing));
    }
    Floats most = nothing;
    for (int i = 0; i < length; i += kLanes) most = maximum(most, load(scores + i));
    const Floats top = splat(largest(most));
    Floats total = {};
    for (int i = 0; i < length; i += kLanes) {
        const Floats shifted = load(scores + i) - top;
        const Floats p = select(shifted >= splat(-87.0f), exp_nonpositive(shifted), Floats{});
        store(scores + i, p);
        total += p;
    }
    for (int i = round_up(length, kLanes); i < end; i += kLanes) store(scores + i, Floats{});
    return 1.0f / sum(total);
}

// outs[r] [head_dim] = Σ over the first `length` positions of weights[r][position] * value, times scale[r]: of `Vectors` times 16 columns,
// from column `from` on.
template <int Rows, int Vectors, class Element>
void mix_columns(const Cache& cache, const Element* values, const int32_t* table, int length, int head, int from, const float* weights,
                 int64_t stride, const float* scale, float* const* outs) {
    const int width = cache.value_width();
    Floats sums[Rows][Vectors] = {};
    for (int first = 0; first < length; first += cache.block_size, ++table) {
        const Element* v = values + cache.value_at(*table, head) + from;
        const int end = first + cache.block_size < length ? first + cache.block_size : length;
        for (int position = first; position < end; ++position, v += width) {
            Floats part[Vectors];
#pragma GCC unroll 4
            for (int i = 0; i < Vectors; ++i) part[i] = load(v + i * kLanes);
#pragma GCC unroll 6
            for (int r = 0; r < Rows; ++r) {
                const Floats w = splat(weights[r * stride + position]);
#pragma GCC unroll 4
                for (int i = 0; i < Vectors; ++i) sums[r][i] += w * part[i];
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int i = 0; i < Vectors; ++i) {
            const int column = from + i * kLanes;
            store_first(outs[r] + column, sums[r][i] * splat(scale[r]), cache.head_dim - column);
        }
}

template <int Rows, class Element>
void mix(const Cache& cache, const Element* values, const int32_t* table, int length, int head, const float* weights, int64_t stride,
         const float* scale, float* const* outs) {
    constexpr int kMost = 4;
    const int vectors = cache.value_width() / kLanes;
    for (int done = 0; done < vectors; done += kMost) switch (vectors - done) {
#define FDLP_VECTORS(n) mix_columns<Rows, n>(cache, values, table, length, head, done * kLanes, weights, stride, scale, outs)
            case 1: FDLP_VECTORS(1); break;
            case 2: FDLP_VECTORS(2); break;
            case 3: FDLP_VECTORS(3); break;
            default: FDLP_VECTORS(kMost);
#undef FDLP_VECTORS
        }
}

// Up to six query rows of one sequence and one key-value head; row r sees the first lengths[r] positions.
template <int Rows, class Element>
void attend(const Cache& cache, const Element* keys, const Element* values, const int32_t* table, int head, const float* const* queries,
            const int* lengths, float* const* outs, float* scores, int64_t stride) {
    int longest = 0;
    for (int r = 0; r < Rows; ++r) longest = lengths[r] > longest ? lengths[r] : longest;
    const int blocks = (longest + cache.block_size - 1) / cache.block_size;
    score<Rows>(Strips<Element>(cache, keys, values, table, blocks, head), cache.key_width(), cache.head_dim, queries, scores, stride);
    float scale[Rows];
    for (int r = 0; r < Rows; ++r) scale[r] = soften(scores + r * stride, lengths[r], longest);
    mix<Rows>(cache, values, table, longest, head, scores, stride, scale, outs);
}
