// Causal attention with grouped query heads over a paged cache.
//
// Keys lie [block][kv_head][head_dim][block_size] and values [block][kv_head][block_size][head_dim], the last axis filled up to a multiple of 16,
// in float32 or half: 16 keys are scored by one vector, and nothing is ever permuted. Each query's result depends on its own row, its
// length and the cache alone, with sums in a fixed order, so it has the same bits in a prompt's chunk of any size and in a decode step.
#pragma once

#include <type_traits>

#include "linear.h"

// Mirrored by `CacheStruct` in decoder.py.
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

// Strips of 16 keys: query rows times `Strips` of them at once, so that enough sums are under way to hide their latency.
template <int Rows, int Strips, class Element>
inline void score_strips(const Element* const* strips, int width, int head_dim, const float* const* queries, Floats (*sums)[Strips]) {
    Floats acc[Rows][Strips] = {};
    for (int d = 0; d < head_dim; ++d) {
        Floats keys[Strips];
#pragma GCC unroll 4
        for (int i = 0; i < Strips; ++i) keys[i] = load(strips[i] + d * width);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats q = splat(queries[r][d]);
#pragma GCC unroll 4
            for (int i = 0; i < Strips; ++i) acc[r][i] += q * keys[i];
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int i = 0; i < Strips; ++i) sums[r][i] = acc[r][i];
}

// Where a pass over one sequence and head begins to read; asked for while another one computes.
inline void prefetch_first_keys(const Cache& cache, const void* keys, const int32_t* table, int blocks, int head) {
    const int64_t size = cache.element_bytes();
    const int64_t bytes = static_cast<int64_t>(cache.head_dim) * cache.key_width() * size;
    for (int b = 0; b < blocks && b < 4; ++b) prefetch(static_cast<const char*>(keys) + cache.key_at(table[b], head) * size, bytes);
}

// Of strips `first` … `first` + Strips - 1; a strip's scores do not depend on those beside it.
template <int Rows, int Strips, class Element>
void score_strips_from(const Cache& cache, const Element* keys, const int32_t* table, int first, int head, const float* const* queries,
                       float* scores, int64_t stride) {
    const int width = cache.key_width(), per_block = width / kLanes;
    const Element* strips[Strips];
    for (int i = 0; i < Strips; ++i)
        strips[i] = keys + cache.key_at(table[(first + i) / per_block], head) + (first + i) % per_block * kLanes;
    Floats sums[Rows][Strips];
    score_strips<Rows, Strips>(strips, width, cache.head_dim, queries, sums);
    for (int i = 0; i < Strips; ++i) {
        const int block = (first + i) / per_block, at = (first + i) % per_block * kLanes, left = cache.block_size - at;
        for (int r = 0; r < Rows; ++r) store_first(scores + r * stride + block * cache.block_size + at, sums[r][i], left);
    }
}

// scores[r][position] = query r · key, for all positions of `blocks` blocks.
template <int Rows, class Element>
void score(const Cache& cache, const Element* keys, const Element* values, const int32_t* table, int blocks, int head,
           const float* const* queries, float* scores, int64_t stride) {
    constexpr int kStrips = Rows <= 4 ? 4 : 2;
    const int width = cache.key_width(), per_block = width / kLanes, count = blocks * per_block;
    const int64_t key_bytes = static_cast<int64_t>(cache.head_dim) * width * sizeof(Element);
    const int64_t value_bytes = static_cast<int64_t>(cache.block_size) * cache.value_width() * sizeof(Element);
    for (int first = 0; first < count; first += kStrips) {
        // Blocks lie anywhere, which the processor's own prefetching cannot foresee.
        for (int next = (first + kStrips) / per_block; next < blocks && next * per_block < first + 2 * kStrips; ++next)
            prefetch(keys + cache.key_at(table[next], head), key_bytes);
        for (int now = first / per_block; now < blocks && now * per_block < first + kStrips; ++now)
            prefetch(values + cache.value_at(table[now], head), value_bytes);
        const auto from = [&](auto strips) {
            score_strips_from<Rows, decltype(strips)::value>(cache, keys, table, first, head, queries, scores, stride);
        };
        switch (count - first) {
            case 1: from(std::integral_constant<int, 1>{}); break;
            case 2: from(std::integral_constant<int, 2>{}); break;
            case 3: from(std::integral_constant<int, kStrips < 3 ? kStrips : 3>{}); break;
            default: from(std::integral_constant<int, kStrips>{});
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

// outs[r] [head_dim] = Σ over the first `length` positions of weights[r][position] * value, times scale[r].
template <int Rows, class Element>
void mix(const Cache& cache, const Element* values, const int32_t* table, int length, int head, const float* weights, int64_t stride,
         const float* scale, float* const* outs) {
    constexpr int kChunk = 4 * kLanes;
    const int width = cache.value_width();
    for (int from = 0; from < cache.head_dim; from += kChunk) {
        const int vectors = (cache.head_dim - from < kChunk ? width - from : kChunk) / kLanes;
        Floats sums[Rows][4] = {};
        for (int first = 0; first < length; first += cache.block_size) {
            const Element* v = values + cache.value_at(table[first / cache.block_size], head) + from;
            const int end = first + cache.block_size < length ? first + cache.block_size : length;
            for (int position = first; position < end; ++position, v += width) {
                Floats part[4] = {};
                if (vectors == 4) {
#pragma GCC unroll 4
                    for (int i = 0; i < 4; ++i) part[i] = load(v + i * kLanes);
                } else {
                    for (int i = 0; i < vectors; ++i) part[i] = load(v + i * kLanes);
                }
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    const Floats w = splat(weights[r * stride + position]);
#pragma GCC unroll 4
                    for (int i = 0; i < 4; ++i) sums[r][i] += w * part[i];
                }
            }
        }
        for (int r = 0; r < Rows; ++r)
            for (int i = 0; i < vectors; ++i)
                store_first(outs[r] + from + i * kLanes, sums[r][i] * splat(scale[r]), cache.head_dim - from - i * kLanes);
    }
}

// Up to six query rows of one sequence and one key-value head; row r sees the first lengths[r] positions.
template <int Rows, class Element>
void attend(const Cache& cache, const Element* keys, const Element* values, const int32_t* table, int head, const float* const* queries,
            const int* lengths, float* const* outs, float* scores, int64_t stride) {
    int longest = 0;
    for (int r = 0; r < Rows; ++r) longest = lengths[r] > longest ? lengths[r] : longest;
    const int blocks = (longest + cache.block_size - 1) / cache.block_size;
    score<Rows>(cache, keys, values, table, blocks, head, queries, scores, stride);
    float scale[Rows];
    for (int r = 0; r < Rows; ++r) scale[r] = soften(scores + r * stride, lengths[r], longest);
    mix<Rows>(cache, values, table, longest, head, scores, stride, scale, outs);
}
