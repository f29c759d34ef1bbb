// Sums of products of numbers and vectors: several rows of numbers, each times the same vectors.
#pragma once

#include "simd.h"

// Sums [Rows][Count] of vectors, which stay in registers while products are added to them. With pairs of registers, each of a pair is
// loaded when it is needed: beside 3 rows of 2 vectors there is a register for one, and GCC would keep sums in memory.
template <int Rows, int Count>
class ProductSums {
   public:
    // Adds factors[row * stride] times the vector at from[i] to each sum.
    template <class Element>
    [[gnu::always_inline]] void add(const float* factors, int64_t stride, const Element* const (&from)[Count]) {
        if constexpr (kOfVector > 1 && Rows <= kParts) {
            Part splats[Rows];
#pragma GCC unroll 6
            for (int r = 0; r < Rows; ++r) splats[r] = splat_part(factors[r * stride]);
#pragma GCC unroll 12
            for (int i = 0; i < kParts; ++i) {
                const Part part = load_part(from[i / kOfVector] + i % kOfVector * kLanesOfPart);
#pragma GCC unroll 6
                for (int r = 0; r < Rows; ++r) sums_[r][i] = multiply_add(splats[r], part, sums_[r][i]);
            }
        } else {
            // Here it is the vectors that stay, and one factor after another is read.
            Part parts[kParts];
#pragma GCC unroll 12
            for (int i = 0; i < kParts; ++i) parts[i] = load_part(from[i / kOfVector] + i % kOfVector * kLanesOfPart);
#pragma GCC unroll 6
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 12
                for (int i = 0; i < kParts; ++i) sums_[r][i] = multiply_add(splat_part(factors[r * stride]), parts[i], sums_[r][i]);
        }
    }

#if defined(FDLP_PAIRS)
    Floats of(int row, int i) const { return {sums_[row][2 * i], sums_[row][2 * i + 1]}; }

   private:
    typedef __m256 Part;
    static Part load_part(const float* from) { return _mm256_loadu_ps(from); }
    static Part load_part(const uint16_t* half) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half))); }
    static Part splat_part(float x) { return _mm256_set1_ps(x); }
    static Part multiply_add(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
#else
    Floats of(int row, int i) const { return sums_[row][i]; }

   private:
    typedef Floats Part;
    template <class Element>
    static Part load_part(const Element* from) {
        return load(from);
    }
    static Part splat_part(float x) { return splat(x); }
    static Part multiply_add(Part a, Part b, Part c) { return quick_multiply_add(a, b, c); }
#endif
    static constexpr int kOfVector = sizeof(Floats) / sizeof(Part), kParts = Count * kOfVector, kLanesOfPart = kLanes / kOfVector;

    Part sums_[Rows][kParts] = {};
};
