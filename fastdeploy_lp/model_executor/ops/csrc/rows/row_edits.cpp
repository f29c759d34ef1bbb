// Changes of single logits, in place. Lists of several rows are concatenated: the list of row rows[i] is entries
// offsets[i] to offsets[i + 1].
#include <algorithm>
#include <vector>

#include "exports.h"
#include "rows/row_scan.h"

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
