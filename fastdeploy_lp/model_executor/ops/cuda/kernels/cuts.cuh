// Cuts: set tokens to -inf in place, selected by the row's own distribution. row_cuts.cpp does the same on the CPU.
#pragma once

#include "select.cuh"
#include "strips.cuh"

namespace fdlp {

__device__ __noinline__ Moments moments_of(const float* row, int size, const Weigher& weigher, bool with_mean) {
    u64 total = 0;
    double product = 0.0;
    if (with_mean) {
        sum_strips<kDoubleLanes, 1, double>(
            size,
            [&](int token, double* sums) {
                const float logit = row[token];
                const u64 weight = weigher(logit);
                const double x = static_cast<double>(logit) - weigher.max;
                total += weight;
                if (weight != 0) sums[0] = multiply_add(static_cast<double>(weight), x > kLowest ? x : kLowest, sums[0]);
            },
            &product);
    } else {
        visit(row, size, [&](int, float logit) { total += weigher(logit); });
    }
    const double sum = static_cast<double>(block_sum(total));
    return {sum, log_of(sum / kOne), product / sum};
}

// Standard deviation of the finite logits.
__device__ inline double deviation_of_row(const float* row, int size, double max) {
    double totals[3];
    sum_strips<kDoubleLanes, 3, double>(
        size,
        [&](int token, double* sums) {
            const float logit = row[token];
            if (!(logit > minus_infinity())) return;
            const double x = static_cast<double>(logit) - max;
            sums[0] += x;
            sums[1] = multiply_add(x, x, sums[1]);
            sums[2] += 1.0;
        },
        totals);
    return deviation_of(totals[0], totals[1], totals[2]);
}

// Keeps the tokens whose x is nearest to its weighted mean, until they weigh `share` of the whole; of equally near ones all.
__device__ inline void cut_untypical(float* row, int size, const Weigher& weigher, double share) {
    const Moments moments = moments_of(row, size, weigher, true);
    const auto distance = [&](float logit) -> float {
        const double x = static_cast<double>(logit) - weigher.max, away = x - moments.mean;
        return static_cast<float>(away > -away ? away : -away);
    };
    const auto nearest_first = [&](float logit) -> u32 { return order_of(-distance(logit)); };
    const auto weighed = [&](int, float logit) -> u64 { return weigher(logit); };
    const Selected found = select(row, size, nearest_first, weighed, [&](u64) { return whole_from(share * moments.total); });
    const float furthest = -float_of(found.order);
    visit(row, size, [&](int token, float logit) {
        if (distance(logit) > furthest) row[token] = minus_infinity();
    });
}

// -inf for every token that reaches `bound` but the last one of the ranking; nothing if fewer than two reach it.
__device__ inline void cut_above_last(float* row, int size, float bound) {
    u64 count = 0, latest = 0;
    visit(row, size, [&](int token, float logit) {
        if (!(logit >= bound)) return;
        const u64 ranked = static_cast<u64>(~order_of(logit)) << 32 | static_cast<u32>(token);
        ++count;
        latest = ranked > latest ? ranked : latest;
    });
    count = block_sum(count);
    latest = block_max(latest);
    if (count < 2) return;
    const int last = static_cast<int>(static_cast<u32>(latest));
    visit(row, size, [&](int token, float logit) {
        if (logit >= bound && token != last) row[token] = minus_infinity();
    });
}

}  // namespace fdlp

// Row rows[i] of logits [.., size] is cut by values[i]; `rows` are distinct. A row with a NaN or without a finite logit stays.
FDLP_KERNEL fdlp_cut_rows(float* logits, int size, int cut, const long long* rows, const float* values) {
    using namespace fdlp;
    float* row = logits + rows[blockIdx.x] * size;
    const double value = values[blockIdx.x];
    const RowScan scan = scan_row(row, size);
    if (!scan.usable) return;
    const double max = scan.max;
    const Weigher weigher{max, 1.0, 1.0};
    if (cut == kTypical) {
        cut_untypical(row, size, weigher, value);
        return;
    }
    Moments moments{};
    if (cut == kEpsilon || cut == kEta || cut == kExcludeTop) moments = moments_of(row, size, weigher, cut == kEta);
    const double deviation = cut == kTopNSigma ? deviation_of_row(row, size, max) : 0.0;
    const double bound = cut_bound(static_cast<Cut>(cut), value, moments, deviation);
    if (cut == kExcludeTop) {
        if (bound <= 0.0) cut_above_last(row, size, float_from(max + bound));
        return;
    }
    const float lowest = float_from(max + (bound < 0.0 ? bound : 0.0));
    visit(row, size, [&](int token, float logit) {
        if (logit < lowest) row[token] = minus_infinity();
    });
}
