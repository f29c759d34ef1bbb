// Sums over a row that are rounded, in the order of the compiled operators: lanes of a strip in order, and then strips in order.
#pragma once

#include "parts.cuh"

namespace fdlp {

// Stores the sums of the part's strips. take(token, sums) adds to `sums`, numbers of one lane of a strip, for each of its 64 tokens.
// Lane l of strip s has the tokens s * kLanes * 64 + i * kLanes + l.
template <int kLanes, int kSums, class Number, class Take>
__device__ void sum_strips(const Place& at, const Take& take) {
    constexpr int kStrip = kLanes * static_cast<int>(kLaneSteps);
    static_assert(kLeastPart % kStrip == 0 && kStrip >= kShortestStrip && kSums <= kMostSums, "whole strips");
    const int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes, lane_of_strip = threadIdx.x % kLanes;
    for (int first = at.begin; first < at.end; first += groups * kStrip) {
        Number sums[kSums] = {};
        const int begin = first + group * kStrip, end = begin + kStrip < at.end ? begin + kStrip : at.end;
#pragma unroll 4
        for (int token = begin + lane_of_strip; token < end; token += kLanes) take(token, sums);
        for (int k = 0; k < kSums; ++k) {
            double sum = 0.0;
            for (int l = 0; l < kLanes; ++l) sum += static_cast<double>(__shfl_sync(kEveryLane, sums[k], l, kLanes));
            if (lane_of_strip == 0 && begin < end) at.sums[k * at.strips + begin / kStrip] = sum;
        }
    }
}

// Adds the sums of the row's strips; on the last block of the row. `totals` is the same on every thread.
template <int kLanes, int kSums>
__device__ void add_strips(const Place& at, double (&totals)[kSums]) {
    constexpr int kAtOnce = 256, kStrip = kLanes * static_cast<int>(kLaneSteps);
    __shared__ double staged[kSums][kAtOnce];
    __shared__ double of_row[kSums];
    const int strips = (at.size + kStrip - 1) / kStrip;
    double added = 0.0;  // of sum number threadIdx.x
    for (int first = 0; first < strips; first += kAtOnce) {
        const int count = strips - first < kAtOnce ? strips - first : kAtOnce;
        for (int k = 0; k < kSums; ++k) {
            const double* sums = at.sums + k * at.strips + first;
            for (int i = threadIdx.x; i < count; i += blockDim.x) staged[k][i] = __ldcg(&sums[i]);
        }
        __syncthreads();
        if (threadIdx.x < kSums) {
            for (int i = 0; i < count; ++i) added += staged[threadIdx.x][i];
        }
        __syncthreads();
    }
    if (threadIdx.x < kSums) of_row[threadIdx.x] = added;
    __syncthreads();
    for (int k = 0; k < kSums; ++k) totals[k] = of_row[k];
}

}  // namespace fdlp
