// Rows in parts, so that several blocks share a row. An operation is a sequence of passes, each a launch with a block for each part.
//
// Parts merge whole numbers, whose sums are exact in any order. The block that is the last of its row to finish a pass does the step of
// the row: no block ever waits for another one. What the next pass needs is in the row's scratch, which `fdlp_scan_rows` prepares.
#pragma once

#include "block.cuh"

namespace fdlp {

// Tokens of a part: a multiple of the least, which is one of every strip. Few rows have short parts, so that there are many; many rows have
// long ones, since each has bins of its own to clear and to merge. As in row_arguments.py.
constexpr int kLeastPart = 4096, kMostPart = 32768;
constexpr int kMostBins = 2048, kMostSums = 3, kShortestStrip = static_cast<int>(kDoubleLanes * kLaneSteps);

// Where weights, added from the greatest logit on, reach a sum.
struct Selected {
    u32 order;      // of the logit at which the goal is reached
    u64 above, at;  // weights of greater logits, and of those equal to it
    u64 goal;
};

struct RowState {
    Selected found;
    u64 ties;        // of the tokens whose logit is `last`, the first ones that are kept
    double mean;     // of a cut
    float last;      // the least logit that is kept
    int last_token;  // of those equal to it
    u32 arrived;     // blocks that have finished the pass
};

// 64-bit words of a row's scratch; as in row_arguments.py.
constexpr int kRowWords = kMostBins + 8, kPartWords = 3, kStripWords = kMostSums;
static_assert(sizeof(RowState) == (kRowWords - kMostBins) * sizeof(u64), "bins and a state");

// Argument of kernels.
struct Rows {
    float* logits;          // [.., size]
    const long long* rows;  // which of them, distinct; null for all
    u64* scratch;
    int size;
    int span;     // tokens of a part
    int selects;  // whether a later pass selects by weights
};

// A block's part of a row.
struct Place {
    float* row;
    int number;  // of the row among those of the launch
    int size, span, strips, parts, part, begin, end;
    RowState* state;
    // [kMostBins]
    u64* bins;
    // Of each part: its greatest logit and the first token that has it; and results of a pass.
    u64 *best, *weights, *counts;
    double* sums;  // [kMostSums, strips]

    __device__ int begin_of(int other) const { return other * span; }
    __device__ int end_of(int other) const { return begin_of(other) + span < size ? begin_of(other) + span : size; }
};

__device__ inline int parts_of(const Rows& given) { return (given.size + given.span - 1) / given.span; }

__device__ inline Place place_in(const Rows& given, int number, int part) {
    Place at;
    at.size = given.size;
    at.span = given.span;
    at.strips = (given.size + kShortestStrip - 1) / kShortestStrip;
    at.parts = parts_of(given);
    at.number = number;
    at.part = part;
    at.begin = at.begin_of(part);
    at.end = at.end_of(part);
    at.row = given.logits + (given.rows == nullptr ? at.number : given.rows[at.number]) * given.size;
    u64* words = given.scratch + static_cast<long long>(at.number) * (kRowWords + kPartWords * at.parts + kStripWords * at.strips);
    at.bins = words;
    at.state = reinterpret_cast<RowState*>(words + kMostBins);
    at.best = words + kRowWords;
    at.weights = at.best + at.parts;
    at.counts = at.weights + at.parts;
    at.sums = reinterpret_cast<double*>(at.counts + at.parts);
    return at;
}

// Blocks of a row are neighbors.
__device__ inline Place place_of(const Rows& given) {
    const int number = blockIdx.x / parts_of(given);
    return place_in(given, number, blockIdx.x - number * parts_of(given));
}

// True on every thread of the last block of the row that comes here: it sees what the others wrote before, past its own cache.
__device__ inline bool last_of_row(const Place& at) {
    __threadfence();
    __syncthreads();
    const u32 last = at.parts - 1;
    // Counts to `last`, and begins again.
    const bool mine = threadIdx.x == 0 && atomicInc(&at.state->arrived, last) == last;
    const bool is_last = __syncthreads_or(mine);
    if (is_last) __threadfence();
    return is_last;
}

// Stores two results of the part, the same on every thread.
__device__ inline void store_part(const Place& at, u64 weight, u64 count) {
    if (threadIdx.x != 0) return;
    at.weights[at.part] = weight;
    at.counts[at.part] = count;
}

// Of the results of all parts, on the last block of the row.
__device__ __noinline__ u64 sum_of_parts(const u64* results, int parts) {
    u64 sum = 0;
    for (int part = threadIdx.x; part < parts; part += blockDim.x) sum += __ldcg(&results[part]);
    return block_sum(sum);
}

__device__ __noinline__ u64 max_of_parts(const u64* results, int parts) {
    u64 max = 0;
    for (int part = threadIdx.x; part < parts; part += blockDim.x) {
        const u64 result = __ldcg(&results[part]);
        max = result > max ? result : max;
    }
    return block_max(max);
}

// Four neighboring logits, which are loaded and stored at once where the row allows it.
constexpr int kQuad = 4, kQuadsAtOnce = 4;

__device__ inline bool in_quads(const float* row) { return (reinterpret_cast<u64>(row) & (kQuad * sizeof(float) - 1)) == 0; }

__device__ inline void store_quad(float* row, int first, int end, float4 quad) {
    if (in_quads(row) && first + kQuad <= end) {
        *reinterpret_cast<float4*>(row + first) = quad;
        return;
    }
    row[first] = quad.x;
    if (first + 1 < end) row[first + 1] = quad.y;
    if (first + 2 < end) row[first + 2] = quad.z;
    if (first + 3 < end) row[first + 3] = quad.w;
}

// Calls take(first, quad) for each four tokens of the part, each on one thread, on which they ascend. Sixteen logits are requested
// before the first is used; those beyond the part are 0.
template <class Take>
__device__ void visit_quads(const Place& at, const Take& take) {
    const int step = kQuad * blockDim.x;
    const bool aligned = in_quads(at.row);
#pragma unroll 1
    for (int first = at.begin + kQuad * threadIdx.x; first < at.end; first += kQuadsAtOnce * step) {
        float4 quads[kQuadsAtOnce];
        if (aligned && first + (kQuadsAtOnce - 1) * step + kQuad <= at.end) {
            for (int i = 0; i < kQuadsAtOnce; ++i) quads[i] = *reinterpret_cast<const float4*>(at.row + first + i * step);
        } else {
            const auto logit = [&](int token) -> float { return token < at.end ? at.row[token] : 0.0f; };
            for (int i = 0; i < kQuadsAtOnce; ++i) {
                const int token = first + i * step;
                quads[i] = {logit(token), logit(token + 1), logit(token + 2), logit(token + 3)};
            }
        }
        for (int i = 0; i < kQuadsAtOnce; ++i) {
            if (first + i * step < at.end) take(first + i * step, quads[i]);
        }
    }
}

// Calls take(token, logit) for each token of the part, as above.
template <class Take>
__device__ void visit(const Place& at, const Take& take) {
    visit_quads(at, [&](int first, float4 quad) {
        take(first, quad.x);
        if (first + 1 < at.end) take(first + 1, quad.y);
        if (first + 2 < at.end) take(first + 2, quad.z);
        if (first + 3 < at.end) take(first + 3, quad.w);
    });
}

// A logit and its token in one number: greater for greater logits, and for the first of equal ones.
__device__ inline u64 ranked(float logit, int token) {
    return static_cast<u64>(order_of(logit)) << 32 | (0xffffffffu - static_cast<u32>(token));
}

// The other way round: greater for lower logits, and for the last of equal ones.
__device__ inline u64 ranked_from_last(float logit, int token) {
    return static_cast<u64>(~order_of(logit)) << 32 | static_cast<u32>(token);
}

__device__ inline float logit_of(u64 ranked) { return float_of(static_cast<u32>(ranked >> 32)); }
__device__ inline int token_of(u64 ranked) { return static_cast<int>(0xffffffffu - static_cast<u32>(ranked)); }

struct RowScan {
    float max;
    int argmax;   // the first of equals
    bool usable;  // no NaN, and a finite maximum
};

// Returns the greatest logit of this thread, -inf for none. In the scratch a NaN ranks above every logit.
__device__ inline float scan_part(const Place& at) {
    float max = minus_infinity();
    int first = at.begin;
    bool nan = false;
    visit(at, [&](int token, float logit) {
        nan = nan || logit != logit;
        first = logit > max ? token : first;
        max = logit > max ? logit : max;
    });
    const u64 best = block_max(nan ? ~0ull : ranked(max, first));
    if (threadIdx.x == 0) at.best[at.part] = best;
    return max;
}

// Of the whole row, after fdlp_scan_rows.
__device__ inline RowScan scan_of(const Place& at) {
    u64 best = 0;
    for (int part = lane(); part < at.parts; part += kWarpSize) best = at.best[part] > best ? at.best[part] : best;
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        const u64 other = __shfl_xor_sync(kEveryLane, best, distance);
        best = other > best ? other : best;
    }
    const u32 order = static_cast<u32>(best >> 32);
    const bool usable = order > order_of(minus_infinity()) && order < order_of(-minus_infinity());
    return {float_of(order), token_of(best), usable};
}

// Prepares the state that passes share; by every block of the row.
__device__ inline void clear(const Place& at, bool bins) {
    if (at.part == 0 && threadIdx.x == 0) {
        at.state->arrived = 0;
        at.state->last = minus_infinity();
        at.state->ties = 0;
    }
    if (!bins) return;
    for (int bin = at.part * blockDim.x + threadIdx.x; bin < kMostBins; bin += at.parts * blockDim.x) at.bins[bin] = 0;
}

}  // namespace fdlp

// The first pass of other operations.
FDLP_KERNEL fdlp_scan_rows(const fdlp::Rows given) {
    const fdlp::Place at = fdlp::place_of(given);
    fdlp::clear(at, given.selects != 0);
    fdlp::scan_part(at);
}
