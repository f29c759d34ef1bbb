// The tokens that min-p, top-k and top-p keep of a row: the front of its ranking by logit, of equal ones by id.
#pragma once

#include "lists.cuh"

namespace fdlp {

struct Filters {
    float temperature, min_p;
    long long top_k;  // 0 keeps all
    float top_p;

    __device__ bool draws() const { return temperature != 0.0f; }
    __device__ bool ranks() const { return top_k > 0 || top_p < 1.0f; }
    // Whether the tokens of a list decide it.
    __device__ bool lists() const { return draws() && top_k > 0 && top_k <= kMostListed; }
    // Whether passes of a selection do.
    __device__ bool selects(bool by_mass) const { return draws() && !lists() && (by_mass ? top_p < 1.0f : top_k > 0); }

    __device__ Weigher weigher(float max) const {
        const double least = static_cast<double>(min_p) * kOne;
        return {static_cast<double>(max), 1.0 / static_cast<double>(temperature), least > 1.0 ? least : 1.0};
    }

    // Ranking filters and min-p ignore lower logits.
    __device__ float bound(float max) const { return bound_at(-kNothingBelow, temperature, max); }
};

// Argument of kernels.
struct Draws {
    Rows rows;
    // Of each row.
    const float *temperature, *min_p;
    const long long* top_k;
    const float* top_p;

    __device__ Filters of(int row) const { return {temperature[row], min_p[row], top_k[row], top_p[row]}; }
};

// Tokens from `bound` on: all above `last`, and the first `ties` of those equal to it, which weigh `each`.
struct Kept {
    float bound, last;
    u64 ties, each;

    __device__ bool above(float logit) const { return logit >= bound && logit > last; }
};

// What the selections so far keep. Before the first one `last` is -inf, which weighs nothing.
__device__ inline Kept kept_of(const Place& at, const Weigher& weigher, float bound) {
    const float last = at.state->last;
    return {bound, last, at.state->ties, last == minus_infinity() ? 0 : weigher(last)};
}

// The number of tokens that top-p keeps of a list with these weights.
__device__ inline int keep_mass(double top_p, const u64* weights, int count) {
    u64 total = 0, sum = 0;
    for (int i = 0; i < count; ++i) total += weights[i];
    const u64 mass = whole_from(top_p * static_cast<double>(total)), goal = mass < total ? mass : total;
    int kept = 0;
    while (sum < goal) sum += weights[kept++];
    return kept;
}

}  // namespace fdlp

// A pass of a selection: finds one digit of the order of the last logit that top-k keeps, or, where `by_mass`, that top-p keeps of what
// top-k has kept.
FDLP_KERNEL fdlp_select_rows(const fdlp::Draws given, int by_mass, int number) {
    using namespace fdlp;
    __shared__ Bins bins;
    const Place at = place_of(given.rows);
    const Filters filters = given.of(at.number);
    if (!filters.selects(by_mass != 0)) return;
    const RowScan scan = scan_of(at);
    if (!scan.usable) return;
    const Weigher weigher = filters.weigher(scan.max);
    const Kept kept = kept_of(at, weigher, filters.bound(scan.max));
    const Digit digit{number};
    Selected found{};
    if (number > 0) found = at.state->found;
    fill_bins(at, bins, digit, found.order, order_of, [&](float logit) -> u64 {
        if (!by_mass) return logit >= kept.bound;
        return kept.above(logit) ? weigher(logit) : 0;
    });
    u64 total;
    if (!merge_bins(at, bins, total)) return;
    // Of the logit at which top-k ends, not every token may be kept.
    const u32 tied = order_of(kept.last), tied_bin = digit.follows(tied, found.order) ? digit.bin(tied) : kMostBins;
    const u64 tied_weight = by_mass ? kept.ties * kept.each : 0;
    const auto bin_of = [&](int bin) -> u64 { return bin_of_row(bins, bin) + (static_cast<u32>(bin) == tied_bin ? tied_weight : 0); };
    if (number == 0) {
        total += tied_weight;
        const u64 mass = whole_from(static_cast<double>(filters.top_p) * static_cast<double>(total));
        const u64 goal = by_mass ? mass : static_cast<u64>(filters.top_k);
        found.goal = goal < total ? goal : total;
    }
    find_digit(digit, bin_of, found);
    if (threadIdx.x != 0) return;
    at.state->found = found;
    if (number < kDigits - 1) return;
    const float last = float_of(found.order);
    // Equal logits weigh the same.
    const u64 each = by_mass ? weigher(last) : 1, missing = found.goal - found.above;
    at.state->last = last;
    at.state->ties = (missing + each - 1) / each;
}

// The first pass of draws with a small top-k: what fdlp_scan_rows does, and lists of the parts' greatest logits.
FDLP_KERNEL fdlp_list_draws(const fdlp::Draws given, const fdlp::Lists lists) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const Filters filters = given.of(at.number);
    clear(at, given.rows.selects != 0);
    scan_and_list(at, lists, filters.lists() ? static_cast<int>(filters.top_k) : 0);
}

// The second pass of such draws, with a block for each row: finds what top-k and top-p keep of the row's list.
FDLP_KERNEL fdlp_merge_draws(const fdlp::Draws given, const fdlp::Lists lists) {
    using namespace fdlp;
    __shared__ u64 listed[kMostListed], weights[kMostListed];
    const Place at = place_in(given.rows, blockIdx.x, 0);
    const Filters filters = given.of(at.number);
    const RowScan scan = scan_of(at);
    if (!filters.lists() || !scan.usable) return;
    const Weigher weigher = filters.weigher(scan.max);
    const float bound = filters.bound(scan.max);
    const int count = filters.top_k < at.size ? static_cast<int>(filters.top_k) : at.size;
    merge_lists(lists, at, count, [&](int place, u64 ranked) {
        listed[place] = ranked;
        weights[place] = weigher(logit_of(ranked));
    });
    __syncthreads();
    if (threadIdx.x != 0) return;
    int kept = 1;
    while (kept < count && logit_of(listed[kept]) >= bound) ++kept;
    if (filters.top_p < 1.0f) kept = keep_mass(filters.top_p, weights, kept);
    const float last = logit_of(listed[kept - 1]);
    u64 ties = 1;
    while (ties < static_cast<u64>(kept) && logit_of(listed[kept - 1 - ties]) == last) ++ties;
    at.state->last = last;
    at.state->ties = ties;
}
