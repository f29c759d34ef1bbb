// Vectors of 16 floats in GCC's portable notation: one AVX-512 register, or two of AVX2, or four of NEON.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

static inline Floats load(const float* from) {
    Floats v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

static inline Bytes load(const uint8_t* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

static inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

// The first `n` of them, none or all if there are fewer or more than a vector holds; zeros after them.
static inline Floats load_first(const float* from, int n) {
    if (n >= kLanes) return load(from);
    Floats v = {};
    if (n > 0) std::memcpy(&v, from, sizeof(float) * n);
    return v;
}

static inline void store_first(float* to, Floats v, int n) {
    if (n >= kLanes)
        store(to, v);
    else if (n > 0)
        std::memcpy(to, &v, sizeof(float) * n);
}

// Spelled out: `Floats{} + x` would be an addition, since it makes -0 a 0.
static inline Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

static inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

// a * b + c, rounded once where the processor has such an instruction. Spelled out: a compiler that does not optimize, or with a branch
// between product and sum, rounds twice.
static inline Floats quick_multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    __m256 halves[3][2];
    std::memcpy(halves[0], &a, sizeof a);
    std::memcpy(halves[1], &b, sizeof b);
    std::memcpy(halves[2], &c, sizeof c);
    for (int i = 0; i < 2; ++i) halves[0][i] = _mm256_fmadd_ps(halves[0][i], halves[1][i], halves[2][i]);
    std::memcpy(&a, halves[0], sizeof a);
    return a;
#else
    return a * b + c;
#endif
}

static inline Floats select(Ints mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }

// a where a > b, else b, also where one is NaN.
static inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#else
    return select(a > b, a, b);
#endif
}

// Fixed order of additions, so that a sum has the same bits wherever it is taken.
static inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float lane[kLanes];
    store(lane, v);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
#endif
}

static inline float largest(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lane[kLanes];
    store(lane, v);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
#endif
}

static inline int32_t sum(Ints v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t total = 0;
    for (int i = 0; i < kLanes; ++i) total += v[i];
    return total;
#endif
}

static inline int32_t largest(Ints v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t most = v[0];
    for (int i = 1; i < kLanes; ++i) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

// To the nearest integers, halves to even ones; |v| is below 2^31.
// True if any lane of a comparison is true.
static inline bool any(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
    int32_t found = 0;
    for (int i = 0; i < kLanes; ++i) found |= mask[i];
    return found != 0;
#endif
}

static inline Ints round_to_ints(Floats v) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v);
#else
    Ints rounded;
    for (int i = 0; i < kLanes; ++i) rounded[i] = static_cast<int32_t>(__builtin_rintf(v[i]));
    return rounded;
#endif
}

// The lowest 8 bits of each.
static inline void store_bytes(int8_t* to, Ints v) {
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    const Narrow narrow = __builtin_convertvector(v, Narrow);
    std::memcpy(to, &narrow, sizeof narrow);
}

static inline Ints load_ints(const int8_t* from) {
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    Narrow v;
    std::memcpy(&v, from, sizeof v);
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v);
#else
    return __builtin_convertvector(v, Ints);
#endif
}

// The bits of `mask` in each byte, moved there from `left` bits further right; from further left if `left` is negative.
static inline Bytes moved_bits(Bytes v, int left, uint8_t mask) {
    // In words, since no processor shifts bytes: `mask` removes what comes from other bytes.
    return (Bytes)(left >= 0 ? (Words)v << left : (Words)v >> -left) & mask;
}

// The low and the high 4 bits of each.
static inline void split_nibbles(Bytes both, Bytes* low, Bytes* high) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
    // Spelled out, since GCC takes vectors of two registers apart for this.
    const __m256i digit = _mm256_set1_epi8(15);
    __m256i from[2], lows[2], highs[2];
    std::memcpy(from, &both, sizeof from);
    for (int i = 0; i < 2; ++i) {
        lows[i] = _mm256_and_si256(from[i], digit);
        highs[i] = _mm256_and_si256(_mm256_srli_epi16(from[i], 4), digit);
    }
    std::memcpy(low, lows, sizeof lows);
    std::memcpy(high, highs, sizeof highs);
#else
    *low = both & 15;
    *high = both >> 4;
#endif
}

// The largest |x[i]| of 32; NaN if one is NaN. The bits of numbers without sign are ordered like the numbers, with NaN above infinity.
static inline float largest_magnitude(Floats low, Floats high) {
    const Ints without_sign = Ints{} + 0x7fffffff;
    const Ints a = (Ints)low & without_sign, b = (Ints)high & without_sign;
    const int32_t most = largest(a > b ? a : b);
    float found;
    std::memcpy(&found, &most, sizeof found);
    return found;
}

// e^x for x <= 87, and e^-87 below -87; relative error below 2e-7: x = n ln 2 + r, a polynomial in r, n into the exponent.
static inline Floats exp_up_to_87(Floats x) {
    x = maximum(x, splat(-87.0f));
    const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Floats n = (x * 1.44269504f + shift) - shift;
    const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (Floats)((Ints)p + (__builtin_convertvector(n, Ints) << 23));
}

static inline float half_to_float(uint16_t h) {
    _Float16 value;
    std::memcpy(&value, &h, sizeof value);
    return static_cast<float>(value);
}

static inline uint16_t float_to_half(float x) {
    const _Float16 value = static_cast<_Float16>(x);
    uint16_t h;
    std::memcpy(&h, &value, sizeof h);
    return h;
}

static inline void store(uint16_t* half, Floats v) {
#if defined(__AVX512F__)
    const __m256i narrow = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    std::memcpy(half, &narrow, sizeof narrow);
#elif defined(__AVX2__) && defined(__F16C__)
    __m256 wide[2];
    std::memcpy(wide, &v, sizeof wide);
    for (int i = 0; i < 2; ++i) {
        const __m128i narrow = _mm256_cvtps_ph(wide[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        std::memcpy(half + 8 * i, &narrow, sizeof narrow);
    }
#else
    for (int i = 0; i < kLanes; ++i) half[i] = float_to_half(v[i]);
#endif
}

static inline Floats load(const uint16_t* half) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
#elif defined(__AVX2__) && defined(__F16C__)
    __m256 wide[2];
    for (int i = 0; i < 2; ++i) wide[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + 8 * i)));
    Floats v;
    std::memcpy(&v, wide, sizeof v);
    return v;
#else
    Floats v;
    for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(half[i]);
    return v;
#endif
}

// 16 floats in the registers of a loop that sums products. GCC keeps a `Floats` of two registers in memory, a pair of halves in registers.
// kSums: the most of them that a loop sums at a time, beside what it multiplies.
#if defined(__AVX2__) && !defined(__AVX512F__)
struct Registers {
    typedef float Half __attribute__((vector_size(32)));
    Half low, high;
};
constexpr int kSums = 6;

static inline Registers load_registers(const float* from) {
    Registers v;
    std::memcpy(&v.low, from, sizeof v.low);
    std::memcpy(&v.high, from + kLanes / 2, sizeof v.high);
    return v;
}

static inline void store(float* to, Registers v) {
    std::memcpy(to, &v.low, sizeof v.low);
    std::memcpy(to + kLanes / 2, &v.high, sizeof v.high);
}

static inline Registers to_registers(const Floats& v) { return load_registers(reinterpret_cast<const float*>(&v)); }

static inline Floats to_floats(Registers v) {
    Floats whole;
    store(reinterpret_cast<float*>(&whole), v);
    return whole;
}

static inline void add_product(Registers* sum, float a, Registers v) {
    sum->low += a * v.low;
    sum->high += a * v.high;
}
#else
typedef Floats Registers;
constexpr int kSums = 24;

static inline Registers load_registers(const float* from) { return load(from); }
static inline Registers to_registers(Floats v) { return v; }
static inline Floats to_floats(Floats v) { return v; }
static inline void add_product(Registers* sum, float a, Registers v) { *sum += splat(a) * v; }
#endif

static inline Registers load_registers(const uint16_t* half) { return to_registers(load(half)); }

// The nearest bfloat16, halves to the even one: the upper half of a float. NaN stays NaN.
static inline uint16_t float_to_bfloat16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float bfloat16_to_float(uint16_t upper) {
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline Floats load_bfloat16(const uint16_t* upper) {
    typedef uint16_t Uppers __attribute__((vector_size(32)));
    Uppers v;
    std::memcpy(&v, upper, sizeof v);
    return (Floats)(__builtin_convertvector(v, Ints) << 16);
}

// The nearest bfloat16 as floats. Without AVX512-BF16, whose conversion makes denormals zeros before it rounds.
static inline Floats round_to_bfloat16(Floats v) {
    const Words bits = (Words)v, rounded = bits + 0x7fff + (bits >> 16 & 1);
    const Words not_a_number = (Words)((bits & 0x7fffffffu) > 0x7f800000u);
    return (Floats)(((rounded & ~not_a_number) | ((bits | 0x00400000u) & not_a_number)) & 0xffff0000u);
}

// Pairs of bfloat16, the first in the lower half of each word.
static inline Floats first_of_pairs(Words pairs) { return (Floats)(pairs << 16); }
static inline Floats second_of_pairs(Words pairs) { return (Floats)(pairs & 0xffff0000u); }

// Byte `i` of each 4 as a number.
static inline Ints byte_of_each(Bytes v, int i) { return (Ints)((Words)v >> (8 * i) & 255); }

static inline void prefetch(const void* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}
