// The weight of a logit: exp((logit - max) / temperature) in whole steps of 2^-32.
//
// Weights are whole numbers held in doubles, and a row of up to two million of them sums to less than 2^53. Every sum is
// therefore exact, in whatever order it is taken: a draw does not depend on blocks, threads or vector width.
#pragma once

#include <cstdint>
#include <cstring>

#include "rows/row_math.h"
#include "rows/row_scan.h"

namespace fdlp {

inline Doubles widen(const float* from) {
#if defined(FDLP_PAIRS)
    return {_mm256_cvtps_pd(_mm_loadu_ps(from)), _mm256_cvtps_pd(_mm_loadu_ps(from + kWide / 2))};
#else
    return __builtin_convertvector(load_half(from), Doubles);
#endif
}

inline HalfFloats to_half(Doubles v) {
#if defined(FDLP_PAIRS)
    return _mm256_set_m128(_mm256_cvtpd_ps(v.high), _mm256_cvtpd_ps(v.low));
#else
    return __builtin_convertvector(v, HalfFloats);
#endif
}

// Converts a row's logits to weights; weights below `least` count as 0, which is min-p.
struct Weigher {
    double max;
    double inverse_temperature;
    double least;

    Doubles operator()(Doubles logits) const { return weight_of((logits - max) * inverse_temperature, least); }

    // Logits up to this one have the weight 0. It is below the greatest one, even if no float or double is near that.
    float weightless() const {
        const float bound = -float_from(-(max + (kNothingBelow - 0.1) / inverse_temperature));
        return bound < max ? bound : std::nextafterf(static_cast<float>(max), kMinusInfinity);
    }

    // Weights of `count` logits; `to` has room for a multiple of kWide.
    void weigh(const float* logits, int64_t count, double* to) const {
        int64_t at = 0;
        for (; at + kWide <= count; at += kWide) {
            store(to + at, (*this)(widen(logits + at)));
        }
        if (at == count) return;
        float rest[kWide];
        for (int64_t lane = 0; lane < kWide; ++lane) rest[lane] = at + lane < count ? logits[at + lane] : kMinusInfinity;
        store(to + at, (*this)(widen(rest)));
    }
};

}  // namespace fdlp
