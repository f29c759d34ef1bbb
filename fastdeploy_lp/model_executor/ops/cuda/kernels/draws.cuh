// Draws of one token a row, and the logits that a draw works on. row_draw.cpp does the same on the CPU.
#pragma once

#include "filters.cuh"

// tokens[r]: a token for row r of logits [rows, size], -1 if the row holds a NaN or no finite maximum. `temperature` 0 takes the
// most likely token, the first of equals.
FDLP_KERNEL fdlp_draw_rows(const float* logits, int size, const float* temperature, const float* min_p, const long long* top_k,
                           const float* top_p, const float* uniform, long long* tokens) {
    using namespace fdlp;
    const int r = blockIdx.x;
    const float* row = logits + static_cast<long long>(r) * size;
    const RowScan scan = scan_row(row, size);
    long long drawn = -1;
    if (scan.usable) {
        drawn = scan.argmax;
        if (temperature[r] != 0.0f) {
            const Filters filters{temperature[r], min_p[r], top_k[r], top_p[r]};
            const Weigher weigher = filters.weigher(scan.max);
            const Kept kept = filters.ranks() ? filter(filters, weigher, row, size, scan.max) : keep_all(size, minus_infinity());
            const auto weighed = [&](int token) -> u64 {
                const float logit = row[token];
                return kept(token, logit) ? weigher(logit) : 0;
            };
            const double share = uniform[r];
            drawn = find_token(size, weighed, [&](u64 total) { return whole_from(share * static_cast<double>(total)); });
        }
    }
    if (threadIdx.x == 0) tokens[r] = drawn;
}

// The logits [rows, size] that a draw works on: divided by the temperature, -inf where a filter leaves a token out.
FDLP_KERNEL fdlp_filter_rows(const float* logits, int size, const float* temperature, const float* min_p, const long long* top_k,
                             const float* top_p, float* filtered) {
    using namespace fdlp;
    const int r = blockIdx.x;
    const float* row = logits + static_cast<long long>(r) * size;
    float* to = filtered + static_cast<long long>(r) * size;
    const RowScan scan = scan_row(row, size);
    const Filters filters{temperature[r], min_p[r], top_k[r], top_p[r]};
    if (filters.temperature == 0.0f || !scan.usable) {
        visit(row, size, [&](int token, float logit) { to[token] = logit; });
        return;
    }
    float last = minus_infinity();
    int last_token = size;
    if (filters.ranks() || filters.min_p > 0.0f) {
        const Weigher weigher = filters.weigher(scan.max);
        const Kept kept = filters.ranks() ? filter(filters, weigher, row, size, scan.max)
                                          : keep_all(size, bound_at(-kNothingBelow, filters.temperature, scan.max));
        // Of the tokens with a weight, the last one in the ranking.
        u64 latest = 0;
        visit(row, size, [&](int token, float logit) {
            if (!kept(token, logit) || weigher(logit) == 0) return;
            const u64 ranked = static_cast<u64>(~order_of(logit)) << 32 | static_cast<u32>(token);
            latest = ranked > latest ? ranked : latest;
        });
        latest = block_max(latest);
        last = float_of(~static_cast<u32>(latest >> 32));
        last_token = static_cast<int>(static_cast<u32>(latest));
    }
    const double inverse = 1.0 / static_cast<double>(filters.temperature);
    visit(row, size, [&](int token, float logit) {
        const bool out = logit < last || (logit == last && token > last_token);
        to[token] = out ? minus_infinity() : static_cast<float>(static_cast<double>(logit) * inverse);
    });
}
