// Distributions of rows of logits, and distances between them. row_compare.cpp does the same on the CPU.
#pragma once

#include "strips.cuh"

namespace fdlp {

// exp_up_to_87 of simd.h, for one number.
__device__ inline float exp_of_float(float x) {
    x = x > -87.0f ? x : -87.0f;
    const float shift = 12582912.0f;
    const float n = fmaf(x, 1.44269504f, shift) - shift;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p * r, r, r) + 1.0f;
    return with_bits_of<float>(with_bits_of<int>(p) + (static_cast<int>(n) << 23));
}

__device__ inline double not_a_number() { return with_bits_of<double>(0x7ff8000000000000LL); }

// Argument of kernels. Of rows [rows, size]: weights, 1 for the most likely token, and the factors that make them probabilities.
struct Comparison {
    Rows rows;
    float* weights;
    double* inverses;
};

}  // namespace fdlp

// For row r of logits [rows, size]: the log of the sum of exp(logit), the entropy in nats, and the most likely token, the first of
// equals. A row with a NaN or without a finite maximum gets NaN and token -1.
FDLP_KERNEL fdlp_weigh_rows(const fdlp::Comparison given, double* log_sums, double* entropies, long long* most_likely) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const int r = at.number;
    float* to = given.weights + static_cast<long long>(r) * at.size;
    const RowScan scan = scan_of(at);
    if (!scan.usable) {
        for (int token = at.begin + threadIdx.x; token < at.end; token += blockDim.x) to[token] = 0.0f;
        if (at.part == 0 && threadIdx.x == 0) {
            log_sums[r] = entropies[r] = given.inverses[r] = not_a_number();
            most_likely[r] = -1;
        }
        return;
    }
    sum_strips<kFloatLanes, 2, float>(at, [&](int token, float* sums) {
        // Without a limit, -inf times a weight of 0 would be NaN.
        const float x = at.row[token] - scan.max, below = x > -87.0f ? x : -87.0f, weight = exp_of_float(below);
        sums[0] += weight;
        sums[1] = fmaf(weight, below, sums[1]);
        to[token] = weight;
    });
    if (!last_of_row(at)) return;
    double totals[2];
    add_strips<kFloatLanes>(at, totals);
    if (threadIdx.x != 0) return;
    log_sums[r] = scan.max + log_of(totals[0]);
    entropies[r] = log_of(totals[0]) - totals[1] / totals[0];
    given.inverses[r] = 1.0 / totals[0];
    most_likely[r] = scan.argmax;
}

// moved[r]: the total variation distance of row r of the weights from row `before[r]`, 0 where that is negative.
FDLP_KERNEL fdlp_move_rows(const fdlp::Comparison given, const long long* before, double* moved) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const int r = at.number;
    const long long b = before[r];
    if (b < 0) {
        if (at.part == 0 && threadIdx.x == 0) moved[r] = 0.0;
        return;
    }
    const float *one = given.weights + static_cast<long long>(r) * at.size, *other = given.weights + b * at.size;
    const float ratio = static_cast<float>(given.inverses[r] / given.inverses[b]);
    sum_strips<kFloatLanes, 1, float>(at, [&](int token, float* sums) { sums[0] += fabsf(fmaf(one[token], ratio, -other[token])); });
    if (!last_of_row(at)) return;
    double totals[1];
    add_strips<kFloatLanes>(at, totals);
    if (threadIdx.x == 0) moved[r] = 0.5 * given.inverses[b] * totals[0];
}
