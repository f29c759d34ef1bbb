// Finds where weights, added from the greatest logit on or from the first token on, reach a sum. Nothing is sorted.
//
// Weights are whole numbers up to 2^32, so a sum is exact in any order, and so is its comparison with a sum rounded up.
#pragma once

#include "parts.cuh"

namespace fdlp {

// The least whole number that is not below a sum of weights.
__device__ inline u64 whole_from(double sum) { return sum < 1.0 ? 1 : static_cast<u64>(ceil(sum)); }

struct Found {
    int token;
    u64 before;  // sum of the weights before it
};

// The first token from `begin` on, before `end`, at which `before` and the weights reach the goal; one must.
// weigh(token) returns a whole number.
template <class Weigh>
__device__ Found find_token(int begin, int end, u64 before, u64 goal, const Weigh& weigh) {
    __shared__ u64 of_warps[kMostWarps];
    __shared__ Found found;
    // Each warp adds up a share of the tokens, then a share of the share in which the goal is reached.
#pragma unroll 1
    for (int level = 0; level < 2; ++level) {
        const int even = (end - begin + warps() - 1) / warps();
        const int share = (even + kWarpSize - 1) / kWarpSize * kWarpSize;
        const int first = begin + warp() * share, last = first + share < end ? first + share : end;
        u64 mine = 0;
#pragma unroll 4
        for (int token = first + lane(); token < last; token += kWarpSize) mine += weigh(token);
        mine = __shfl_sync(kEveryLane, warp_prefix(mine), kWarpSize - 1);
        __syncthreads();
        if (lane() == 0) of_warps[warp()] = mine;
        __syncthreads();
        int reached = 0;
        while (before + of_warps[reached] < goal) before += of_warps[reached++];
        begin += reached * share;
        end = begin + share < end ? begin + share : end;
    }
    if (warp() == 0) {
        for (int tile = begin;; tile += kWarpSize) {
            const int token = tile + lane();
            const u64 weight = token < end ? weigh(token) : 0, sum = before + warp_prefix(weight);
            const u32 reached = __ballot_sync(kEveryLane, sum >= goal);
            if (reached != 0) {
                if (lane() == __ffs(reached) - 1) found = {token, sum - weight};
                break;
            }
            before = __shfl_sync(kEveryLane, sum, kWarpSize - 1);
        }
    }
    __syncthreads();
    return found;
}

// Digits, from the highest, by which a 32-bit order is found.
constexpr int kDigits = 3;

struct Digit {
    int number;
    __device__ int bits() const { return number < 2 ? 11 : 10; }
    __device__ int shift() const { return number == 0 ? 21 : number == 1 ? 10 : 0; }
    __device__ u32 bin(u32 order) const { return order >> shift() & ((1u << bits()) - 1); }
    // Whether an order has the digits before this one.
    __device__ bool follows(u32 order, u32 found) const { return number == 0 || order >> (shift() + bits()) == found; }
};

// Sums of 64 bits as two halves, for which shared memory has atomic operations of its own. Logits of one size share a bin, and threads
// of a warp that add to one number wait for each other: copies share them out.
constexpr int kCopies = 2;

struct Bins {
    u32 low[kCopies][kMostBins], high[kCopies][kMostBins];
};

// Of a part, `low` sums the lowest 16 bits of the weights, and `high` the others: a part's do not overflow.
constexpr int kLowBits = 16;
static_assert(kMostPart <= 1 << (31 - kLowBits), "no overflow");

__device__ inline u64 bin_of_part(const Bins& bins, int bin) {
    u64 low = 0, high = 0;
    for (int copy = 0; copy < kCopies; ++copy) {
        low += bins.low[copy][bin];
        high += bins.high[copy][bin];
    }
    return (high << kLowBits) + low;
}

// Adds the part's weights by one digit of the order, of the tokens whose order has the digits found before.
// order_of_logit(logit) ranks; weigh(logit) returns a whole number.
template <class Order, class Weigh>
__device__ void fill_bins(const Place& at, Bins& bins, Digit digit, u32 found, const Order& order_of_logit, const Weigh& weigh) {
    for (int copy = 0; copy < kCopies; ++copy) {
        for (int bin = threadIdx.x; bin < kMostBins; bin += blockDim.x) bins.low[copy][bin] = bins.high[copy][bin] = 0;
    }
    u32 *of_low = bins.low[threadIdx.x % kCopies], *of_high = bins.high[threadIdx.x % kCopies];
    __syncthreads();
    visit(at, [&](int, float logit) {
        const u32 order = order_of_logit(logit);
        if (!digit.follows(order, found)) return;
        const u64 weight = weigh(logit);
        const u32 low = static_cast<u32>(weight) & ((1u << kLowBits) - 1), high = static_cast<u32>(weight >> kLowBits);
        if (low != 0) atomicAdd(&of_low[digit.bin(order)], low);
        if (high != 0) atomicAdd(&of_high[digit.bin(order)], high);
    });
    __syncthreads();
}

// Adds the part's sums to the row's; true on the last block of the row, in whose `bins` are the sums of the row then, in halves of 32
// bits; `total` is the sum of them. The row's are 0 again.
__device__ inline bool merge_bins(const Place& at, Bins& bins, u64& total) {
    for (int bin = threadIdx.x; bin < kMostBins; bin += blockDim.x) {
        const u64 sum = bin_of_part(bins, bin);
        if (sum != 0) atomicAdd(&at.bins[bin], sum);
    }
    if (!last_of_row(at)) return false;
    total = 0;
    for (int bin = threadIdx.x; bin < kMostBins; bin += blockDim.x) {
        const u64 sum = __ldcg(&at.bins[bin]);
        at.bins[bin] = 0;
        bins.low[0][bin] = static_cast<u32>(sum);
        bins.high[0][bin] = static_cast<u32>(sum >> 32);
        total += sum;
    }
    total = block_sum(total);
    return true;
}

__device__ inline u64 bin_of_row(const Bins& bins, int bin) { return static_cast<u64>(bins.high[0][bin]) << 32 | bins.low[0][bin]; }

// The next digit of the order at which the weights reach the goal; they must. `found` is what is known of it, the same on every thread.
// bin_of(bin) returns sums of weights by this digit.
template <class BinOf>
__device__ void find_digit(Digit digit, const BinOf& bin_of, Selected& found) {
    const auto greatest_first = [&](int place) -> u64 { return bin_of(kMostBins - 1 - place); };
    const Found reached = find_token(0, kMostBins, found.above, found.goal, greatest_first);
    const int bin = kMostBins - 1 - reached.token;
    found.order = found.order << digit.bits() | static_cast<u32>(bin);
    found.above = reached.before;
    found.at = bin_of(bin);
}

struct Reached {
    int part;
    u64 before, counted;  // sums of the parts before this one: of all that is added, and of the counts
};

// The first part at which the sum of weight_of(part), and `each` for the first `ties` of the tokens that count_of(part) counts, reaches
// goal_of(total), or the total if that is less; the total must be positive.
template <class WeightOf, class CountOf, class GoalOf>
__device__ Reached find_part(int parts, const WeightOf& weight_of, const CountOf& count_of, u64 each, u64 ties, const GoalOf& goal_of,
                             u64& goal) {
    __shared__ Reached reached;
    const int share = (parts + blockDim.x - 1) / blockDim.x, first = threadIdx.x * share;
    const int end = first + share < parts ? first + share : parts;
    u64 weight = 0, count = 0;
    for (int part = first; part < end; ++part) {
        weight += weight_of(part);
        count += count_of(part);
    }
    const Prefix weights = block_prefix(weight), counts = block_prefix(count);
    const auto sum_of = [&](u64 weighed, u64 counted) -> u64 { return weighed + each * (counted < ties ? counted : ties); };
    const u64 total = sum_of(weights.total, counts.total), wanted = goal_of(total);
    goal = wanted < total ? wanted : total;
    weight = weights.before;
    count = counts.before;
    for (int part = first; part < end; ++part) {
        const Reached before{part, sum_of(weight, count), count};
        weight += weight_of(part);
        count += count_of(part);
        if (before.before < goal && sum_of(weight, count) >= goal) reached = before;
    }
    __syncthreads();
    return reached;
}

}  // namespace fdlp
