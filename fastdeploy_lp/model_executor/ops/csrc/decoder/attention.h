// Causal attention with grouped query heads over a paged cache. Each query's result depends on its own row, its length and the cache alone,
// with sums in a fixed order, so it has the same bits in a prompt's chunk of any size and in a decode step.
#pragma once

#include "decoder/context.h"
#include "decoder/product_sums.h"

inline Floats as_element(const float*, Floats x) { return x; }
// Beyond the largest half a value would be infinite, and 0 * infinity would reach queries that do not see it.
inline Floats as_element(const uint16_t*, Floats x) {
    const Floats most = splat(65504.0f);
    return select(x > most, most, select(x < -most, -most, x));
}

template <class Element>
void write_key_value(const Cache& cache, Element* keys, Element* values, int block, int offset, int head, const float* key,
                     const float* value) {
    Element* k = keys + cache.key_at(block, head) + offset / kLanes * kLanes * cache.head_dim + offset % kLanes;
    Element* v = values + cache.value_at(block, head) + static_cast<int64_t>(offset) * cache.value_width();
    for (int d = 0; d < cache.head_dim; d += kLanes) {
        const int left = cache.head_dim - d;
        Element narrow[kLanes];
        store(narrow, as_element(narrow, load_first(key + d, left)));
        for (int i = 0; i < kLanes && i < left; ++i) k[(d + i) * kLanes] = narrow[i];
        // Padding follows the last element of a value row.
        store(v + d, as_element(v, load_first(value + d, left)));
    }
}

constexpr int kMaxAttentionRows = 6;
// Dimensions of a key whose products are computed together; with few registers, GCC has none for those of several.
constexpr int kDimensions = kSums < 24 ? 1 : 2;

// Scratch memory of a thread while it attends to one context.
struct AttentionRoom {
    float* queries;  // [kMaxAttentionRows][head_dim]
    float* scores;   // [kMaxAttentionRows][stride]
    int64_t stride;
};

// A strip's scores do not depend on those beside it.
template <int Rows, int Count, class Element>
void score_strips(Strips<Element>& strips, ContextPrefetcher<Element>& prefetcher, int head_dim, const AttentionRoom& room) {
    constexpr int kLine = 64 / sizeof(Element), kPerLine = kLine / kLanes;
    Strip<Element> taken[Count];
    const Element* later[Count];
#pragma GCC unroll 6
    for (int i = 0; i < Count; ++i) taken[i] = strips.next(), later[i] = prefetcher.next();
    ProductSums<Rows, Count> sums;
#pragma GCC unroll kDimensions
    for (int d = 0; d < head_dim; ++d) {
        const Element* keys[Count];
#pragma GCC unroll 6
        for (int i = 0; i < Count; ++i) {
            if (d % kPerLine == 0) prefetch_line(later[i] + d * kLanes);
            keys[i] = taken[i].keys + d * kLanes;
        }
        sums.add(room.queries + d, head_dim, keys);
    }
#pragma GCC unroll 6
    for (int i = 0; i < Count; ++i)
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) store_first(room.scores + r * room.stride + taken[i].position, sums.of(r, i), taken[i].count);
}

// scores[r][position] = query r · key, for all positions of the strips: several strips at once, so that enough sums are under way to hide
// their latency.
template <int Rows, class Element>
void score(Strips<Element> strips, ContextPrefetcher<Element>& prefetcher, int head_dim, const AttentionRoom& room) {
    constexpr int kMost = std::clamp(kSums / Rows, 1, 6);
    while (strips.left() > 0) {
        // In equal parts: a single last strip would be slow.
        const int turns = (strips.left() + kMost - 1) / kMost;
        switch ((strips.left() + turns - 1) / turns) {
#define FDLP_STRIPS(n) \
    case n: score_strips<Rows, n <= kMost ? n : kMost>(strips, prefetcher, head_dim, room); break;
            FDLP_STRIPS(1) FDLP_STRIPS(2) FDLP_STRIPS(3) FDLP_STRIPS(4) FDLP_STRIPS(5) FDLP_STRIPS(6)
#undef FDLP_STRIPS
        }
    }
}

// Softmax numerators in place: the first `length` scores become e^(score - max), the rest up to `end` 0; returns 1 / their sum.
inline float soften(float* scores, int length, int end) {
    const Floats nothing = splat(-__builtin_inff());
    const int whole = length / kLanes * kLanes;
    if (whole < length) {
        const Ints seen = lane_numbers() < length - whole;
        store(scores + whole, select(seen, load(scores + whole), nothing));
    }
    Floats most = nothing;
    for (int i = 0; i < length; i += kLanes) most = maximum(most, load(scores + i));
    const Floats top = splat(largest(most));
    Floats total = {};
    for (int i = 0; i < length; i += kLanes) {
        const Floats shifted = load(scores + i) - top;
        const Floats p = select(shifted >= splat(-87.0f), exp_up_to_87(shifted), Floats{});
        store(scores + i, p);
        total += p;
    }
    for (int i = round_up(length, kLanes); i < end; i += kLanes) store(scores + i, Floats{});
    return 1.0f / sum(total);
}

// outs[r] [head_dim] = Σ over the first `length` positions of scores[r][position] * value, times scale[r]: of `Vectors` times 16 columns,
// from column `from` on.
template <int Rows, int Vectors, class Element>
void mix_columns(Strips<Element> strips, ContextPrefetcher<Element>& prefetcher, const Context<Element>& context, int length, int from,
                 const AttentionRoom& room, const float* scale, float* const* outs) {
    constexpr int kLine = 64 / sizeof(Element);
    const int width = context.value_width(), lines = (width + kLine - 1) / kLine;
    ProductSums<Rows, Vectors> sums;
    while (strips.left() > 0) {
        const Strip<Element> strip = strips.next();
        const Element *v = strip.values + from, *later = prefetcher.next();
        const int end = std::min(strip.position + strip.count, length);
        for (int position = strip.position; position < end; ++position, v += width, later += width) {
            for (int i = 0; i < lines; ++i) prefetch_line(later + i * kLine);
            const Element* parts[Vectors];
#pragma GCC unroll 4
            for (int i = 0; i < Vectors; ++i) parts[i] = v + i * kLanes;
            sums.add(room.scores + position, room.stride, parts);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int i = 0; i < Vectors; ++i) {
            const int column = from + i * kLanes;
            store_first(outs[r] + column, sums.of(r, i) * splat(scale[r]), context.head_dim() - column);
        }
}

template <int Rows, class Element>
void mix(const Strips<Element>& strips, ContextPrefetcher<Element>& prefetcher, const Context<Element>& context, int length,
         const AttentionRoom& room, const float* scale, float* const* outs) {
    constexpr int kMost = std::clamp(kSums / Rows, 1, 4);
    const int vectors = context.value_width() / kLanes;
    for (int done = 0; done < vectors; done += kMost) switch (std::min(vectors - done, kMost)) {
#define FDLP_VECTORS(n) \
    case n: mix_columns<Rows, std::min(n, kMost)>(strips, prefetcher, context, length, done * kLanes, room, scale, outs); break;
            FDLP_VECTORS(1) FDLP_VECTORS(2) FDLP_VECTORS(3) FDLP_VECTORS(4)
#undef FDLP_VECTORS
        }
}

// Up to six query rows; row r sees the first lengths[r] positions.
template <int Rows, class Element>
void attend(const Context<Element>& context, ContextPrefetcher<Element>& prefetcher, const float* const* queries, const int* lengths,
            float* const* outs, const AttentionRoom& room) {
    const int head_dim = context.head_dim();
    int longest = 0;
    for (int r = 0; r < Rows; ++r) {
        std::copy_n(queries[r], head_dim, room.queries + r * head_dim);
        longest = std::max(longest, lengths[r]);
    }
    const Strips<Element> strips(context, 0, context.strips_of(longest));
    score<Rows>(strips, prefetcher, head_dim, room);
    float scale[Rows];
    for (int r = 0; r < Rows; ++r) scale[r] = soften(room.scores + r * room.stride, lengths[r], longest);
    mix<Rows>(strips, prefetcher, context, longest, room, scale, outs);
}
