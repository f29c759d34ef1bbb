// Sums over a row that are rounded, in the order of the compiled operators.
#pragma once

#include "block.cuh"

namespace fdlp {

// Adds to `sums`, numbers of one lane of a strip, with take(token, sums) for each of its 64 tokens. Then the lanes of a strip are
// added in order, and then the strips. Lane l of strip s has the tokens s * kLanes * 64 + i * kLanes + l. `totals` is the same on
// every thread.
template <int kLanes, int kSums, class Number, class Take>
__device__ void sum_strips(int size, const Take& take, double* totals) {
    constexpr int kMostGroups = kMostWarps * kWarpSize / kLanes, kStrip = kLanes * static_cast<int>(kLaneSteps);
    __shared__ double of_strips[kSums][kMostGroups];
    __shared__ double of_row[kSums];
    const int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes, lane_of_strip = threadIdx.x % kLanes;
    double added = 0.0;  // of sum number threadIdx.x
    for (int first = 0; first < size; first += groups * kStrip) {
        Number sums[kSums] = {};
        const int begin = first + group * kStrip, end = begin + kStrip < size ? begin + kStrip : size;
#pragma unroll 4
        for (int token = begin + lane_of_strip; token < end; token += kLanes) take(token, sums);
        for (int k = 0; k < kSums; ++k) {
            double sum = 0.0;
            for (int l = 0; l < kLanes; ++l) sum += static_cast<double>(__shfl_sync(kEveryLane, sums[k], l, kLanes));
            if (lane_of_strip == 0) of_strips[k][group] = sum;
        }
        __syncthreads();
        if (threadIdx.x < kSums) {
            for (int g = 0; g < groups && first + g * kStrip < size; ++g) added += of_strips[threadIdx.x][g];
        }
        __syncthreads();
    }
    if (threadIdx.x < kSums) of_row[threadIdx.x] = added;
    __syncthreads();
    for (int k = 0; k < kSums; ++k) totals[k] = of_row[k];
    __syncthreads();
}

}  // namespace fdlp
