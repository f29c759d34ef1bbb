// The tokens that min-p, top-k and top-p keep of a row: the front of its ranking by logit, of equal ones by id.
#pragma once

#include "select.cuh"

namespace fdlp {

struct Filters {
    float temperature, min_p;
    long long top_k;  // 0 keeps all
    float top_p;

    __device__ bool ranks() const { return top_k > 0 || top_p < 1.0f; }

    __device__ Weigher weigher(float max) const {
        const double least = static_cast<double>(min_p) * kOne;
        return {static_cast<double>(max), 1.0 / static_cast<double>(temperature), least > 1.0 ? least : 1.0};
    }
};

// Tokens from `bound` on, down to the token `last_token` of those whose logit is `last`.
struct Kept {
    float bound, last;
    int last_token;

    __device__ bool operator()(int token, float logit) const {
        return logit >= bound && (logit > last || (logit == last && token <= last_token));
    }
};

__device__ inline Kept keep_all(int size, float bound) { return {bound, minus_infinity(), size}; }

// Of the tokens kept, those with a logit above `last`, and the first `ties` of `equals` with this logit.
__device__ __noinline__ Kept keep_first(const Kept& kept, const float* row, int size, float last, u64 ties, u64 equals) {
    Kept fewer = kept;
    fewer.last = last;
    if (ties < equals) {
        const auto counted = [&](int token) -> u64 { return row[token] == last && kept(token, last); };
        fewer.last_token = find_token(size, counted, [&](u64) { return ties; });
    } else if (last != kept.last) {
        fewer.last_token = size;
    }
    return fewer;
}

__device__ __noinline__ Kept filter(const Filters& filters, const Weigher& weigher, const float* row, int size, float max) {
    Kept kept = keep_all(size, bound_at(-kNothingBelow, filters.temperature, max));
    if (filters.top_k > 0) {
        const auto counted = [&](int, float logit) -> u64 { return logit >= kept.bound; };
        const Selected found = select(row, size, order_of, counted, [&](u64) { return static_cast<u64>(filters.top_k); });
        kept = keep_first(kept, row, size, float_of(found.order), found.goal - found.above, found.at);
    }
    if (filters.top_p < 1.0f) {
        const auto weighed = [&](int token, float logit) -> u64 { return kept(token, logit) ? weigher(logit) : 0; };
        const auto mass = [&](u64 total) { return whole_from(static_cast<double>(filters.top_p) * static_cast<double>(total)); };
        const Selected found = select(row, size, order_of, weighed, mass);
        const float last = float_of(found.order);
        // Equal logits weigh the same.
        const u64 weight = weigher(last), missing = found.goal - found.above;
        kept = keep_first(kept, row, size, last, (missing + weight - 1) / weight, found.at / weight);
    }
    return kept;
}

}  // namespace fdlp
