// Matrix products of activations rounded to bfloat16 and weights packed in it (packed_weights.h), with float32 sums.
//
// The order of sums is the one of matrix units (TDPBF16PS): of every group of 32 inputs, the even and the odd ones are two chains of
// multiply-adds from zero in ascending order; then the sum of both is added to the output. AVX512-BF16 (VDPBF16PS) does two steps of a
// chain at a time. A product of two bfloat16 is exact in float32, so float32 multiply-adds give the same bits. Denormals count as zero
// before and after each operation (denormals.h). NaN is NaN, whatever its bits.
#pragma once

#include "decoder/packed_weights.h"

namespace linear_bfloat16 {

using packed_weights::kGroup;
using packed_weights::kLine;

// Rows per pass over a panel: their 4 chains and the weights of 4 inputs fit 32 registers.
constexpr int kMaxTile = 6;
// Prefetch distance in bytes.
constexpr int kBytesAhead = 8192;
// Prefetches per group.
constexpr int kAsks = 8;

#if defined(__AVX512BF16__)

// Of 4 inputs in a row the bfloat16 of number 2, 0, 3, 1: two words, each with two steps of a chain as VDPBF16PS takes them.
using Element = uint16_t;

inline void store_rounded(uint16_t* to, Floats values) {
    typedef uint16_t Uppers __attribute__((vector_size(2 * kLanes)));
    const Uppers uppers = __builtin_convertvector((Words)round_to_bfloat16(values) >> 16, Uppers);
    const Uppers order = {2, 0, 3, 1, 6, 4, 7, 5, 10, 8, 11, 9, 14, 12, 15, 13};
    const Uppers ordered = __builtin_shuffle(uppers, order);
    std::memcpy(to, &ordered, sizeof ordered);
}

// Both chains of one row and 16 columns.
struct Chains {
    Floats even{}, odd{};

    // Weights of 4 inputs and 16 columns.
    struct Weights {
        __m512bh even, odd;

        Weights(Words first, Words second)
            : even((__m512bh)_mm512_mask_blend_epi16(kUpper, (__m512i)second, (__m512i)(first << 16))),
              odd((__m512bh)_mm512_mask_blend_epi16(kUpper, (__m512i)(second >> 16), (__m512i)first)) {}

       private:
        static constexpr __mmask32 kUpper = 0xaaaaaaaa;
    };
    struct Inputs {
        __m512bh even, odd;

        explicit Inputs(const uint16_t* x) : even(broadcast(x)), odd(broadcast(x + 2)) {}

       private:
        static __m512bh broadcast(const uint16_t* x) {
            int32_t word;
            std::memcpy(&word, x, sizeof word);
            return (__m512bh)_mm512_set1_epi32(word);
        }
    };

    // Adds the product of the upper halves, then that of the lower ones.
    void add(const Inputs& x, const Weights& w) {
        even = (Floats)_mm512_dpbf16_ps((__m512)even, x.even, w.even);
        odd = (Floats)_mm512_dpbf16_ps((__m512)odd, x.odd, w.odd);
    }
};

#else

using Element = float;

inline void store_rounded(float* to, Floats values) { store(to, round_to_bfloat16(values)); }

struct Chains {
    Floats even{}, odd{};

    struct Weights {
        Floats values[4];

        Weights(Words first, Words second)
            : values{first_of_pairs(first), second_of_pairs(first), first_of_pairs(second), second_of_pairs(second)} {}
    };
    struct Inputs {
        const float* x;

        explicit Inputs(const float* values) : x(values) {}
    };

    void add(const Inputs& a, const Weights& w) {
        even += splat(a.x[0]) * w.values[0], odd += splat(a.x[1]) * w.values[1];
        even += splat(a.x[2]) * w.values[2], odd += splat(a.x[3]) * w.values[3];
    }
};

#endif

// Rounds `n` activations from the start of a group; zeros fill the last group up.
inline void round_groups(const float* x, int n, Element* to) {
    for (int k = 0; k < (n + kGroup - 1) / kGroup * kGroup; k += kLanes) store_rounded(to + k, load_first(x + k, n - k));
}

// One panel for `Rows` rows of x [..][groups * 32]: sums[row] holds its 32 columns. `prefetcher` as in linear_int8.h.
template <int Rows, class Prefetcher>
inline void multiply(const Element* x, int groups, const uint8_t* panel, Prefetcher& prefetcher, Floats (*sums)[2]) {
    constexpr int kLineOfNext = 2 * kLine, kStepBytes = 4 * kLine, kSteps = kGroup / 4;
    const int64_t stride = static_cast<int64_t>(groups) * kGroup;
    Floats out[Rows][2] = {};
    for (int g = 0; g < groups; ++g, x += kGroup) {
        Chains chains[Rows][2];
        for (int step = 0; step < kSteps; ++step, panel += kStepBytes) {
            if (step % (kSteps / kAsks) == 0) prefetcher.ask(panel + kBytesAhead, kGroup * kLine / kAsks);
            const Chains::Weights low((Words)load(panel), (Words)load(panel + kLineOfNext));
            const Chains::Weights high((Words)load(panel + kLine), (Words)load(panel + kLine + kLineOfNext));
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Chains::Inputs inputs(x + r * stride + 4 * step);
                chains[r][0].add(inputs, low);
                chains[r][1].add(inputs, high);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) out[r][half] += chains[r][half].even + chains[r][half].odd;
    }
    for (int r = 0; r < Rows; ++r) sums[r][0] = out[r][0], sums[r][1] = out[r][1];
}

}  // namespace linear_bfloat16
