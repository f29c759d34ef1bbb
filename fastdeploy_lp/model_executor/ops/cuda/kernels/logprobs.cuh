// Log probabilities of a token a row and of the row's most likely tokens. row_logprobs.cpp does the same on the CPU.
#pragma once

#include "lists.cuh"

namespace fdlp {

// Argument of kernels.
struct Listing {
    Rows rows;
    Lists lists;
    const long long* chosen;  // of each row
    int normalize;
};

}  // namespace fdlp

// The first pass: lists the most likely tokens of each part, and finds the greatest logit.
FDLP_KERNEL fdlp_list_rows(const fdlp::Listing given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    clear(at, false);
    if (given.chosen[at.number] < 0) return;
    scan_and_list(at, given.lists, given.lists.count);
}

// The second pass. For row r of logits [rows, size]: values and tokens [rows, 1 + count] start with `chosen[r]`, then come the `count`
// most likely; ranks[r] is 1 plus the number of tokens with a greater logit than the chosen one. `normalize` 0 returns the logits
// themselves. A row whose chosen token is -1 gets zeros.
FDLP_KERNEL fdlp_row_logprobs(const fdlp::Listing given, float* values, long long* tokens, long long* ranks) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const int count = given.lists.count;
    float* row_values = values + static_cast<long long>(at.number) * (count + 1);
    long long* row_tokens = tokens + static_cast<long long>(at.number) * (count + 1);
    const long long chosen = given.chosen[at.number];
    if (chosen < 0) {
        if (at.part != 0) return;
        for (int i = threadIdx.x; i <= count; i += blockDim.x) {
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
    merge_lists(given.lists, at, count, [&](int place, u64 ranked) { write(1 + place, token_of(ranked)); });
}
