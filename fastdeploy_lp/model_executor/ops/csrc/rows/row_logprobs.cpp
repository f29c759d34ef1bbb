// Log probabilities of a token a row and of the row's most likely tokens.
#include <algorithm>

#include "exports.h"
#include "rows/row_scan.h"
#include "rows/row_weights.h"

namespace fdlp {
namespace {

double log_sum_exp(const float* row, int64_t size, float max) {
    Longs lanes = {};
    int64_t at = 0;
    for (; at + kWide <= size; at += kWide) lanes += units_of_exp(widen(row + at) - static_cast<double>(max));
    int64_t sum = 0;
    for (int64_t lane = 0; lane < kWide; ++lane) sum += lanes[lane];
    for (; at < size; ++at) sum += units_of_exp(row[at] - static_cast<double>(max));
    return max + log_of(static_cast<double>(sum) / kExpUnits);
}

// The `count` greatest logits in descending order, equal ones by id.
void top(const float* row, int64_t size, int64_t count, float* values, int64_t* tokens) {
    int64_t filled = 0;
    const auto insert = [&](int64_t token) {
        int64_t place = filled < count ? filled++ : count - 1;
        for (; place > 0 && values[place - 1] < row[token]; --place) {
            values[place] = values[place - 1];
            tokens[place] = tokens[place - 1];
        }
        values[place] = row[token];
        tokens[place] = token;
    };
    int64_t at = 0;
    for (; filled < count; ++at) insert(at);
    while (at < size) {
        if (at + kLanes <= size && !any(load(row + at) > splat(values[count - 1]))) {
            at += kLanes;
            continue;
        }
        for (const int64_t end = at + kLanes < size ? at + kLanes : size; at < end; ++at) {
            if (row[at] > values[count - 1]) insert(at);
        }
    }
}

int64_t count_above(const float* row, int64_t size, float bound) {
    Ints lanes = {};
    int64_t at = 0;
    for (; at + kLanes <= size; at += kLanes) lanes += load(row + at) > splat(bound);
    int64_t count = count_true(lanes);
    for (; at < size; ++at) count += row[at] > bound;
    return count;
}

}  // namespace
}  // namespace fdlp

// For row r of logits [rows, size]: values and tokens [rows, 1 + count] start with `chosen[r]`, then come the `count` most
// likely; ranks[r] is 1 plus the number of tokens with a greater logit than the chosen one. `normalize` 0 gives logits
// themselves. A row whose chosen token is -1 gets zeros.
FDLP_EXPORT void fdlp_row_logprobs(const float* logits, int64_t rows, int64_t size, const int64_t* chosen, int64_t count, int normalize,
                                   float* values, int64_t* tokens, int64_t* ranks) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * size;
        float* row_values = values + r * (count + 1);
        int64_t* row_tokens = tokens + r * (count + 1);
        if (chosen[r] < 0) {
            std::fill(row_values, row_values + count + 1, 0.0f);
            std::fill(row_tokens, row_tokens + count + 1, 0);
            ranks[r] = 0;
            continue;
        }
        row_tokens[0] = chosen[r];
        row_values[0] = row[chosen[r]];
        if (count > 0) fdlp::top(row, size, count, row_values + 1, row_tokens + 1);
        ranks[r] = 1 + fdlp::count_above(row, size, row_values[0]);
        if (!normalize) continue;
        const double norm = fdlp::log_sum_exp(row, size, fdlp::scan_row(row, size).max);
        for (int64_t at = 0; at <= count; ++at) row_values[at] = static_cast<float>(row_values[at] - norm);
    }
}
