// Finds the key at which weights, added from the greatest key down, reach a given sum, without sorting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "rows/row_weights.h"

namespace fdlp {

// Keys from `low` on and below `high`; all from `high` on weigh `above` together.
struct KeyRange {
    double low, high, above;
};

// The part of the range in which the weights reach `mass`: one of nine, all of which a single pass weighs.
inline KeyRange narrow(const KeyRange& range, const float* keys, const double* weights, size_t count, double mass) {
    constexpr int kBounds = 8;
    double bounds[kBounds], reached[kBounds];
    for (int b = 0; b < kBounds; ++b) bounds[b] = range.low + (range.high - range.low) * (b + 1) / (kBounds + 1);
    Doubles lanes[kBounds] = {};
    size_t at = 0;
    for (; at + kWide <= count; at += kWide) {
        const Doubles key = widen(keys + at);
        const Doubles weight = load(weights + at);
        for (int b = 0; b < kBounds; ++b) lanes[b] += select(key >= Doubles{} + bounds[b], weight, Doubles{});
    }
    for (int b = 0; b < kBounds; ++b) {
        reached[b] = 0.0;
        for (int64_t lane = 0; lane < kWide; ++lane) reached[b] += lanes[b][lane];
        for (size_t rest = at; rest < count; ++rest) reached[b] += keys[rest] >= bounds[b] ? weights[rest] : 0.0;
    }
    KeyRange found = range;
    for (int b = kBounds - 1; b >= 0; --b) {
        if (reached[b] >= mass) {
            found.low = bounds[b];
            break;
        }
        found.high = bounds[b];
        found.above = reached[b];
    }
    return found;
}

// The key at which the weights reach `mass`, and the weight of all greater keys, if keys of total weight `before` precede
// these. Both vectors have the same nonzero length and are reordered; no weight is 0.
inline std::pair<float, double> key_among(std::vector<float>& keys, std::vector<double>& weights, double before, double mass) {
    size_t begin = 0, end = keys.size();
    while (true) {
        const float a = keys[begin], b = keys[begin + (end - begin) / 2], c = keys[end - 1];
        const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        size_t greater = begin, at = begin, less = end;
        double greater_weight = 0.0, equal_weight = 0.0;
        while (at < less) {
            if (keys[at] > pivot) {
                greater_weight += weights[at];
                std::swap(keys[at], keys[greater]);
                std::swap(weights[at++], weights[greater++]);
            } else if (keys[at] < pivot) {
                --less;
                std::swap(keys[at], keys[less]);
                std::swap(weights[at], weights[less]);
            } else {
                equal_weight += weights[at++];
            }
        }
        if (before + greater_weight >= mass) {
            end = greater;
        } else if (before + greater_weight + equal_weight >= mass || less == end) {
            return {pivot, before + greater_weight};
        } else {
            before += greater_weight + equal_weight;
            begin = less;
        }
    }
}

// The least and the greatest of keys.
inline std::pair<float, float> limits_of(const float* keys, size_t count) {
    Floats least = splat(keys[0]), greatest = least;
    size_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
        const Floats values = load(keys + at);
        least = select(values < least, values, least);
        greatest = maximum(values, greatest);
    }
    std::pair<float, float> found{keys[0], keys[0]};
    for (int lane = 0; lane < kLanes; ++lane) {
        found = {std::min(found.first, least[lane]), std::max(found.second, greatest[lane])};
    }
    for (; at < count; ++at) found = {std::min(found.first, keys[at]), std::max(found.second, keys[at])};
    return found;
}

// The key at which the weights reach `mass`, and the weight of all greater keys. There is at least one weight above 0, and
// keys of weight 0 do not count. A mass of 0 is reached by the greatest key.
inline std::pair<float, double> key_at(const float* keys, const double* weights, size_t count, double mass) {
    // Passes over all keys pay off if there are many: after three passes about one in seven hundred is left.
    constexpr size_t kMany = 512;
    constexpr int kPasses = 3;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    thread_local std::vector<float> left_keys;
    thread_local std::vector<double> left_weights;
    left_keys.clear();
    left_weights.clear();
    mass = std::max(mass, std::numeric_limits<double>::min());
    KeyRange range{-kInfinity, kInfinity, 0.0};
    if (count > kMany) {
        const auto [least, greatest] = limits_of(keys, count);
        range = {least, std::nextafter(static_cast<double>(greatest), kInfinity), 0.0};
        for (int pass = 0; pass < kPasses; ++pass) range = narrow(range, keys, weights, count, mass);
    }
    for (size_t begin = 0; begin < count; begin += kWide) {
        const size_t end = std::min(begin + kWide, count);
        if (end - begin == kWide) {
            const Doubles key = widen(keys + begin);
            if (!any((key >= Doubles{} + range.low) & (key < Doubles{} + range.high))) continue;
        }
        for (size_t at = begin; at < end; ++at) {
            if (keys[at] < range.low || keys[at] >= range.high || weights[at] == 0.0) continue;
            left_keys.push_back(keys[at]);
            left_weights.push_back(weights[at]);
        }
    }
    return key_among(left_keys, left_weights, range.above, mass);
}

}  // namespace fdlp
