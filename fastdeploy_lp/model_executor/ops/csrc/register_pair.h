// A vector of 64 bytes as its two AVX2 registers, with the operators of GCC's vectors.
//
// GCC keeps its own vectors of two registers in memory, and compares, converts and sums them number by number.
#pragma once

#include <cstdint>

// The type of whole numbers with a sign and this many bytes.
template <int bytes>
struct SignedOf;
template <>
struct SignedOf<1> {
    typedef int8_t Type;
};
template <>
struct SignedOf<4> {
    typedef int32_t Type;
};
template <>
struct SignedOf<8> {
    typedef int64_t Type;
};

template <class Element>
struct RegisterPair {
    typedef RegisterPair<typename SignedOf<sizeof(Element)>::Type> Mask;
    typedef Element Half __attribute__((vector_size(32)));
    static constexpr int kHalf = 32 / sizeof(Element);

    Half low, high;

    RegisterPair() = default;
    RegisterPair(Half low, Half high) : low(low), high(high) {}
    // The same bits.
    template <class Other>
    explicit RegisterPair(const RegisterPair<Other>& other) : low((Half)other.low), high((Half)other.high) {}

    Element operator[](int lane) const { return lane < kHalf ? low[lane] : high[lane - kHalf]; }

#define FDLP_OPERATOR(op)                                                                                          \
    friend RegisterPair operator op(RegisterPair a, RegisterPair b) { return {a.low op b.low, a.high op b.high}; } \
    friend RegisterPair operator op(RegisterPair a, Element b) { return {a.low op b, a.high op b}; }               \
    friend RegisterPair operator op(Element a, RegisterPair b) { return {a op b.low, a op b.high}; }               \
    RegisterPair& operator op##=(RegisterPair b) { return *this = *this op b; }
    FDLP_OPERATOR(+)
    FDLP_OPERATOR(-)
    FDLP_OPERATOR(*)
    FDLP_OPERATOR(/)
    FDLP_OPERATOR(&)
    FDLP_OPERATOR(|)
#undef FDLP_OPERATOR
    friend RegisterPair operator<<(RegisterPair a, int bits) { return {a.low << bits, a.high << bits}; }
    friend RegisterPair operator>>(RegisterPair a, int bits) { return {a.low >> bits, a.high >> bits}; }
    friend RegisterPair operator-(RegisterPair a) { return {-a.low, -a.high}; }
    friend RegisterPair operator~(RegisterPair a) { return {~a.low, ~a.high}; }

    // In each lane all bits where the comparison is true, else none.
#define FDLP_COMPARISON(op)                                                                                \
    friend Mask operator op(RegisterPair a, RegisterPair b) { return {a.low op b.low, a.high op b.high}; } \
    friend Mask operator op(RegisterPair a, Element b) { return {a.low op b, a.high op b}; }
    FDLP_COMPARISON(<)
    FDLP_COMPARISON(>)
    FDLP_COMPARISON(>=)
    FDLP_COMPARISON(!=)
#undef FDLP_COMPARISON
};
