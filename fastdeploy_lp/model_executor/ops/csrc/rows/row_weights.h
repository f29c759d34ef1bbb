// The weight of a logit: exp((logit - max) / temperature) in whole steps of 2^-32.
//
// Weights are whole numbers held in doubles, and a row of up to two million of them sums to less than 2^53. Every sum is
// therefore exact, in whatever order it is taken: a draw does not depend on blocks, threads or vector width.
#pragma once

#include <cstdint>
#include <cstring>

#include "rows/row_scan.h"

namespace fdlp {

typedef double Doubles __attribute__((vector_size(kWide * sizeof(double))));
typedef int64_t Longs __attribute__((vector_size(kWide * sizeof(int64_t))));

constexpr double kOne = 4294967296.0;    // the weight of the most likely token
constexpr double kNothingBelow = -22.2;  // exp of this is less than one step

inline Doubles widen(const float* from) {
    HalfFloats loaded;
    std::memcpy(&loaded, from, sizeof(loaded));
    return __builtin_convertvector(loaded, Doubles);
}

inline bool any(Longs mask) {
    int64_t joined = 0;
    for (int64_t lane = 0; lane < kWide; ++lane) joined |= mask[lane];
    return joined != 0;
}

// exp of numbers that are at most 0, to the last bit or so of a double; 0 or less than exp(-700) below -700.
inline Doubles exp_of_negative(Doubles x) {
    const Doubles floor = Doubles{} - 700.0;
    x = x > floor ? x : floor;
    // Adding this rounds to a whole number and leaves it in the lowest bits.
    constexpr double kRound = 6755399441055744.0;
    const Doubles shifted = x * 1.4426950408889634074 + kRound;
    const Doubles n = shifted - kRound;
    const Doubles r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    // Taylor's series to degree 13: |r| is at most ln(2)/2, the next term below 2^-59.
    Doubles p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const double magic = kRound;
    int64_t magic_bits;
    std::memcpy(&magic_bits, &magic, sizeof(magic_bits));
    Longs bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    const Longs power = (bits - magic_bits + 1023) << 52;
    Doubles scale;
    std::memcpy(&scale, &power, sizeof(scale));
    return p * scale;
}

// Converts a row's logits to weights; weights below `least` count as 0, which is min-p.
struct Weigher {
    double max;
    double inverse_temperature;
    double least;

    Doubles operator()(Doubles logits) const {
        Doubles x = (logits - max) * inverse_temperature;
        const Doubles scaled = exp_of_negative(x) * kOne;
        constexpr double kRound = 4503599627370496.0;
        Doubles whole = (scaled + kRound) - kRound;
        whole = whole > scaled ? whole - 1.0 : whole;
        return whole >= Doubles{} + least ? whole : Doubles{};
    }

    // Logits up to this one have the weight 0.
    float weightless() const { return static_cast<float>(max + (kNothingBelow - 0.1) / inverse_temperature); }

    // Weights of `count` logits; `to` has room for a multiple of kWide.
    void weigh(const float* logits, int64_t count, double* to) const {
        int64_t at = 0;
        for (; at + kWide <= count; at += kWide) {
            const Doubles weights = (*this)(widen(logits + at));
            std::memcpy(to + at, &weights, sizeof(weights));
        }
        if (at == count) return;
        float rest[kWide];
        for (int64_t lane = 0; lane < kWide; ++lane) rest[lane] = at + lane < count ? logits[at + lane] : kMinusInfinity;
        const Doubles weights = (*this)(widen(rest));
        std::memcpy(to + at, &weights, sizeof(weights));
    }
};

}  // namespace fdlp
