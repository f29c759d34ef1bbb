// Keys and values of one sequence and key-value head in the paged cache, strip by strip, and their prefetch.
//
// Keys are stored [block][kv_head][strip][head_dim][16 positions] and values [block][kv_head][block_size][head_dim], the last axis padded
// to a multiple of 16, in float32 or half: one vector scores 16 keys, and nothing is ever permuted.
#pragma once

#include <algorithm>

#include "decoder/linear.h"

// Mirrored by `CacheStruct` in structs.py.
struct Cache {
    int32_t block_size, kv_heads, head_dim, half;

    int strips() const { return (block_size + kLanes - 1) / kLanes; }
    int value_width() const { return round_up(head_dim, kLanes); }
    int64_t element_bytes() const { return half ? sizeof(uint16_t) : sizeof(float); }
    int64_t key_at(int block, int head) const { return (static_cast<int64_t>(block) * kv_heads + head) * strips() * head_dim * kLanes; }
    int64_t value_at(int block, int head) const { return (static_cast<int64_t>(block) * kv_heads + head) * block_size * value_width(); }
};

// Keys and values of up to 16 positions.
template <class Element>
struct Strip {
    const Element *keys, *values;
    int position, count;
};

// The first `blocks` blocks of a sequence as one key-value head sees them.
template <class Element>
class Context {
   public:
    Context() = default;  // without blocks
    Context(const Cache& cache, const void* keys, const void* values, const int32_t* table, int blocks, int head)
        : keys_(static_cast<const Element*>(keys) + cache.key_at(0, head)),
          values_(static_cast<const Element*>(values) + cache.value_at(0, head)), key_stride_(cache.key_at(1, 0)),
          value_stride_(cache.value_at(1, 0)), table_(table), block_size_(cache.block_size), head_dim_(cache.head_dim),
          value_width_(cache.value_width()), strips_of_block_(cache.strips()), blocks_(blocks) {}

    int strips() const { return blocks_ * strips_of_block_; }
    int strips_of(int length) const { return (length + block_size_ - 1) / block_size_ * strips_of_block_; }
    int head_dim() const { return head_dim_; }
    int value_width() const { return value_width_; }

   private:
    template <class>
    friend class Strips;

    const Element *keys_ = nullptr, *values_ = nullptr;  // of the head, in the first of all blocks
    int64_t key_stride_ = 0, value_stride_ = 0;          // from block to block
    const int32_t* table_ = nullptr;
    int block_size_ = 0, head_dim_ = 0, value_width_ = 0, strips_of_block_ = 1, blocks_ = 0;
};

// The strips from `first` on of the first `count` of a context, in order.
template <class Element>
class Strips {
   public:
    Strips(const Context<Element>& context, int first, int count)
        : context_(context), left_(count - first), block_(first / context.strips_of_block_), strip_(first % context.strips_of_block_) {}

    int left() const { return left_; }

    Strip<Element> next() {
        const int64_t block = context_.table_[block_];
        const int from = strip_ * kLanes;
        const Strip<Element> strip{context_.keys_ + block * context_.key_stride_ + from * context_.head_dim_,
                                   context_.values_ + block * context_.value_stride_ + from * context_.value_width_,
                                   block_ * context_.block_size_ + from, std::min(context_.block_size_ - from, kLanes)};
        if (++strip_ == context_.strips_of_block_) strip_ = 0, ++block_;
        --left_;
        return strip;
    }

   private:
    const Context<Element>& context_;
    int left_, block_, strip_;
};

// Blocks are scattered, so hardware prefetch cannot predict them. Attention reads a context's keys and then its values; with each strip
// that it reads, it prefetches the strip `kStripsAhead` later, at the end the first strips of the next context.
template <class Element>
class ContextPrefetcher {
   public:
    ContextPrefetcher(const Context<Element>& now, const Context<Element>& next)
        : keys_(now, std::min(kStripsAhead, now.strips()), now.strips()),
          values_(now, std::min(kStripsAhead - std::min(kStripsAhead, now.strips()), now.strips()), now.strips()),
          next_(next, 0, std::min(kStripsAhead, next.strips())), last_(Strips<Element>(now, 0, 1).next().keys) {}

    // Next strip to prefetch; the last one again when none is left (harmless: cached).
    const Element* next() {
        if (keys_.left() > 0)
            last_ = keys_.next().keys;
        else if (values_.left() > 0)
            last_ = values_.next().values;
        else if (next_.left() > 0)
            last_ = next_.next().keys;
        return last_;
    }

   private:
    static constexpr int kStripsAhead = 6;

    Strips<Element> keys_, values_, next_;
    const Element* last_;
};
