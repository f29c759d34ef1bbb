// Cuts: set tokens to -inf in place, selected by the row's own distribution. A row with a NaN or without a finite logit is
// unchanged.
//
// Below, x is a logit less the row's greatest one. Weights are those of a draw at temperature 1, so that their sum is
// exact; where a bound is compared, it is compared in doubles.
#include <algorithm>
#include <vector>

#include "exports.h"
#include "rows/row_scan.h"
#include "rows/row_select.h"
#include "rows/row_weights.h"

namespace fdlp {
namespace {

// Calls take(logits) for each 8 logits of a row, the last ones followed by -inf, and end_strip() after each 64 calls and at the end.
template <class Take, class EndStrip>
void walk(const float* row, int64_t size, const Take& take, const EndStrip& end_strip) {
    for (int64_t at = 0; at < size;) {
        const int64_t end = std::min<int64_t>(at + kDoubleLanes * kLaneSteps, size);
        for (; at + kWide <= end; at += kWide) take(widen(row + at));
        if (at < end) {
            float rest[kWide];
            for (int64_t lane = 0; lane < kWide; ++lane) rest[lane] = at + lane < end ? row[at + lane] : kMinusInfinity;
            take(widen(rest));
            at = end;
        }
        end_strip();
    }
}

// Moves the lanes of a strip, added in order, to the sum of the row.
void drain(Doubles& lanes, double& total) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < kWide; ++lane) sum += lanes[lane];
    total += sum;
    lanes = Doubles{};
}

Moments moments_of(const float* row, int64_t size, double max, bool with_mean) {
    const Weigher weigher{max, 1.0, 1.0};
    const Doubles lowest = Doubles{} + kLowest;
    Doubles totals = {}, products = {};
    double total = 0.0, product = 0.0;
    const auto take = [&](Doubles logits) {
        const Doubles weights = weigher(logits);
        totals += weights;
        if (!with_mean) return;
        const Doubles x = logits - max;
        products = multiply_add(weights, select(x > lowest, x, lowest), products);
    };
    walk(row, size, take, [&] {
        drain(totals, total);
        drain(products, product);
    });
    return {total, log_of(total / kOne), product / total};
}

// Standard deviation of the finite logits.
double deviation_of_row(const float* row, int64_t size, double max) {
    const Doubles zero = {}, one = zero + 1.0;
    Doubles sums = {}, squares = {}, counts = {};
    double sum = 0.0, square = 0.0, count = 0.0;
    const auto take = [&](Doubles logits) {
        const auto finite = logits > static_cast<double>(kMinusInfinity);
        const Doubles x = select(finite, logits - max, zero);
        sums += x;
        squares = multiply_add(x, x, squares);
        counts += select(finite, one, zero);
    };
    walk(row, size, take, [&] {
        drain(sums, sum);
        drain(squares, square);
        drain(counts, count);
    });
    return deviation_of(sum, square, count);
}

void cut_below(float* row, int64_t size, float bound) {
    const Floats bounds = splat(bound), cut = splat(kMinusInfinity);
    int64_t at = 0;
    for (; at + kLanes <= size; at += kLanes) {
        const Floats values = load(row + at);
        store(row + at, select(values < bounds, cut, values));
    }
    for (; at < size; ++at) {
        if (row[at] < bound) row[at] = kMinusInfinity;
    }
}

// -inf for every token that reaches `bound` but the last one of the ranking; nothing if fewer than two reach it.
void cut_above_last(float* row, int64_t size, float bound) {
    const Floats bounds = splat(bound);
    int64_t count = 0, last = -1;
    thread_local std::vector<int64_t> reaching;
    reaching.clear();
    for (int64_t at = 0; at < size; at += kLanes) {
        const int64_t end = at + kLanes < size ? at + kLanes : size;
        if (end - at == kLanes && !any(load(row + at) >= bounds)) continue;
        for (int64_t token = at; token < end; ++token) {
            if (!(row[token] >= bound)) continue;
            reaching.push_back(token);
            ++count;
            if (last < 0 || row[token] <= row[last]) last = token;
        }
    }
    if (count < 2) return;
    for (int64_t token : reaching) {
        if (token != last) row[token] = kMinusInfinity;
    }
}

// Distances of x of 8 logits from the row's weighted mean of x.
HalfFloats distances_of(Doubles logits, double max, double mean) {
    const Doubles distance = (logits - max) - mean, opposite = mean - (logits - max);
    return to_half(select(distance > opposite, distance, opposite));
}

// Tokens that are not further than `depth` from the mean, and weigh something: the opposite of their distances, so that
// the nearest has the greatest key, and their weights; returns the sum of the weights.
double gather_near(const Weigher& weigher, const float* row, int64_t size, double mean, float depth, std::vector<float>& keys,
                   std::vector<double>& weights) {
    keys.clear();
    weights.clear();
    double total = 0.0;
    for (int64_t begin = 0; begin < size; begin += kWide) {
        const int64_t count = size - begin < kWide ? size - begin : kWide;
        float logits[kWide];
        for (int64_t lane = 0; lane < kWide; ++lane) logits[lane] = lane < count ? row[begin + lane] : kMinusInfinity;
        const HalfFloats distances = distances_of(widen(logits), weigher.max, mean);
        const auto far = distances > HalfFloats{} + depth;
        int64_t all_far = -1;
        for (int64_t lane = 0; lane < kWide; ++lane) all_far &= far[lane];
        if (all_far) continue;
        double buffer[kWide];
        weigher.weigh(logits, kWide, buffer);
        for (int64_t lane = 0; lane < kWide; ++lane) {
            if (far[lane] || buffer[lane] == 0.0) continue;
            keys.push_back(-distances[lane]);
            weights.push_back(buffer[lane]);
            total += buffer[lane];
        }
    }
    return total;
}

// Keeps the tokens whose x is nearest to its weighted mean, until they weigh `share` of the whole; of equally near ones all.
// Few tokens carry the weight as a rule, so the search begins near the mean.
void cut_untypical(float* row, int64_t size, double max, double share) {
    thread_local std::vector<float> keys;
    thread_local std::vector<double> weights;
    const Moments moments = moments_of(row, size, max, true);
    const Weigher weigher{max, 1.0, 1.0};
    const double mass = share * moments.total;
    constexpr float kAll = std::numeric_limits<float>::infinity();
    for (float depth : {0.5f, 2.0f, 6.0f, kAll}) {
        if (gather_near(weigher, row, size, moments.mean, depth, keys, weights) >= mass || depth == kAll) break;
    }
    const float furthest = -key_at(keys.data(), weights.data(), keys.size(), mass).first;
    int64_t token = 0;
    for (; token + kWide <= size; token += kWide) {
        const HalfFloats distances = distances_of(widen(row + token), max, moments.mean);
        for (int64_t lane = 0; lane < kWide; ++lane) {
            row[token + lane] = distances[lane] > furthest ? kMinusInfinity : row[token + lane];
        }
    }
    for (; token < size; ++token) {
        const Doubles logit = Doubles{} + static_cast<double>(row[token]);
        if (distances_of(logit, max, moments.mean)[0] > furthest) row[token] = kMinusInfinity;
    }
}

void cut_row(Cut cut, float* row, int64_t size, double value) {
    const RowScan scan = scan_row(row, size);
    if (!scan.usable) return;
    const double max = scan.max;
    if (cut == kTypical) {
        cut_untypical(row, size, max, value);
        return;
    }
    const bool weighs = cut == kEpsilon || cut == kEta || cut == kExcludeTop;
    const Moments moments = weighs ? moments_of(row, size, max, cut == kEta) : Moments{};
    const double bound = cut_bound(cut, value, moments, cut == kTopNSigma ? deviation_of_row(row, size, max) : 0.0);
    if (cut == kExcludeTop) {
        if (bound <= 0.0) cut_above_last(row, size, float_from(max + bound));
        return;
    }
    cut_below(row, size, float_from(max + (bound < 0.0 ? bound : 0.0)));
}

}  // namespace
}  // namespace fdlp

// Row rows[i] of logits [.., size] is cut by values[i]; `rows` are distinct.
FDLP_EXPORT void fdlp_cut_rows(float* logits, int64_t size, int cut, int64_t count, const int64_t* rows, const float* values) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
    for (int64_t i = 0; i < count; ++i) {
        fdlp::cut_row(static_cast<fdlp::Cut>(cut), logits + rows[i] * size, size, static_cast<double>(values[i]));
    }
}
