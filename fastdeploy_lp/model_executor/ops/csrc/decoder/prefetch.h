// Software prefetch during products. After the first rows of a product have loaded a panel, memory is idle until the last rows are done;
// meanwhile the thread prefetches the next panel and the next layer's keys and values, which are scattered.
#pragma once

#include <utility>
#include <vector>

#include "decoder/context.h"

// A memory range, prefetched a few lines at a time; the last prefetch may pass its end, which costs less than a check.
struct Stretch {
    const uint8_t *at = nullptr, *end = nullptr;

    bool left() const { return at < end; }
    void ask(int64_t bytes) {
        prefetch(at, bytes);
        at += bytes;
    }
};

class Prefetcher {
   public:
    // `blocks`: cache blocks of the contexts that this thread will attend to.
    Prefetcher(const Cache& cache, std::vector<int32_t> blocks, int thread, int threads)
        : blocks_(std::move(blocks)), thread_(thread), threads_(threads), key_bytes_(cache.key_at(1, 0) * cache.element_bytes()),
          value_bytes_(cache.value_at(1, 0) * cache.element_bytes()) {}

    // Switches the prefetch to this layer's keys and values; null for none.
    void read_cache(const void* keys, const void* values) {
        keys_ = static_cast<const uint8_t*>(keys), values_ = static_cast<const uint8_t*>(values);
        of_cache_ = {};
        next_ = keys == nullptr ? static_cast<int64_t>(2 * blocks_.size()) : 0;
    }

    // Called when this thread begins a panel, during which it will call `ask` `asks` times. The next panel to prefetch is the following one
    // or, at the end of its share, the first one of the next product. Returns its address; null when nothing follows.
    const uint8_t* begin_panel(const Linear& layer, const Linear* after, int panel, int asks) {
        of_panel_ = {};
        const Linear* from = &layer;
        int next = panel + 1;
        if (next >= Share::of(layer.panels(), thread_, threads_).end) {
            if (after == nullptr) return nullptr;
            from = after, next = Share::of(after->panels(), thread_, threads_).first;
        }
        const uint8_t* begin = from->panel(next);
        if (asks > 0) {
            of_panel_ = {begin, begin + from->panel_bytes()};
            per_ask_ = (from->panel_bytes() / 64 + asks - 1) / asks * 64;
        }
        return begin;
    }

    void ask(const uint8_t*, int64_t) {
        if (of_panel_.left()) of_panel_.ask(per_ask_);
        if (of_cache_.left() || next_range()) of_cache_.ask(kCacheBytes);
    }

   private:
    static constexpr int64_t kCacheBytes = 4 * 64;

    bool next_range() {
        if (next_ >= static_cast<int64_t>(2 * blocks_.size())) return false;
        // Prefetch in reverse read order: a cache too small for all of it evicts the earliest prefetched lines.
        const int64_t block = blocks_[blocks_.size() - 1 - next_ / 2];
        const bool key = next_ % 2 == 0;
        const uint8_t* from = key ? keys_ + block * key_bytes_ : values_ + block * value_bytes_;
        of_cache_ = {from, from + (key ? key_bytes_ : value_bytes_)};
        ++next_;
        return true;
    }

    std::vector<int32_t> blocks_;
    int thread_, threads_;
    int64_t key_bytes_, value_bytes_, next_ = 0, per_ask_ = 0;
    const uint8_t *keys_ = nullptr, *values_ = nullptr;
    Stretch of_panel_, of_cache_;
};
