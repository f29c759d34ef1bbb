// Changes of single logits and of whole rows, in place. row_edits.cpp does the same on the CPU.
//
// A kernel for entries has a thread for each; a kernel for rows has a block for each part of a row.
#pragma once

#include "parts.cuh"

namespace fdlp {

__device__ inline long long entry() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Stores value_of(token) for each token of the part.
template <class ValueOf>
__device__ void fill_part(const Place& at, const ValueOf& value_of) {
    for (int first = at.begin + kQuad * threadIdx.x; first < at.end; first += kQuad * blockDim.x) {
        store_quad(at.row, first, at.end, {value_of(first), value_of(first + 1), value_of(first + 2), value_of(first + 3)});
    }
}

}  // namespace fdlp

// Repetition penalty on every listed token, then frequency penalty by the times a token was generated, and presence penalty where
// it was at all. One block for each list: the list of row rows[i] is the entries offsets[i] to offsets[i + 1].
FDLP_KERNEL fdlp_penalize(float* logits, int size, const long long* rows, const long long* offsets, const long long* tokens,
                          const long long* counts, const float* repetition, const float* presence, const float* frequency) {
    const int i = blockIdx.x;
    float* row = logits + rows[i] * size;
    const double repeated = repetition[i], present = presence[i], frequent = frequency[i];
    for (long long at = offsets[i] + threadIdx.x; at < offsets[i + 1]; at += blockDim.x) {
        // In doubles the products are exact.
        double logit = row[tokens[at]];
        logit = logit > 0.0 ? logit / repeated : logit * repeated;
        logit -= frequent * static_cast<double>(counts[at]);
        if (counts[at] > 0) logit -= present;
        row[tokens[at]] = static_cast<float>(logit);
    }
}

// Adds the value of each entry to the logit at its place, row * size + token. Entries are sorted by place; those of one place are
// added by one thread, in their order. `order` has the number of each entry's value, null for its own.
FDLP_KERNEL fdlp_add(float* logits, long long count, const long long* places, const long long* order, const float* values) {
    long long at = fdlp::entry();
    if (at >= count || (at > 0 && places[at - 1] == places[at])) return;
    const long long place = places[at];
    float logit = logits[place];
    for (; at < count && places[at] == place; ++at) logit += values[order == nullptr ? at : order[at]];
    logits[place] = logit;
}

// Adds values[i] times its own magnitude to the logit at places[i].
FDLP_KERNEL fdlp_add_scaled(float* logits, long long count, const long long* places, const float* values) {
    const long long at = fdlp::entry();
    if (at >= count) return;
    const double logit = logits[places[at]];
    if (logit == fdlp::minus_infinity()) return;
    logits[places[at]] = static_cast<float>(fma(fabs(logit), static_cast<double>(values[at]), logit));
}

// The logits at these places.
FDLP_KERNEL fdlp_values_at(const float* logits, long long count, const long long* places, float* values) {
    const long long at = fdlp::entry();
    if (at < count) values[at] = logits[places[at]];
}

// -inf at these places.
FDLP_KERNEL fdlp_ban(float* logits, long long count, const long long* places) {
    const long long at = fdlp::entry();
    if (at < count) logits[places[at]] = fdlp::minus_infinity();
}

// -inf for every token of the rows but the listed ones, whose logits were `kept` before. The list of a row is the entries offsets[i] to
// offsets[i + 1].
FDLP_KERNEL fdlp_allow_only(const fdlp::Rows given, const long long* offsets, const long long* tokens, const float* kept) {
    const fdlp::Place at = fdlp::place_of(given);
    fdlp::fill_part(at, [](int) -> float { return fdlp::minus_infinity(); });
    __syncthreads();
    const long long end = offsets[at.number + 1];
    for (long long entry = offsets[at.number] + threadIdx.x; entry < end; entry += blockDim.x) {
        const long long token = tokens[entry];
        if (token >= at.begin && token < at.end) at.row[token] = kept[entry];
    }
}

// -inf for token t of the i-th row unless bit t % 32 of word t / 32 of bits[i] is set.
FDLP_KERNEL fdlp_mask(const fdlp::Rows given, const u32* bits) {
    using namespace fdlp;
    const Place at = place_of(given);
    const u32* allowed = bits + static_cast<long long>(at.number) * ((at.size + 31) / 32);
    constexpr u32 kAll = (1u << kQuad) - 1;
    const float banned = minus_infinity();
#pragma unroll 4
    for (int first = at.begin + kQuad * threadIdx.x; first < at.end; first += kQuad * blockDim.x) {
        const u32 of_quad = allowed[first / 32] >> (first % 32) & kAll;
        if (of_quad == 0) {
            store_quad(at.row, first, at.end, {banned, banned, banned, banned});
            continue;
        }
        for (int i = 0; i < kQuad; ++i) {
            if ((of_quad >> i & 1) == 0 && first + i < at.end) at.row[first + i] = banned;
        }
    }
}

// 0 for tokens[i] of the i-th row, -inf for its other tokens.
FDLP_KERNEL fdlp_force(const fdlp::Rows given, const long long* tokens) {
    const fdlp::Place at = fdlp::place_of(given);
    const long long forced = tokens[at.number];
    fdlp::fill_part(at, [&](int token) -> float { return token == forced ? 0.0f : fdlp::minus_infinity(); });
}

// The i-th row to row i of `into`.
FDLP_KERNEL fdlp_copy_rows(const fdlp::Rows given, float* into) {
    using namespace fdlp;
    const Place at = place_of(given);
    float* to = into + static_cast<long long>(at.number) * at.size;
    visit_quads(at, [&](int first, float4 quad) { store_quad(to, first, at.end, quad); });
}
