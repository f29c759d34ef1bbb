// Log probabilities of a token a row and of the row's most likely tokens. row_logprobs.cpp does the same on the CPU.
//
// The most likely tokens of a row are among those of its parts.
#pragma once

#include "select.cuh"

namespace fdlp {

constexpr int kMostListed = 64;

// Argument of kernels.
struct Listing {
    Rows rows;
    const long long* chosen;  // of each row
    u64* listed;              // [rows, parts, count]
    int count;                // at most kMostListed, and the size of a row
    int normalize;

    // What a part's list is, in descending order; 0 where it has no more tokens.
    __device__ u64* of(const Place& at, int part) const { return listed + (static_cast<long long>(at.number) * at.parts + part) * count; }
};

// Writes the part's greatest logits with their tokens, in descending order.
__device__ inline void list_part(const Place& at, int count, u64* listed) {
    __shared__ Bins bins;
    __shared__ u64 unsorted[kMostListed];
    __shared__ int filled;
    const int most = at.end - at.begin < count ? at.end - at.begin : count;
    Selected found{};
#pragma unroll 1
    for (int number = 0; number < kDigits; ++number) {
        fill_bins(at, bins, Digit{number}, found.order, order_of, [](float) -> u64 { return 1; });
        const auto bin_of = [&](int bin) -> u64 { return bin_of_part(bins, bin); };
        find_digit(Digit{number}, bin_of, [&](u64) -> u64 { return static_cast<u64>(most); }, found);
    }
    const u64 ties = found.goal - found.above;
    int last_token = at.end;
    if (ties < found.at) {
        const auto equal = [&](int token) -> u64 { return order_of(at.row[token]) == found.order; };
        last_token = find_token(at.begin, at.end, 0, ties, equal);
    }
    if (threadIdx.x == 0) filled = 0;
    __syncthreads();
    visit(at, [&](int token, float logit) {
        const u32 order = order_of(logit);
        if (order < found.order || (order == found.order && token > last_token)) return;
        unsorted[atomicAdd(&filled, 1)] = ranked(logit, token);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < most; i += blockDim.x) {
        int place = 0;
        for (int other = 0; other < most; ++other) place += unsorted[other] > unsorted[i];
        listed[place] = unsorted[i];
    }
    for (int i = most + threadIdx.x; i < count; i += blockDim.x) listed[i] = 0;
}

// Calls take(place, token) for each of the `count` greatest logits of the row, each on one thread.
template <class Take>
__device__ void merge_lists(const Listing& given, const Place& at, const Take& take) {
    for (int i = threadIdx.x; i < at.parts * given.count; i += blockDim.x) {
        const u64 mine = given.of(at, i % at.parts)[i / at.parts];
        int place = mine == 0 ? given.count : 0;
        for (int part = 0; part < at.parts && place < given.count; ++part) {
            const u64* listed = given.of(at, part);
            for (int other = 0; other < given.count && listed[other] > mine; ++other) ++place;
        }
        if (place < given.count) take(place, token_of(mine));
    }
}

}  // namespace fdlp

// The first pass: lists the most likely tokens of each part, and finds the greatest logit.
FDLP_KERNEL fdlp_list_rows(const fdlp::Listing given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    clear(at, false);
    if (given.chosen[at.number] < 0) return;
    scan_part(at);
    if (given.count > 0) list_part(at, given.count, given.of(at, at.part));
}

// The second pass. For row r of logits [rows, size]: values and tokens [rows, 1 + count] start with `chosen[r]`, then come the `count`
// most likely; ranks[r] is 1 plus the number of tokens with a greater logit than the chosen one. `normalize` 0 returns the logits
// themselves. A row whose chosen token is -1 gets zeros.
FDLP_KERNEL fdlp_row_logprobs(const fdlp::Listing given, float* values, long long* tokens, long long* ranks) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    float* row_values = values + static_cast<long long>(at.number) * (given.count + 1);
    long long* row_tokens = tokens + static_cast<long long>(at.number) * (given.count + 1);
    const long long chosen = given.chosen[at.number];
    if (chosen < 0) {
        if (at.part != 0) return;
        for (int i = threadIdx.x; i <= given.count; i += blockDim.x) {
            row_values[i] = 0.0f;
            row_tokens[i] = 0;
        }
        if (threadIdx.x == 0) ranks[at.number] = 0;
        return;
    }
    const float own = at.row[chosen];
    const float max = given.normalize ? scan_of(at).max : 0.0f;
    u64 greater = 0, sum = 0;
    visit(at, [&](int, float logit) {
        greater += logit > own;
        if (given.normalize) sum += static_cast<u64>(units_of_exp(static_cast<double>(logit) - static_cast<double>(max)));
    });
    store_part(at, block_sum(sum), block_sum(greater));
    if (!last_of_row(at)) return;
    sum = sum_of_parts(at.weights, at.parts);
    greater = sum_of_parts(at.counts, at.parts);
    const double norm = given.normalize ? max + log_of(static_cast<double>(static_cast<long long>(sum)) / kExpUnits) : 0.0;
    const auto write = [&](int place, int token) {
        const float logit = at.row[token];
        row_values[place] = given.normalize ? static_cast<float>(logit - norm) : logit;
        row_tokens[place] = token;
    };
    if (threadIdx.x == 0) {
        write(0, static_cast<int>(chosen));
        ranks[at.number] = 1 + static_cast<long long>(greater);
    }
    merge_lists(given, at, [&](int place, int token) { write(1 + place, token); });
}
