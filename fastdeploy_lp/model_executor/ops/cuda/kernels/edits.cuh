// Changes of single logits and of whole rows, in place. row_edits.cpp does the same on the CPU.
//
// A kernel for entries has a thread for each; a kernel for rows has a block for each part of a row: blockIdx.x is the row's place in
// the list, blockIdx.y the part.
#pragma once

#include "block.cuh"

namespace fdlp {

__device__ inline long long entry() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Calls act(token) for each token of this block's part of a row.
template <class Act>
__device__ void visit_part(int size, const Act& act) {
    for (int token = blockIdx.y * blockDim.x + threadIdx.x; token < size; token += gridDim.y * blockDim.x) act(token);
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

// -inf for every token of the rows but the listed ones, whose logits are kept meanwhile. One block for each list.
FDLP_KERNEL fdlp_allow_only(float* logits, int size, const long long* rows, const long long* offsets, const long long* tokens,
                            float* kept) {
    const int i = blockIdx.x;
    float* row = logits + rows[i] * size;
    const long long begin = offsets[i] + threadIdx.x, end = offsets[i + 1];
    for (long long at = begin; at < end; at += blockDim.x) kept[at] = row[tokens[at]];
    __syncthreads();
    for (int token = threadIdx.x; token < size; token += blockDim.x) row[token] = fdlp::minus_infinity();
    __syncthreads();
    for (long long at = begin; at < end; at += blockDim.x) row[tokens[at]] = kept[at];
}

// -inf for token t of row rows[i] unless bit t % 32 of word t / 32 of bits[i] is set.
FDLP_KERNEL fdlp_mask(float* logits, int size, const long long* rows, const u32* bits) {
    float* row = logits + rows[blockIdx.x] * size;
    const u32* allowed = bits + static_cast<long long>(blockIdx.x) * ((size + 31) / 32);
    fdlp::visit_part(size, [&](int token) {
        if ((allowed[token / 32] >> (token % 32) & 1) == 0) row[token] = fdlp::minus_infinity();
    });
}

// 0 for tokens[i] of row rows[i], -inf for its other tokens.
FDLP_KERNEL fdlp_force(float* logits, int size, const long long* rows, const long long* tokens) {
    float* row = logits + rows[blockIdx.x] * size;
    const long long forced = tokens[blockIdx.x];
    fdlp::visit_part(size, [&](int token) { row[token] = token == forced ? 0.0f : fdlp::minus_infinity(); });
}

// Row rows[i] to row i of `into`.
FDLP_KERNEL fdlp_copy_rows(const float* logits, int size, const long long* rows, float* into) {
    const float* from = logits + rows[blockIdx.x] * size;
    float* to = into + static_cast<long long>(blockIdx.x) * size;
    fdlp::visit_part(size, [&](int token) { to[token] = from[token]; });
}
