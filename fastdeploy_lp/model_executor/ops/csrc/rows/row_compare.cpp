// Distributions of rows of logits, and distances between them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exports.h"
#include "rows/row_math.h"
#include "rows/row_scan.h"
#include "simd.h"

namespace fdlp {
namespace {

struct Distribution {
    double log_sum;  // logarithm of the sum of exp(logit)
    double entropy;  // in nats
    double inverse;  // factor from weights to probabilities
};

// Numbers of a strip, summed in single precision before they are added to a sum in double precision.
constexpr int64_t kStrip = kFloatLanes * kLaneSteps;
static_assert(kFloatLanes == kLanes, "one vector");
// Logits further below the greatest do not count; without a limit, -inf times a weight of 0 would be NaN.
constexpr float kLowestFloat = -87.0f;

// a * b + c, rounded once on every processor.
Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__) || defined(FDLP_PAIRS)
    return quick_multiply_add(a, b, c);
#else
    for (int lane = 0; lane < kLanes; ++lane) a[lane] = std::fma(a[lane], b[lane], c[lane]);
    return a;
#endif
}

// Moves the lanes of a strip, added in order, to the sum of the row.
void drain(Floats& lanes, double& total) {
    double sum = 0.0;
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    total += sum;
    lanes = Floats{};
}

// Fills `to` [size] with weights, 1 for the most likely token.
Distribution weigh(const float* row, int64_t size, float max, float* to) {
    double sum = 0.0, product = 0.0;
    Floats sums = {}, products = {};
    for (int64_t at = 0; at < size;) {
        const int64_t end = std::min(at + kStrip, size);
        for (; at < end; at += kLanes) {
            const int count = static_cast<int>(std::min<int64_t>(kLanes, end - at));
            const Floats below = maximum(load_first(row + at, count) - max, splat(kLowestFloat));
            const Floats weights = select(lane_numbers() < count, exp_up_to_87(below), Floats{});
            sums += weights;
            products = fused(weights, below, products);
            store_first(to + at, weights, count);
        }
        at = end;
        drain(sums, sum);
        drain(products, product);
    }
    return {max + log_of(sum), log_of(sum) - product / sum, 1.0 / sum};
}

// Sum of |one * ratio - other|.
double sum_of_differences(const float* one, float ratio, const float* other, int64_t size) {
    double sum = 0.0;
    Floats lanes = {};
    for (int64_t at = 0; at < size;) {
        const int64_t end = std::min(at + kStrip, size);
        for (; at < end; at += kLanes) {
            const int count = static_cast<int>(std::min<int64_t>(kLanes, end - at));
            const Floats difference = fused(load_first(one + at, count), splat(ratio), -load_first(other + at, count));
            lanes += maximum(difference, -difference);
        }
        at = end;
        drain(lanes, sum);
    }
    return sum;
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
        if (b < 0) {
            moved[r] = 0.0;
            continue;
        }
        const float ratio = static_cast<float>(inverses[r] / inverses[b]);
        moved[r] = 0.5 * inverses[b] * fdlp::sum_of_differences(scratch + r * size, ratio, scratch + b * size, size);
    }
}
