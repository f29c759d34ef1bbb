// Distributions of rows of logits, and distances between them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exports.h"
#include "rows/row_scan.h"
#include "simd.h"

namespace fdlp {
namespace {

struct Distribution {
    double log_sum;  // logarithm of the sum of exp(logit)
    double entropy;  // in nats
    double inverse;  // factor from weights to probabilities
};

// Numbers summed in single precision before they are added to a sum in double precision.
constexpr int64_t kBlock = 64 * kLanes;
// Logits further below the greatest do not count; without a limit, -inf times a weight of 0 would be NaN.
constexpr float kLowest = -87.0f;

double sum_of(Floats lanes) {
    double total = 0.0;
    for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
    return total;
}

// Fills `to` [size] with weights, 1 for the most likely token.
Distribution weigh(const float* row, int64_t size, float max, float* to) {
    double sum = 0.0, product = 0.0;
    int64_t at = 0;
    while (at + kLanes <= size) {
        const int64_t end = std::min(at + kBlock, size);
        Floats sums = {}, products = {};
        for (; at + kLanes <= end; at += kLanes) {
            const Floats below = maximum(load(row + at) - max, splat(kLowest));
            const Floats weights = exp_up_to_87(below);
            sums += weights;
            products += weights * below;
            store(to + at, weights);
        }
        sum += sum_of(sums);
        product += sum_of(products);
    }
    for (; at < size; ++at) {
        const float below = std::max(row[at] - max, kLowest);
        to[at] = std::exp(below);
        sum += to[at];
        product += to[at] * below;
    }
    return {max + std::log(sum), std::log(sum) - product / sum, 1.0 / sum};
}

double half_of_differences(const float* one, float one_inverse, const float* other, float other_inverse, int64_t size) {
    double sum = 0.0;
    int64_t at = 0;
    while (at + kLanes <= size) {
        const int64_t end = std::min(at + kBlock, size);
        Floats lanes = {};
        for (; at + kLanes <= end; at += kLanes) {
            const Floats a = load(one + at) * one_inverse, b = load(other + at) * other_inverse;
            lanes += maximum(a - b, b - a);
        }
        sum += sum_of(lanes);
    }
    for (; at < size; ++at) sum += std::abs(one[at] * one_inverse - other[at] * other_inverse);
    return 0.5 * sum;
}

}  // namespace
}  // namespace fdlp

// For row r of logits [rows, size]: `log_sums` and `entropies` of its distribution, its most likely token, the first of
// equals, and how much probability has `moved` since row `before[r]`, 0 where that is negative. `scratch` is [rows, size],
// `inverses` [rows]. A row with a NaN or without a finite maximum gets NaN and token -1.
FDLP_EXPORT void fdlp_compare_rows(const float* logits, int64_t rows, int64_t size, const int64_t* before, float* scratch, double* inverses,
                                   double* log_sums, double* entropies, double* moved, int64_t* most_likely) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * size;
        const fdlp::RowScan scan = fdlp::scan_row(row, size);
        if (!scan.usable) {
            log_sums[r] = entropies[r] = inverses[r] = std::numeric_limits<double>::quiet_NaN();
            most_likely[r] = -1;
            std::fill(scratch + r * size, scratch + (r + 1) * size, 0.0f);
            continue;
        }
        const fdlp::Distribution found = fdlp::weigh(row, size, scan.max, scratch + r * size);
        log_sums[r] = found.log_sum;
        entropies[r] = found.entropy;
        inverses[r] = found.inverse;
        most_likely[r] = scan.argmax;
    }
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t b = before[r];
        moved[r] = b < 0 ? 0.0
                         : fdlp::half_of_differences(scratch + r * size, static_cast<float>(inverses[r]), scratch + b * size,
                                                     static_cast<float>(inverses[b]), size);
    }
}
