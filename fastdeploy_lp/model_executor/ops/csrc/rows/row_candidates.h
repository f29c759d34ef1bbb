// Tokens of a row that a draw looks at, with their weights; and the draw from a row as it is.
#pragma once

#include <algorithm>
#include <vector>

#include "rows/row_scan.h"
#include "rows/row_weights.h"

namespace fdlp {

constexpr int64_t kBlock = 512;

// Memory that a thread reuses from row to row: `count` tokens of the row, by id, with their logits and weights.
struct Scratch {
    size_t count = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logits, part;
    std::vector<double> weights, blocks;

    // Room for a whole row and what vectors take at once.
    void reserve(int64_t size) {
        const size_t room = size + kLanes;
        if (tokens.size() >= room) return;
        tokens.resize(room);
        logits.resize(room);
        weights.resize(room);
    }
};

inline Scratch& scratch() {
    thread_local Scratch mine;
    return mine;
}

// Sums of the weights of each block of the row; returns their total.
inline double weigh_blocks(const Weigher& weigher, const float* row, int64_t size, std::vector<double>& sums) {
    sums.clear();
    const HalfFloats nothing = HalfFloats{} + weigher.weightless();
    double buffer[kBlock];
    double total = 0.0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
        const int64_t count = std::min(kBlock, size - begin);
        Doubles lanes = {};
        int64_t at = 0;
        for (; at + kWide <= count; at += kWide) {
            // Of a filtered row, most tokens have no weight.
            if (any(load_half(row + begin + at) > nothing)) lanes += weigher(widen(row + begin + at));
        }
        double sum = 0.0;
        for (int64_t lane = 0; lane < kWide; ++lane) sum += lanes[lane];
        if (at < count) {
            weigher.weigh(row + begin + at, count - at, buffer);
            for (int64_t rest = 0; rest < count - at; ++rest) sum += buffer[rest];
        }
        sums.push_back(sum);
        total += sum;
    }
    return total;
}

inline int64_t draw_unranked(const Weigher& weigher, const float* row, int64_t size, float uniform) {
    std::vector<double>& sums = scratch().blocks;
    const double target = uniform * weigh_blocks(weigher, row, size, sums);
    double before = 0.0;
    size_t block = 0;
    while (block + 1 < sums.size() && before + sums[block] < target) before += sums[block++];
    const int64_t begin = static_cast<int64_t>(block) * kBlock;
    double weights[kBlock];
    const int64_t count = std::min(kBlock, size - begin);
    weigher.weigh(row + begin, count, weights);
    int64_t at = 0;
    while (at + 1 < count && (before += weights[at]) < target) ++at;
    return begin + at;
}

// Calls `use` with the first of each kWide tokens of the row among which a logit is at least `bound`, and with their number.
template <typename Use>
inline void each_from(const float* row, int64_t size, float bound, const Use& use) {
    constexpr int64_t kStride = 4 * kWide;
    const HalfFloats bounds = HalfFloats{} + bound;
    int64_t at = 0;
    for (; at + kStride <= size; at += kStride) {
        HalfInts found[4];
        for (int part = 0; part < 4; ++part) found[part] = load_half(row + at + part * kWide) >= bounds;
        if (!any(found[0] | found[1] | found[2] | found[3])) continue;
        for (int part = 0; part < 4; ++part)
            if (any(found[part])) use(at + part * kWide, kWide);
    }
    for (; at < size; at += kWide) use(at, std::min(kWide, size - at));
}

// Tokens whose logit is at least `bound`, by id, with their weights.
inline void gather(const Weigher& weigher, const float* row, int64_t size, float bound, Scratch& to) {
    to.reserve(size);
    size_t count = 0;
    each_from(row, size, bound, [&](int64_t first, int64_t several) {
        for (int64_t token = first; token < first + several; ++token) {
            // Written first, then counted: in a flat row a branch would be unpredictable.
            to.tokens[count] = static_cast<int32_t>(token);
            to.logits[count] = row[token];
            count += row[token] >= bound;
        }
    });
    to.count = count;
    weigher.weigh(to.logits.data(), static_cast<int64_t>(count), to.weights.data());
}

inline double sum(const Scratch& gathered) {
    Doubles lanes = {};
    size_t at = 0;
    for (; at + kWide <= gathered.count; at += kWide) {
        lanes += load(gathered.weights.data() + at);
    }
    double total = 0.0;
    for (int64_t lane = 0; lane < kWide; ++lane) total += lanes[lane];
    for (; at < gathered.count; ++at) total += gathered.weights[at];
    return total;
}

}  // namespace fdlp
