// Vectors of 64 bytes in GCC's notation: one AVX-512 register, a pair of AVX2 registers (register_pair.h), or four of NEON.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__) && !defined(__AVX512F__)
#define FDLP_PAIRS
#include "register_pair.h"
#endif

constexpr int kLanes = 16;

// kSums: the vectors that a loop sums at a time; with its factors they fit the registers.
#if defined(FDLP_PAIRS)
typedef RegisterPair<float> Floats;
typedef RegisterPair<int32_t> Ints;
typedef RegisterPair<uint8_t> Bytes;
typedef RegisterPair<uint32_t> Words;
typedef RegisterPair<double> Doubles;
typedef RegisterPair<int64_t> Longs;
constexpr int kSums = 6;
#else
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));
constexpr int kSums = 24;
#endif

template <class Vector>
static inline Vector read_vector(const void* from) {
    Vector v;
#if defined(FDLP_PAIRS)
    // Each register for itself: a pair whose memory is written stays in memory.
    std::memcpy(&v.low, from, sizeof v.low);
    std::memcpy(&v.high, static_cast<const char*>(from) + sizeof v.low, sizeof v.high);
#else
    std::memcpy(&v, from, sizeof v);
#endif
    return v;
}

template <class Vector>
static inline void write_vector(void* to, Vector v) {
#if defined(FDLP_PAIRS)
    std::memcpy(to, &v.low, sizeof v.low);
    std::memcpy(static_cast<char*>(to) + sizeof v.low, &v.high, sizeof v.high);
#else
    std::memcpy(to, &v, sizeof v);
#endif
}

static inline Floats load(const float* from) { return read_vector<Floats>(from); }
static inline Bytes load(const uint8_t* from) { return read_vector<Bytes>(from); }
static inline Doubles load(const double* from) { return read_vector<Doubles>(from); }
static inline void store(float* to, Floats v) { write_vector(to, v); }
static inline void store(uint8_t* to, Bytes v) { write_vector(to, v); }
static inline void store(double* to, Doubles v) { write_vector(to, v); }

// The first `n` of them, none or all if there are fewer or more than a vector holds; zeros after them.
static inline Floats load_first(const float* from, int n) {
    if (n >= kLanes) return load(from);
    float first[kLanes] = {};
    if (n > 0) std::memcpy(first, from, sizeof(float) * n);
    return load(first);
}

static inline void store_first(float* to, Floats v, int n) {
    if (n >= kLanes) return store(to, v);
    float all[kLanes];
    store(all, v);
    if (n > 0) std::memcpy(to, all, sizeof(float) * n);
}

// Spelled out: `Floats{} + x` would be an addition, since it makes -0 a 0.
static inline Floats splat(float x) {
#if defined(FDLP_PAIRS)
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
#else
    return Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}

static inline Ints lane_numbers() {
#if defined(FDLP_PAIRS)
    return {Ints::Half{0, 1, 2, 3, 4, 5, 6, 7}, Ints::Half{8, 9, 10, 11, 12, 13, 14, 15}};
#else
    return Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif
}

static inline Floats to_floats(Ints v) {
#if defined(FDLP_PAIRS)
    return {_mm256_cvtepi32_ps((__m256i)v.low), _mm256_cvtepi32_ps((__m256i)v.high)};
#else
    return __builtin_convertvector(v, Floats);
#endif
}

// Of whole numbers.
static inline Ints to_ints(Floats v) {
#if defined(FDLP_PAIRS)
    return {(Ints::Half)_mm256_cvttps_epi32(v.low), (Ints::Half)_mm256_cvttps_epi32(v.high)};
#else
    return __builtin_convertvector(v, Ints);
#endif
}

#if defined(__AVX2__)
static inline __m256 half_of(const Floats& v, int half) {
#if defined(FDLP_PAIRS)
    return half == 0 ? v.low : v.high;
#else
    float both[kLanes];
    store(both, v);
    return _mm256_loadu_ps(both + half * kLanes / 2);
#endif
}
static inline Floats joined(__m256 low, __m256 high) {
#if defined(FDLP_PAIRS)
    return {low, high};
#else
    alignas(64) float both[kLanes];
    _mm256_store_ps(both, low);
    _mm256_store_ps(both + kLanes / 2, high);
    return load(both);
#endif
}
#endif

// a * b + c, rounded once where the processor has such an instruction. Spelled out: a compiler that does not optimize, or with a branch
// between product and sum, rounds twice.
static inline Floats quick_multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(FDLP_PAIRS)
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
#else
    return a * b + c;
#endif
}

static inline Ints select(Ints mask, Ints yes, Ints no) { return (mask & yes) | (~mask & no); }
static inline Floats select(Ints mask, Floats yes, Floats no) { return (Floats)select(mask, (Ints)yes, (Ints)no); }
static inline Doubles select(Longs mask, Doubles yes, Doubles no) {
#if defined(FDLP_PAIRS)
    return {mask.low ? yes.low : no.low, mask.high ? yes.high : no.high};
#else
    return mask ? yes : no;
#endif
}

// a where a > b, else b, also where one is NaN.
static inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(FDLP_PAIRS)
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
#else
    return select(a > b, a, b);
#endif
}

#if defined(FDLP_PAIRS)
// Lanes that are 8 apart combined, then those that are 4, 2 and 1 apart.
template <class Combine>
static inline float reduced(Floats v, const Combine& combine) {
    const __m128 low = combine(_mm256_castps256_ps128(v.low), _mm256_castps256_ps128(v.high));
    const __m128 four = combine(low, combine(_mm256_extractf128_ps(v.low, 1), _mm256_extractf128_ps(v.high, 1)));
    const __m128 two = combine(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(combine(two, _mm_movehdup_ps(two)));
}

template <class Combine>
static inline int32_t reduced(Ints v, const Combine& combine) {
    const __m256i eight = combine((__m256i)v.low, (__m256i)v.high);
    const __m256i four = combine(eight, _mm256_permute2x128_si256(eight, eight, 1));
    const __m256i two = combine(four, _mm256_shuffle_epi32(four, 0x4e));
    return _mm256_cvtsi256_si32(combine(two, _mm256_shuffle_epi32(two, 0xb1)));
}
#endif

// Fixed order of additions, so that a sum has the same bits wherever it is taken.
static inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(FDLP_PAIRS)
    return reduced(v, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
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
#elif defined(FDLP_PAIRS)
    return reduced(v, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
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
#elif defined(FDLP_PAIRS)
    return reduced(v, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
#else
    int32_t total = 0;
    for (int i = 0; i < kLanes; ++i) total += v[i];
    return total;
#endif
}

static inline int32_t largest(Ints v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(FDLP_PAIRS)
    return reduced(v, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
#else
    int32_t most = v[0];
    for (int i = 1; i < kLanes; ++i) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

// True if any lane of a comparison is true.
static inline bool any(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(FDLP_PAIRS)
    const __m256i either = (__m256i)(mask.low | mask.high);
    return !_mm256_testz_si256(either, either);
#else
    int32_t found = 0;
    for (int i = 0; i < kLanes; ++i) found |= mask[i];
    return found != 0;
#endif
}

static inline bool any(Longs mask) { return any((Ints)mask); }

// To the nearest integers, halves to even ones; |v| is below 2^31.
static inline Ints round_to_ints(Floats v) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v);
#elif defined(FDLP_PAIRS)
    return {(Ints::Half)_mm256_cvtps_epi32(v.low), (Ints::Half)_mm256_cvtps_epi32(v.high)};
#else
    Ints rounded;
    for (int i = 0; i < kLanes; ++i) rounded[i] = static_cast<int32_t>(__builtin_rintf(v[i]));
    return rounded;
#endif
}

// The lowest 8 bits of each.
static inline void store_bytes(int8_t* to, Ints v) {
#if defined(FDLP_PAIRS)
    const Ints lowest = v & 255;
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)lowest.low, (__m256i)lowest.high), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    std::memcpy(to, &bytes, sizeof bytes);
#else
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    const Narrow narrow = __builtin_convertvector(v, Narrow);
    std::memcpy(to, &narrow, sizeof narrow);
#endif
}

static inline Ints load_ints(const int8_t* from) {
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    Narrow v;
    std::memcpy(&v, from, sizeof v);
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v);
#elif defined(FDLP_PAIRS)
    return {(Ints::Half)_mm256_cvtepi8_epi32((__m128i)v), (Ints::Half)_mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)v, 8))};
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
    *low = both & 15;
#if defined(FDLP_PAIRS)
    const auto higher = [](Bytes::Half half) { return (Bytes::Half)_mm256_srli_epi16((__m256i)half, 4); };
    *high = Bytes(higher(both.low), higher(both.high)) & 15;
#else
    *high = both >> 4;
#endif
}

// The largest |x[i]| of 32; NaN if one is NaN. The bits of numbers without sign are ordered like the numbers, with NaN above infinity.
static inline float largest_magnitude(Floats low, Floats high) {
    const Ints without_sign = Ints{} + 0x7fffffff;
    const Ints a = (Ints)low & without_sign, b = (Ints)high & without_sign;
    const int32_t most = largest(select(a > b, a, b));
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
    return (Floats)((Ints)p + (to_ints(n) << 23));
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
#elif defined(FDLP_PAIRS)
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half), _mm256_cvtps_ph(v.low, kRounding));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half + kLanes / 2), _mm256_cvtps_ph(v.high, kRounding));
#else
    for (int i = 0; i < kLanes; ++i) half[i] = float_to_half(v[i]);
#endif
}

static inline Floats load(const uint16_t* half) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
#elif defined(FDLP_PAIRS)
    const auto from = reinterpret_cast<const __m128i*>(half);
    return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
#else
    Floats v;
    for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(half[i]);
    return v;
#endif
}

static inline void add_product(Floats* sum, float a, Floats v) { *sum += splat(a) * v; }

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
#if defined(FDLP_PAIRS)
    const auto from = reinterpret_cast<const __m128i*>(upper);
    const Ints wide{(Ints::Half)_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), (Ints::Half)_mm256_cvtepu16_epi32(_mm_loadu_si128(from + 1))};
#else
    typedef uint16_t Uppers __attribute__((vector_size(32)));
    Uppers v;
    std::memcpy(&v, upper, sizeof v);
    const Ints wide = __builtin_convertvector(v, Ints);
#endif
    return (Floats)(wide << 16);
}

// The upper half of each.
static inline void store_uppers(uint16_t* to, Words v) {
#if defined(FDLP_PAIRS)
    const Words uppers = v >> 16;
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)uppers.low, (__m256i)uppers.high), 0xd8);
    std::memcpy(to, &words, sizeof words);
#else
    typedef uint16_t Uppers __attribute__((vector_size(2 * kLanes)));
    const Uppers uppers = __builtin_convertvector(v >> 16, Uppers);
    std::memcpy(to, &uppers, sizeof uppers);
#endif
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

// To the second-level cache, which can wait for more lines at a time than the first: on Zen 4, attention to contexts in memory took half
// the time, and passes of one row a tenth less.
static inline void prefetch_line(const void* from) { __builtin_prefetch(from, 0, 2); }

static inline void prefetch(const void* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) prefetch_line(static_cast<const char*>(from) + at);
}
