// Arithmetic that the compiled operators and the CUDA kernels share, so that both return the same bits.
//
// `Number` is a vector of doubles in the compiled operators and a double in the kernels. Products and sums that are rounded
// once go through `multiply_add`. Nothing is included where kernels are compiled: their compiler has no standard library.
#pragma once

#if defined(__CUDACC__)
#define FDLP_SHARED __device__ inline
#else
#define FDLP_SHARED inline
#include <cmath>
#include <cstring>

#include "simd.h"
#endif

namespace fdlp {

#if !defined(__CUDACC__)
using ::select;
#endif
FDLP_SHARED double select(bool yes, double one, double other) { return yes ? one : other; }

constexpr double kOne = 4294967296.0;    // the weight of the most likely token
constexpr double kNothingBelow = -22.2;  // exp of this is less than one step
// Numbers that are summed before they are added to the sum of the row: 64 for each lane of 8 doubles, or of 16 floats.
constexpr long long kDoubleLanes = 8, kFloatLanes = 16, kLaneSteps = 64;

// The whole numbers that have the bits of a `Number`.
template <class Number>
struct BitsOf;
template <>
struct BitsOf<double> {
    typedef long long Type;
};

template <class To, class From>
FDLP_SHARED To with_bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

#if !defined(__CUDACC__)
template <>
struct BitsOf<Doubles> {
    typedef Longs Type;
};
template <>
inline Longs with_bits_of<Longs>(Doubles from) {
    return (Longs)from;
}
template <>
inline Doubles with_bits_of<Doubles>(Longs from) {
    return (Doubles)from;
}
#endif

// a * b + c, rounded once. For vectors the compiler makes one instruction of both.
FDLP_SHARED double multiply_add(double a, double b, double c) { return fma(a, b, c); }
template <class Number, class Factor, class Term>
FDLP_SHARED Number multiply_add(Number a, Factor b, Term c) {
    return a * b + c;
}

// exp of numbers that are at most 0, to the last bit or so of a double; 0 or less than exp(-700) below -700.
template <class Number>
FDLP_SHARED Number exp_of_negative(Number x) {
    typedef typename BitsOf<Number>::Type Bits;
    const Number floor = Number{} - 700.0;
    x = select(x > floor, x, floor);
    // Adding this rounds to a whole number and leaves it in the lowest bits.
    constexpr double kRound = 6755399441055744.0;
    const Number shifted = multiply_add(x, 1.4426950408889634074, kRound);
    const Number n = shifted - kRound;
    const Number r = multiply_add(n, -1.90821492927058770002e-10, multiply_add(n, -0.693147180369123816490, x));
    // Taylor's series to degree 13: |r| is at most ln(2)/2, the next term below 2^-59.
    Number p = multiply_add(r, 1.0 / 6227020800.0, 1.0 / 479001600.0);
    p = multiply_add(p, r, 1.0 / 39916800.0);
    p = multiply_add(p, r, 1.0 / 3628800.0);
    p = multiply_add(p, r, 1.0 / 362880.0);
    p = multiply_add(p, r, 1.0 / 40320.0);
    p = multiply_add(p, r, 1.0 / 5040.0);
    p = multiply_add(p, r, 1.0 / 720.0);
    p = multiply_add(p, r, 1.0 / 120.0);
    p = multiply_add(p, r, 1.0 / 24.0);
    p = multiply_add(p, r, 1.0 / 6.0);
    p = multiply_add(p, r, 0.5);
    p = multiply_add(p, r, 1.0);
    p = multiply_add(p, r, 1.0);
    const Bits power = (with_bits_of<Bits>(shifted) - with_bits_of<long long>(kRound) + 1023) << 52;
    return p * with_bits_of<Number>(power);
}

// exp(x) in whole steps of 2^-32, 0 below `least` steps.
template <class Number>
FDLP_SHARED Number weight_of(Number x, double least) {
    const Number scaled = exp_of_negative(x) * kOne;
    constexpr double kRound = 4503599627370496.0;
    Number whole = (scaled + kRound) - kRound;
    whole = select(whole > scaled, whole - 1.0, whole);
    return select(whole >= Number{} + least, whole, Number{});
}

// exp(x) in the nearest whole steps of 2^-42. Two million of them add up in 64 bits, to the same sum in any order.
constexpr double kExpUnits = 4398046511104.0;
template <class Number>
FDLP_SHARED typename BitsOf<Number>::Type units_of_exp(Number x) {
    constexpr double kRound = 6755399441055744.0;
    const Number shifted = exp_of_negative(x) * kExpUnits + kRound;
    return with_bits_of<typename BitsOf<Number>::Type>(shifted) - with_bits_of<long long>(kRound);
}

// The natural logarithm of a positive normal number, to about a bit; -inf for 0 and less. The standard library's differ in
// the last bit from one to the next.
FDLP_SHARED double log_of(double x) {
    if (!(x > 0.0)) return -with_bits_of<double>(0x7ff0000000000000LL);
    const long long bits = with_bits_of<long long>(x);
    // x = 2^n * m with m from sqrt(1/2) on, up to sqrt(2); log(m) = 2 atanh(s).
    const long long above = bits - 0x3fe6a09e667f3bcdLL;
    const double n = static_cast<double>(above >> 52);
    const double m = with_bits_of<double>(bits - (above >> 52 << 52));
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    // The series of atanh(s) / s - 1 in s^2, which is at most 0.0295: the next term is below 2^-58.
    double p = multiply_add(square, 1.0 / 23.0, 1.0 / 21.0);
    p = multiply_add(p, square, 1.0 / 19.0);
    p = multiply_add(p, square, 1.0 / 17.0);
    p = multiply_add(p, square, 1.0 / 15.0);
    p = multiply_add(p, square, 1.0 / 13.0);
    p = multiply_add(p, square, 1.0 / 11.0);
    p = multiply_add(p, square, 1.0 / 9.0);
    p = multiply_add(p, square, 1.0 / 7.0);
    p = multiply_add(p, square, 1.0 / 5.0);
    p = multiply_add(p, square, 1.0 / 3.0);
    const double twice = s + s;
    const double low = multiply_add(n, 1.90821492927058770002e-10, multiply_add(p, square, 0.0) * twice);
    return multiply_add(n, 0.693147180369123816490, twice + low);
}

// Standard deviation of `count` numbers with this sum, and this sum of squares.
FDLP_SHARED double deviation_of(double sum, double square, double count) {
    const double mean = sum / count;
    const double variance = multiply_add(-mean, mean, square / count);
    return variance > 0.0 ? sqrt(variance) : 0.0;
}

// The lowest float that is not below `bound`.
FDLP_SHARED float float_from(double bound) {
    const float rounded = static_cast<float>(bound);
    return static_cast<double>(rounded) < bound ? nextafterf(rounded, with_bits_of<float>(0x7f800000)) : rounded;
}

// The order of `Cut` in row_ops.py.
enum Cut : int { kMinP, kEpsilon, kEta, kTopNSigma, kTypical, kExcludeTop };

// The lowest x considered: lower logits have no weight.
constexpr double kLowest = -700.0;

// Of a row, where x is a logit less the greatest one.
struct Moments {
    double total;      // of the weights
    double log_total;  // log of the sum of exp(x)
    double mean;       // of x, weighted; the entropy is log_total - mean
};

// The x at which a row is cut; `moments` and `deviation` are read where the cut depends on them.
FDLP_SHARED double cut_bound(Cut cut, double value, const Moments& moments, double deviation) {
    if (cut == kMinP) {
        // As a draw's weight is compared: in whole steps.
        const double least = ceil(value * kOne);
        return log_of((least > 1.0 ? least : 1.0) / kOne);
    }
    // A sum of 0 keeps the product from becoming one instruction with a later sum.
    if (cut == kTopNSigma) return multiply_add(-value, deviation, 0.0);
    const double bound = log_of(value) + moments.log_total;
    if (cut != kEta) return bound;
    const double by_entropy = multiply_add(0.5, log_of(value), moments.mean);
    return by_entropy < bound ? by_entropy : bound;
}

// The lowest logit considered by a draw, in temperatures below the greatest.
FDLP_SHARED float bound_at(double depth, float temperature, float max) {
    return static_cast<float>(multiply_add(-depth, static_cast<double>(temperature), static_cast<double>(max)));
}

}  // namespace fdlp
