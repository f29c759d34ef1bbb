// Software prefetch during products. After the first rows of a product have loaded a panel, memory is idle until the last rows are done;
// meanwhile the thread prefetches the next panel and the next layer's keys and values, which are scattered.
#pragma once

#include <algorithm>
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

    // Spreads the prefetch of a layer's keys and values over the next `asks` calls of `ask`: requested at once, they would take the line
    // buffers from the products' own loads. What caches or calls are too few for is read last. Null for none.
    void read_cache(const void* keys, const void* values, int64_t asks) {
        keys_ = static_cast<const uint8_t*>(keys), values_ = static_cast<const uint8_t*>(values);
        of_cache_ = {};
        rate_ = owed_ = left_ = 0;
        if (keys == nullptr || asks <= 0) return;
        const int64_t of_block = key_bytes_ + value_bytes_, most = std::min(kMostCacheBytes, asks * kMostLines * 64);
        const int64_t blocks = std::min(static_cast<int64_t>(blocks_.size()), most / of_block);
        left_ = 2 * blocks;
        rate_ = (blocks * of_block / 64 * kParts + asks - 1) / asks;
    }

    // True if the panel is the one that was prefetched last, as a whole.
    bool has(const Linear& layer, int panel) const {
        return !of_panel_.left() && of_panel_.end == layer.panel(panel) + layer.panel_bytes(panel);
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
            of_panel_ = {begin, begin + from->panel_bytes(next)};
            per_ask_ = (from->panel_bytes(next) / 64 + asks - 1) / asks * 64;
        }
        return begin;
    }

    void ask(const uint8_t*, int64_t) {
        if (of_panel_.left()) of_panel_.ask(per_ask_);
        owed_ += rate_;
        if (owed_ >= kParts) ask_cache();
    }

   private:
    // Of keys and values a layer, and lines a call; the rate is in parts of a line.
    static constexpr int64_t kMostCacheBytes = 8 << 20, kMostLines = 4, kParts = 256;

    void ask_cache() {
        const int64_t lines = owed_ / kParts;
        owed_ %= kParts;
        if (of_cache_.left() || next_range())
            of_cache_.ask(64 * lines);
        else
            rate_ = 0;
    }

    bool next_range() {
        if (left_ == 0) return false;
        --left_;
        // Prefetch in reverse read order: a cache too small for all of it evicts the earliest prefetched lines.
        const int64_t block = blocks_[left_ / 2];
        const bool key = left_ % 2 == 0;
        const uint8_t* from = key ? keys_ + block * key_bytes_ : values_ + block * value_bytes_;
        of_cache_ = {from, from + (key ? key_bytes_ : value_bytes_)};
        return true;
    }

    std::vector<int32_t> blocks_;
    int thread_, threads_;
    int64_t key_bytes_, value_bytes_, left_ = 0, rate_ = 0, owed_ = 0, per_ask_ = 0;
    const uint8_t *keys_ = nullptr, *values_ = nullptr;
    Stretch of_panel_, of_cache_;
};
