// Log probabilities of a token a row and of the row's most likely tokens. row_logprobs.cpp does the same on the CPU.
#pragma once

#include "select.cuh"

namespace fdlp {

constexpr int kMostListed = 64;

// Writes the `count` greatest logits in descending order, equal ones by id.
__device__ inline void list_top(const float* row, int size, int count, float* values, long long* tokens) {
    __shared__ u64 listed[kMostListed];
    __shared__ int filled;
    const auto once = [](int, float) -> u64 { return 1; };
    const Selected found = select(row, size, order_of, once, [&](u64) { return static_cast<u64>(count); });
    const u64 ties = found.goal - found.above;
    int last_token = size;
    if (ties < found.at) {
        const auto equal = [&](int token) -> u64 { return order_of(row[token]) == found.order; };
        last_token = find_token(size, equal, [&](u64) { return ties; });
    }
    if (threadIdx.x == 0) filled = 0;
    __syncthreads();
    visit(row, size, [&](int token, float logit) {
        const u32 order = order_of(logit);
        if (order < found.order || (order == found.order && token > last_token)) return;
        listed[atomicAdd(&filled, 1)] = static_cast<u64>(order) << 32 | (0xffffffffu - static_cast<u32>(token));
    });
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        int place = 0;
        for (int other = 0; other < count; ++other) place += listed[other] > listed[i];
        const int token = static_cast<int>(0xffffffffu - static_cast<u32>(listed[i]));
        values[place] = row[token];
        tokens[place] = token;
    }
    __syncthreads();
}

}  // namespace fdlp

// For row r of logits [rows, size]: values and tokens [rows, 1 + count] start with `chosen[r]`, then come the `count` (at most 64 and
// `size`) most likely; ranks[r] is 1 plus the number of tokens with a greater logit than the chosen one. `normalize` 0 returns the
// logits themselves. A row whose chosen token is -1 gets zeros.
FDLP_KERNEL fdlp_row_logprobs(const float* logits, int size, const long long* chosen, int count, int normalize, float* values,
                              long long* tokens, long long* ranks) {
    using namespace fdlp;
    const int r = blockIdx.x;
    const float* row = logits + static_cast<long long>(r) * size;
    float* row_values = values + static_cast<long long>(r) * (count + 1);
    long long* row_tokens = tokens + static_cast<long long>(r) * (count + 1);
    if (chosen[r] < 0) {
        for (int i = threadIdx.x; i <= count; i += blockDim.x) {
            row_values[i] = 0.0f;
            row_tokens[i] = 0;
        }
        if (threadIdx.x == 0) ranks[r] = 0;
        return;
    }
    const float own = row[chosen[r]];
    if (count > 0) list_top(row, size, count, row_values + 1, row_tokens + 1);
    const float max = normalize ? scan_row(row, size).max : 0.0f;
    u64 greater = 0, sum = 0;
    visit(row, size, [&](int, float logit) {
        greater += logit > own;
        if (normalize) sum += static_cast<u64>(units_of_exp(static_cast<double>(logit) - static_cast<double>(max)));
    });
    greater = block_sum(greater);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        row_values[0] = own;
        row_tokens[0] = chosen[r];
        ranks[r] = 1 + static_cast<long long>(greater);
    }
    if (!normalize) return;
    __syncthreads();
    const double norm = max + log_of(static_cast<double>(static_cast<long long>(sum)) / kExpUnits);
    for (int i = threadIdx.x; i <= count; i += blockDim.x) row_values[i] = static_cast<float>(row_values[i] - norm);
}
