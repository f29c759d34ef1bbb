// Cuts: set tokens to -inf in place, selected by the row's own distribution. row_cuts.cpp does the same on the CPU.
//
// Passes find the row's greatest logit, then its moments and from them a bound, for some cuts a token or a distance, and then cut.
#pragma once

#include "select.cuh"
#include "strips.cuh"

namespace fdlp {

// Argument of kernels.
struct Cuts {
    Rows rows;
    const float* values;  // of each row
    int cut;

    __device__ Cut kind() const { return static_cast<Cut>(cut); }
};

__device__ inline Weigher weigher_from(float max) { return {static_cast<double>(max), 1.0, 1.0}; }

// Of finite logits.
__device__ inline void sum_for_deviation(const Place& at, double max) {
    sum_strips<kDoubleLanes, 3, double>(at, [&](int token, double* sums) {
        const float logit = at.row[token];
        if (!(logit > minus_infinity())) return;
        const double x = static_cast<double>(logit) - max;
        sums[0] += x;
        sums[1] = multiply_add(x, x, sums[1]);
        sums[2] += 1.0;
    });
}

// Returns this thread's share of the part's weights, and stores products for the weighed mean of x.
__device__ inline u64 sum_for_mean(const Place& at, const Weigher& weigher) {
    u64 total = 0;
    sum_strips<kDoubleLanes, 1, double>(at, [&](int token, double* sums) {
        const float logit = at.row[token];
        const u64 weight = weigher(logit);
        const double x = static_cast<double>(logit) - weigher.max;
        total += weight;
        if (weight != 0) sums[0] = multiply_add(static_cast<double>(weight), x > kLowest ? x : kLowest, sums[0]);
    });
    return total;
}

// How far x of a logit is from the row's weighted mean of x.
struct Distance {
    double max, mean;

    __device__ float operator()(float logit) const {
        const double x = static_cast<double>(logit) - max, away = x - mean;
        return static_cast<float>(away > -away ? away : -away);
    }
};

__device__ inline float lowest_from(double max, double bound) { return float_from(max + (bound < 0.0 ? bound : 0.0)); }

// -inf for the tokens of the part for which out(token, logit) is true.
template <class Out>
__device__ void cut_where(const Place& at, const Out& out) {
    visit(at, [&](int token, float logit) {
        if (out(token, logit)) at.row[token] = minus_infinity();
    });
}

}  // namespace fdlp

// Finds what a cut depends on, but for min-p, which needs the greatest logit alone.
FDLP_KERNEL fdlp_measure_rows(const fdlp::Cuts given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const RowScan scan = scan_of(at);
    if (!scan.usable) return;
    const double max = scan.max;
    const Cut cut = given.kind();
    const bool with_mean = cut == kEta || cut == kTypical;
    const Weigher weigher = weigher_from(scan.max);
    u64 total = 0;
    if (cut == kTopNSigma) {
        sum_for_deviation(at, max);
    } else if (with_mean) {
        total = sum_for_mean(at, weigher);
    } else {
        visit(at, [&](int, float logit) { total += weigher(logit); });
    }
    store_part(at, block_sum(total), 0);
    if (!last_of_row(at)) return;
    double deviation = 0.0, products[1] = {};
    if (cut == kTopNSigma) {
        double totals[3];
        add_strips<kDoubleLanes>(at, totals);
        deviation = deviation_of(totals[0], totals[1], totals[2]);
    } else if (with_mean) {
        add_strips<kDoubleLanes>(at, products);
    }
    const double sum = static_cast<double>(sum_of_parts(at.weights, at.parts));
    const Moments moments{sum, log_of(sum / kOne), products[0] / sum};
    const double bound = cut_bound(cut, given.values[at.number], moments, deviation);
    if (threadIdx.x != 0) return;
    at.state->mean = moments.mean;
    const bool reached = cut != kExcludeTop || bound <= 0.0;
    at.state->last = reached ? lowest_from(max, bound) : -minus_infinity();
}

// A pass of the typical cut: finds one digit of the distance up to which tokens are kept, those whose x is nearest to its weighted mean,
// until they weigh a share of the whole; of equally near ones all.
FDLP_KERNEL fdlp_select_near(const fdlp::Cuts given, int number) {
    using namespace fdlp;
    __shared__ Bins bins;
    const Place at = place_of(given.rows);
    const RowScan scan = scan_of(at);
    if (!scan.usable) return;
    const Weigher weigher = weigher_from(scan.max);
    const Distance distance{weigher.max, at.state->mean};
    Selected found{};
    if (number > 0) found = at.state->found;
    fill_bins(at, bins, Digit{number}, found.order, [&](float logit) -> u32 { return order_of(-distance(logit)); }, weigher);
    u64 total;
    if (!merge_bins(at, bins, total)) return;
    const auto bin_of = [&](int bin) -> u64 { return bin_of_row(bins, bin); };
    if (number == 0) {
        const u64 mass = whole_from(static_cast<double>(given.values[at.number]) * static_cast<double>(total));
        found.goal = mass < total ? mass : total;
    }
    find_digit(Digit{number}, bin_of, found);
    if (threadIdx.x != 0) return;
    at.state->found = found;
    if (number == kDigits - 1) at.state->last = -float_of(found.order);
}

// A pass of the cut of top tokens: finds the last one of the ranking that reaches the bound; none is cut if fewer than two reach it.
FDLP_KERNEL fdlp_find_reaching(const fdlp::Cuts given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    if (!scan_of(at).usable) return;
    const float bound = at.state->last;
    u64 count = 0, latest = 0;
    visit(at, [&](int token, float logit) {
        if (!(logit >= bound)) return;
        const u64 mine = ranked_from_last(logit, token);
        ++count;
        latest = mine > latest ? mine : latest;
    });
    store_part(at, block_max(latest), block_sum(count));
    if (!last_of_row(at)) return;
    count = sum_of_parts(at.counts, at.parts);
    latest = max_of_parts(at.weights, at.parts);
    if (threadIdx.x != 0) return;
    if (count < 2) at.state->last = -minus_infinity();
    at.state->last_token = static_cast<int>(static_cast<u32>(latest));
}

// The last pass. The i-th row is cut by values[i]; rows are distinct. A row with a NaN or without a finite logit stays.
FDLP_KERNEL fdlp_cut_rows(const fdlp::Cuts given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const RowScan scan = scan_of(at);
    if (!scan.usable) return;
    const RowState state = *at.state;
    const Cut cut = given.kind();
    if (cut == kTypical) {
        const Distance distance{static_cast<double>(scan.max), state.mean};
        cut_where(at, [&](int, float logit) { return distance(logit) > state.last; });
    } else if (cut == kExcludeTop) {
        cut_where(at, [&](int token, float logit) { return logit >= state.last && token != state.last_token; });
    } else {
        const float lowest = cut == kMinP ? lowest_from(scan.max, cut_bound(cut, given.values[at.number], Moments{}, 0.0)) : state.last;
        cut_where(at, [&](int, float logit) { return logit < lowest; });
    }
}
