// One token a row: the most likely one, or one drawn after min-p, top-k and top-p, without sorting the row.
//
// Tokens are ranked by logit, equal ones by id. Each filter keeps the front of this ranking, so the kept set is defined by
// the last kept logit and the number of kept tokens with exactly this logit. The draw adds the weights of the kept tokens
// in the order of their ids until they reach the given share of the whole.
#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "exports.h"
#include "rows/row_candidates.h"
#include "rows/row_scan.h"
#include "rows/row_select.h"
#include "rows/row_weights.h"

namespace fdlp {
namespace {

struct Filters {
    float temperature;
    float min_p;
    int64_t top_k;  // 0 keeps all
    float top_p;

    bool ranks() const { return top_k > 0 || top_p < 1.0f; }
};

Weigher weigher_of(const Filters& filters, float max) {
    const double least = std::max(1.0, static_cast<double>(filters.min_p) * kOne);
    return {max, 1.0 / filters.temperature, least};
}

// Gathered tokens whose logit is below `last`, or that come after the first `ties` equal to it, get weight 0.
void keep(Scratch& gathered, float last, int64_t ties) {
    const float* logits = gathered.logits.data();
    double* weights = gathered.weights.data();
    int64_t equal = 0;
    for (size_t at = 0; at < gathered.count; ++at) {
        weights[at] = logits[at] < last ? 0.0 : weights[at];
        equal += logits[at] == last;
    }
    for (size_t at = gathered.count; equal > ties; --equal) {
        while (logits[--at] != last) continue;
        weights[at] = 0.0;
    }
}

void keep_top_k(Scratch& gathered, int64_t top_k) {
    if (static_cast<int64_t>(gathered.count) <= top_k) return;
    std::vector<float>& part = gathered.part;
    part.assign(gathered.logits.begin(), gathered.logits.begin() + gathered.count);
    std::nth_element(part.begin(), part.begin() + (top_k - 1), part.end(), std::greater<float>());
    const float last = part[top_k - 1];
    const int64_t above = std::count_if(part.begin(), part.end(), [last](float logit) { return logit > last; });
    keep(gathered, last, top_k - above);
}

void keep_top_p(const Weigher& weigher, Scratch& gathered, double mass) {
    const auto [last, before] = key_at(gathered.logits.data(), gathered.weights.data(), gathered.count, mass);
    double weight[kWide];
    weigher.weigh(&last, 1, weight);
    int64_t ties = 1;
    while (before + static_cast<double>(ties) * weight[0] < mass) ++ties;
    keep(gathered, last, ties);
}

// Search depths below the greatest logit, in temperatures: usually a few tokens near it have most of the weight.
constexpr int kDepths = 3;
constexpr double kDepth[kDepths] = {4.0, 10.0, -kNothingBelow};

// Total weight of the tokens whose logit is at least each of `bounds`, which are descending.
std::array<double, kDepths> weights_from(const Weigher& weigher, const float* row, int64_t size, const std::array<float, kDepths>& bounds) {
    Doubles lanes[kDepths] = {};
    std::array<double, kDepths> sums = {};
    int64_t at = 0;
    for (; at + kWide <= size; at += kWide) {
        const Doubles logits = widen(row + at), weights = weigher(logits);
        for (int d = 0; d < kDepths; ++d) lanes[d] += select(logits >= Doubles{} + static_cast<double>(bounds[d]), weights, Doubles{});
    }
    double rest[kWide];
    weigher.weigh(row + at, size - at, rest);
    for (int d = 0; d < kDepths; ++d) {
        for (int64_t lane = 0; lane < kWide; ++lane) sums[d] += lanes[d][lane];
        for (int64_t token = at; token < size; ++token) sums[d] += row[token] >= bounds[d] ? rest[token - at] : 0.0;
    }
    return sums;
}

// Gathers the tokens that the filters keep, with weight 0 for other tokens that were examined.
void gather_kept(const Filters& filters, const float* row, int64_t size, float max, Scratch& into) {
    const Weigher weigher = weigher_of(filters, max);
    std::array<float, kDepths> bounds;
    for (int d = 0; d < kDepths; ++d) bounds[d] = bound_at(kDepth[d], filters.temperature, max);
    if (filters.top_k > 0) {
        for (float bound : bounds) {
            gather(weigher, row, size, bound, into);
            if (static_cast<int64_t>(into.count) >= filters.top_k) break;
        }
        keep_top_k(into, filters.top_k);
        if (filters.top_p < 1.0f) keep_top_p(weigher, into, filters.top_p * sum(into));
        return;
    }
    const std::array<double, kDepths> weights = weights_from(weigher, row, size, bounds);
    const double mass = filters.top_p * weights.back();
    const size_t depth = std::find_if(weights.begin(), weights.end() - 1, [mass](double w) { return w >= mass; }) - weights.begin();
    gather(weigher, row, size, bounds[depth], into);
    keep_top_p(weigher, into, mass);
}

int64_t draw_ranked(const Filters& filters, const float* row, int64_t size, float max, float uniform) {
    Scratch& kept = scratch();
    gather_kept(filters, row, size, max, kept);
    const double target = uniform * sum(kept);
    double reached = 0.0;
    size_t at = 0;
    while (at + 1 < kept.count && (reached += kept.weights[at]) < target) ++at;
    return kept.tokens[at];
}

// The least logit of the tokens with a weight.
float least_kept(const Scratch& gathered, float max) {
    Doubles lanes = Doubles{} + static_cast<double>(max);
    size_t at = 0;
    for (; at + kWide <= gathered.count; at += kWide) {
        const Doubles weights = load(gathered.weights.data() + at), logits = widen(gathered.logits.data() + at);
        lanes = select((weights > 0.0) & (logits < lanes), logits, lanes);
    }
    float least = max;
    for (int64_t lane = 0; lane < kWide; ++lane) least = std::min(least, static_cast<float>(lanes[lane]));
    for (; at < gathered.count; ++at) least = gathered.weights[at] > 0.0 ? std::min(least, gathered.logits[at]) : least;
    return least;
}

void filter_row(const Filters& filters, const float* row, int64_t size, float* to) {
    const RowScan scan = scan_row(row, size);
    if (filters.temperature == 0.0f || !scan.usable) {
        std::memcpy(to, row, size * sizeof(float));
        return;
    }
    // Of the tokens that are kept, the last one in the ranking.
    float last = kMinusInfinity;
    int64_t last_token = size;
    if (filters.ranks() || filters.min_p > 0.0f) {
        Scratch& kept = scratch();
        if (filters.ranks()) {
            gather_kept(filters, row, size, scan.max, kept);
        } else {
            gather(weigher_of(filters, scan.max), row, size, bound_at(kDepth[kDepths - 1], filters.temperature, scan.max), kept);
        }
        last = least_kept(kept, scan.max);
        size_t at = kept.count - 1;
        while (kept.logits[at] != last || kept.weights[at] == 0.0) --at;
        last_token = kept.tokens[at];
    }
    const double inverse = 1.0 / filters.temperature;
    for (int64_t token = 0; token < size; ++token) {
        const float scaled = static_cast<float>(row[token] * inverse);
        to[token] = row[token] < last ? kMinusInfinity : scaled;
    }
    for (int64_t token = last_token + 1; token < size; ++token) to[token] = row[token] == last ? kMinusInfinity : to[token];
}

}  // namespace
}  // namespace fdlp

using fdlp::Filters;

// tokens[r]: a token for row r of logits [rows, size], -1 if the row holds a NaN or no finite maximum. `temperature` 0
// takes the most likely token, the first of equals.
FDLP_EXPORT void fdlp_draw_rows(const float* logits, int64_t rows, int64_t size, const float* temperature, const float* min_p,
                                const int64_t* top_k, const float* top_p, const float* uniform, int64_t* tokens) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * size;
        const fdlp::RowScan scan = fdlp::scan_row(row, size);
        const Filters filters{temperature[r], min_p[r], top_k[r], top_p[r]};
        if (!scan.usable) {
            tokens[r] = -1;
        } else if (filters.temperature == 0.0f) {
            tokens[r] = scan.argmax;
        } else if (filters.ranks()) {
            tokens[r] = fdlp::draw_ranked(filters, row, size, scan.max, uniform[r]);
        } else {
            tokens[r] = fdlp::draw_unranked(fdlp::weigher_of(filters, scan.max), row, size, uniform[r]);
        }
    }
}

// The logits [rows, size] that a draw works on: divided by the temperature, -inf where a filter leaves a token out.
FDLP_EXPORT void fdlp_filter_rows(const float* logits, int64_t rows, int64_t size, const float* temperature, const float* min_p,
                                  const int64_t* top_k, const float* top_p, float* filtered) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        fdlp::filter_row({temperature[r], min_p[r], top_k[r], top_p[r]}, logits + r * size, size, filtered + r * size);
    }
}
