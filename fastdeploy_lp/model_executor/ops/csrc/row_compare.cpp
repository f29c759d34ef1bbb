// The distributions that rows of logits stand for, and how far each one is from another.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exports.h"
#include "row_scan.h"
#include "row_weights.h"

namespace fdlp {
namespace {

struct Distribution {
  double log_sum;  // logarithm of the sum of exp(logit)
  double entropy;  // in nats
  double inverse;  // what makes probabilities of weights
};

typedef float HalfWide __attribute__((vector_size(kWide * sizeof(float))));

// Fills `to` [size] with weights, 1 for the most likely token. Logits are clamped far below where they count: -inf times 0
// is NaN.
Distribution weigh(const float* row, int64_t size, double max, float* to) {
  constexpr double kLowest = -700.0;
  Doubles sums = {}, products = {};
  int64_t at = 0;
  for (; at + kWide <= size; at += kWide) {
    Doubles below = widen(row + at) - max;
    below = below > Doubles{} + kLowest ? below : Doubles{} + kLowest;
    const Doubles weights = exp_of_negative(below);
    sums += weights;
    products += weights * below;
    const HalfWide narrow = __builtin_convertvector(weights, HalfWide);
    std::memcpy(to + at, &narrow, sizeof(narrow));
  }
  double sum = 0.0, product = 0.0;
  for (int64_t lane = 0; lane < kWide; ++lane) {
    sum += sums[lane];
    product += products[lane];
  }
  for (; at < size; ++at) {
    const double below = std::max(static_cast<double>(row[at]) - max, kLowest);
    const double weight = std::exp(below);
    to[at] = static_cast<float>(weight);
    sum += weight;
    product += weight * below;
  }
  return {max + std::log(sum), std::log(sum) - product / sum, 1.0 / sum};
}

double half_of_differences(const float* one, double one_inverse, const float* other, double other_inverse, int64_t size) {
  Doubles lanes = {};
  int64_t at = 0;
  for (; at + kWide <= size; at += kWide) {
    const Doubles a = widen(one + at) * one_inverse, b = widen(other + at) * other_inverse;
    lanes += a > b ? a - b : b - a;
  }
  double sum = 0.0;
  for (int64_t lane = 0; lane < kWide; ++lane) sum += lanes[lane];
  for (; at < size; ++at) sum += std::abs(one[at] * one_inverse - other[at] * other_inverse);
  return 0.5 * sum;
}

}  // namespace
}  // namespace fdlp

// For row r of logits [rows, size]: `log_sums` and `entropies` of its distribution, its most likely token, the first of
// equals, and how much probability has `moved` since row `before[r]`, 0 where that is negative. `scratch` is [rows, size],
// `inverses` [rows]. A row with a NaN or without a finite maximum gets NaN and token -1.
FDLP_EXPORT void fdlp_compare_rows(const float* logits, int64_t rows, int64_t size, const int64_t* before, float* scratch,
                                   double* inverses, double* log_sums, double* entropies, double* moved,
                                   int64_t* most_likely) {
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
                     : fdlp::half_of_differences(scratch + r * size, inverses[r], scratch + b * size, inverses[b], size);
  }
}
