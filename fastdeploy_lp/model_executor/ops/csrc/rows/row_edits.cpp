// Changes of single logits, in place. Lists of several rows are concatenated: the list of row rows[i] is entries
// offsets[i] to offsets[i + 1].
#include <algorithm>
#include <cmath>
#include <vector>

#include "exports.h"
#include "rows/row_scan.h"

// values[i] is for the logit at places[i], its row * size + its token.
struct Additions {
    int64_t count;
    const int64_t* places;
    const float* values;
};

// Repetition penalty on every listed token, then frequency penalty by the times a token was generated, and presence
// penalty where it was at all.
FDLP_EXPORT void fdlp_penalize(float* logits, int64_t size, int64_t lists, const int64_t* rows, const int64_t* offsets,
                               const int64_t* tokens, const int64_t* counts, const float* repetition, const float* presence,
                               const float* frequency) {
    for (int64_t i = 0; i < lists; ++i) {
        float* row = logits + rows[i] * size;
        const double repeated = repetition[i], present = presence[i], frequent = frequency[i];
        for (int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
            // In doubles the products are exact, so that every platform rounds to the same float.
            double logit = row[tokens[at]];
            logit = logit > 0.0 ? logit / repeated : logit * repeated;
            const double count = static_cast<double>(counts[at]);
            logit -= frequent * count;
            if (counts[at] > 0) logit -= present;
            row[tokens[at]] = static_cast<float>(logit);
        }
    }
}

// Adds one value after the other, so that the sum at a repeated place has one order.
FDLP_EXPORT void fdlp_add(float* logits, const Additions* additions) {
    const int64_t count = additions->count, *places = additions->places;
    const float* values = additions->values;
    // A store may alias a later entry's place or value: reading those of a group before its stores lets the processor
    // request the group's cache lines together.
    constexpr int64_t kGroup = 8;
    int64_t at = 0;
    for (; at + kGroup <= count; at += kGroup) {
        float* cells[kGroup];
        float added[kGroup];
        for (int64_t i = 0; i < kGroup; ++i) {
            cells[i] = logits + places[at + i];
            added[i] = values[at + i];
        }
        for (int64_t i = 0; i < kGroup; ++i) *cells[i] += added[i];
    }
    for (; at < count; ++at) logits[places[at]] += values[at];
}

// Adds values[at] times its own magnitude to tokens[at] of row rows[at].
FDLP_EXPORT void fdlp_add_scaled(float* logits, int64_t size, int64_t count, const int64_t* rows, const int64_t* tokens,
                                 const float* values) {
    for (int64_t at = 0; at < count; ++at) {
        float& logit = logits[rows[at] * size + tokens[at]];
        if (logit == fdlp::kMinusInfinity) continue;
        logit = static_cast<float>(logit + std::fabs(static_cast<double>(logit)) * values[at]);
    }
}

// -inf for tokens[at] of row rows[at].
FDLP_EXPORT void fdlp_ban(float* logits, int64_t size, int64_t count, const int64_t* rows, const int64_t* tokens) {
    for (int64_t at = 0; at < count; ++at) logits[rows[at] * size + tokens[at]] = fdlp::kMinusInfinity;
}

// -inf for every token of the rows but the listed ones.
FDLP_EXPORT void fdlp_allow_only(float* logits, int64_t size, int64_t lists, const int64_t* rows, const int64_t* offsets,
                                 const int64_t* tokens) {
#pragma omp parallel for schedule(dynamic, 1) if (lists > 1)
    for (int64_t i = 0; i < lists; ++i) {
        thread_local std::vector<float> kept;
        float* row = logits + rows[i] * size;
        kept.clear();
        for (int64_t at = offsets[i]; at < offsets[i + 1]; ++at) kept.push_back(row[tokens[at]]);
        std::fill(row, row + size, fdlp::kMinusInfinity);
        for (int64_t at = offsets[i]; at < offsets[i + 1]; ++at) row[tokens[at]] = kept[at - offsets[i]];
    }
}

// -inf for token t of row rows[i] unless bit t % 32 of word t / 32 of bits[i] is set.
FDLP_EXPORT void fdlp_mask(float* logits, int64_t size, int64_t count, const int64_t* rows, const uint32_t* bits) {
    const int64_t words = (size + 31) / 32;
#pragma omp parallel for schedule(static) if (count > 1)
    for (int64_t i = 0; i < count; ++i) {
        float* row = logits + rows[i] * size;
        for (int64_t word = 0; word < words; ++word) {
            const uint32_t allowed = bits[i * words + word];
            if (allowed == ~uint32_t{0}) continue;
            const int64_t begin = word * 32, end = begin + 32 < size ? begin + 32 : size;
            for (int64_t at = begin; at < end; ++at) row[at] = allowed >> (at - begin) & 1 ? row[at] : fdlp::kMinusInfinity;
        }
    }
}
