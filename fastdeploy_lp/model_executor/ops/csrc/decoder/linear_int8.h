// Matrix products of weights packed as levels (packed_weights.h) and activations of one or two 8-bit digits, with scales for every group of
// 32 along `in`.
//
// An activation is scale * a with a in -127 … 127 (one digit) or -32512 … 32512 (two), for each row and group. Sums within a group are
// exact integers and groups are added in ascending order, so a row's result has the same bits alone and in any batch.
#pragma once

#include <type_traits>

#include "decoder/quantized_groups.h"

namespace linear_int8 {

// Prefetch distance in groups.
constexpr int kGroupsAhead = 8;

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512VNNI__)
#define FDLP_SHORT_SUMS
#endif

// Rows per pass over a panel: as many as fit their sums in 32 registers; with 16, a few times `max_rows`, for which a group is unpacked
// once.
#if defined(FDLP_SHORT_SUMS)
constexpr int max_tile(int digits) { return digits == 1 ? 8 : 4; }
#else
constexpr int max_tile(int digits) { return digits == 1 ? 6 : 4; }
#endif

#if defined(__AVX512VNNI__)
constexpr const char* kInstructions = "AVX-512 VNNI";
#elif defined(__AVX2__)
constexpr const char* kInstructions = "AVX2";
#else
constexpr const char* kInstructions = "no special instructions";
#endif

// The digits of one row and group times one half panel: an exact integer.
template <int Digits>
static inline Ints combine(const Ints* acc) {
    return Digits == 1 ? acc[0] : acc[0] * 256 + acc[1];
}

// Adds a group to the sums of one row and half panel; every product of a group is added by this code, so that results have the same bits.
template <int Digits, bool has_minima = true>
static inline void add_group(Floats* out, const Ints* acc, Floats scales, Floats minima, float scale, float total) {
    *out = quick_multiply_add(to_floats(combine<Digits>(acc)) * scales, splat(scale), *out);
    if (has_minima) *out = quick_multiply_add(minima, splat(total), *out);
}

#if defined(FDLP_SHORT_SUMS)
constexpr int kColumns = kLanes / 2;

// Levels of 8 bits with one digit are multiplied as -128 … 127, whose products fit 16 bits by twos: 2 * 128 * 127 is below 2^15.
constexpr bool are_signed(int bits, int digits) { return bits == 8 && digits == 1; }
// The number to add to each level after the products, as its product with Σ a.
constexpr int offset_of(packed_weights::Format format, int digits) {
    return are_signed(packed_weights::bits_of(format), digits) ? 128 : -packed_weights::center_of(format);
}

// Rows, and vectors of columns, whose sums are in registers together.
constexpr int max_rows(int bits, int digits) { return bits == 4 ? 4 / digits : digits == 2 ? 2 : bits == 8 ? 4 : 3; }
constexpr int vectors_of(int bits, int digits, int rows) { return bits == 4 || digits == 1 || rows == 1 ? 2 : 1; }

// The factors of every column: 4 consecutive activations.
inline __m256i factors_at(const int8_t* a) {
    int32_t four;
    std::memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
}

// Spelled out, or GCC adds the products of several lines later, for which there are no registers, and moves sums between registers.
inline void add_words(__m256i& sum, __m256i words) { asm volatile("vpaddw %1, %0, %0" : "+x"(sum) : "x"(words)); }
inline void add_integers(__m256i& sum, __m256i integers) { asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(integers)); }

// Sums of products of levels [8 columns][4 k] with a [4 k] for every row, digit and vector of columns, in 16 bits. Levels of 4 bits have
// one sum, those of 5 and 6 bits one for each half of the lines, those of 8 bits one for their low and one for their high 4 bits.
template <int Rows, int Digits, int Vectors, int Bits>
struct LineSums {
    static constexpr int kSums = Bits > 4 ? 2 : 1, kNumbers = Bits == 8 ? 2 : 1, kHalves = kSums / kNumbers;
    // Lines whose products surely fit a sum.
    static constexpr int kFitting = (1 << 15) / (2 * 128 * ((1 << (kNumbers > 1 ? 4 : Bits)) - 1));
    __m256i of[Vectors][Rows][Digits][kSums] = {};

    // `stride` is the bytes from one row of activations to the next one.
    template <int first>
    void add(const uint8_t* line, const int8_t* a, int64_t stride) {
        const __m256i digit = _mm256_set1_epi8(15);
        __m256i numbers[Vectors][kNumbers];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const __m256i levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + v * 4 * kColumns));
            numbers[v][0] = kNumbers > 1 ? _mm256_and_si256(levels, digit) : levels;
            if (kNumbers > 1) numbers[v][kNumbers - 1] = _mm256_and_si256(_mm256_srli_epi16(levels, 4), digit);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
            for (int d = 0; d < Digits; ++d) {
                const __m256i factors = factors_at(a + r * stride + d * kGroup);
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v)
#pragma GCC unroll 2
                    for (int n = 0; n < kNumbers; ++n) add_words(of[v][r][d][first + n], _mm256_maddubs_epi16(numbers[v][n], factors));
            }
    }

    __m256i total(int v, int r, int d) const {
        const __m256i first = _mm256_madd_epi16(of[v][r][d][0], _mm256_set1_epi16(1));
        if (kSums == 1) return first;
        return _mm256_add_epi32(first, _mm256_madd_epi16(of[v][r][d][kSums - 1], _mm256_set1_epi16(kNumbers > 1 ? 16 : 1)));
    }
};

// The same for levels that are signed, in 32 bits: products of sizes, which are unsigned, with factors that have got the levels' signs.
template <int Rows, int Vectors>
struct SignedSums {
    static constexpr int kHalves = 1, kFitting = packed_weights::kLines;
    __m256i of[Vectors][Rows] = {};

    template <int>
    void add(const uint8_t* line, const int8_t* a, int64_t stride) {
        __m256i levels[Vectors], sizes[Vectors];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const __m256i unsigned_levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + v * 4 * kColumns));
            levels[v] = _mm256_xor_si256(unsigned_levels, _mm256_set1_epi8(-128));
            sizes[v] = _mm256_abs_epi8(levels[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const __m256i factors = factors_at(a + r * stride);
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                const __m256i pairs = _mm256_maddubs_epi16(sizes[v], _mm256_sign_epi8(factors, levels[v]));
                add_integers(of[v][r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    }

    __m256i total(int v, int r, int) const { return of[v][r]; }
};

// Adds `count` lines to the sum `first`.
template <int first, int count, int Rows, class Sums>
inline void add_lines(Sums* sums, const uint8_t* lines, const int8_t* a, int64_t stride) {
    if (Rows == 1) {
#pragma GCC unroll 8
        for (int line = 0; line < count; ++line) sums->template add<first>(lines + line * packed_weights::kLine, a + line * 4, stride);
        return;
    }
#pragma GCC unroll 2
    for (int line = 0; line < count; ++line) {
        sums->template add<first>(lines + line * packed_weights::kLine, a + line * 4, stride);
        // GCC would keep the factors of later lines, for which there are no registers either.
        asm volatile("" : : : "memory");
    }
}

// As `add_group` of 16 columns. Multiply-adds are spelled out: GCC would choose others for one row than for several.
template <int Digits, bool has_minima>
static inline void add_group(__m256* out, const __m256i* acc, __m256 scales, __m256 minima, float scale, float total) {
    const __m256i whole = Digits == 1 ? acc[0] : _mm256_add_epi32(_mm256_slli_epi32(acc[0], 8), acc[Digits - 1]);
    *out = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(whole), scales), _mm256_set1_ps(scale), *out);
    if (has_minima) *out = _mm256_fmadd_ps(minima, _mm256_set1_ps(total), *out);
}

// A part of a group of half a panel, its lines unpacked, with the scales and minima of its two vectors of columns.
struct HalfPart {
    const uint8_t* lines;
    int group, part;
    __m256 scales[2], minima[2];
};

// Adds it to `out` [row][vector] for the rows from `first` on. `groups` is also the stride of scale and total.
template <int Rows, int Digits, packed_weights::Format format>
inline void add_part(const Activations& x, int groups, int first, const HalfPart& from, __m256 (*out)[2]) {
    constexpr int kStep = Digits * kGroup, kLines = packed_weights::kLines / packed_weights::parts_of(format);
    constexpr int kBits = packed_weights::bits_of(format), kVectors = vectors_of(kBits, Digits, Rows), kOffset = offset_of(format, Digits);
    const int64_t stride = static_cast<int64_t>(groups) * kStep;
    const int8_t* a = x.q + first * stride + static_cast<int64_t>(from.group) * kStep + from.part * kLines * 4;
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; vector += kVectors) {
        std::conditional_t<are_signed(kBits, Digits), SignedSums<Rows, kVectors>, LineSums<Rows, Digits, kVectors, kBits>> sums;
        constexpr int kTogether = kLines / decltype(sums)::kHalves;
        static_assert(kTogether <= decltype(sums)::kFitting, "the sums would overflow");
        const uint8_t* lines = from.lines + vector * 4 * kColumns;
        add_lines<0, kTogether, Rows>(&sums, lines, a, stride);
        if constexpr (kTogether < kLines)
            add_lines<1, kTogether, Rows>(&sums, lines + kTogether * packed_weights::kLine, a + kTogether * 4, stride);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const int at = (first + r) * groups + from.group;
            const __m256i offset =
                _mm256_set1_epi32(kOffset == 0 ? 0 : kOffset * x.sum_of(at, from.part, packed_weights::parts_of(format)));
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                __m256i acc[Digits];
#pragma GCC unroll 2
                for (int d = 0; d < Digits; ++d) acc[d] = sums.total(v, r, d);
                if (kOffset != 0) acc[Digits - 1] = _mm256_add_epi32(acc[Digits - 1], offset);
                add_group<Digits, packed_weights::center_of(format) == 0>(&out[first + r][vector + v], acc, from.scales[vector + v],
                                                                          from.minima[vector + v], x.scale[at], x.total[at]);
            }
        }
    }
}

// One panel for `Rows` rows: sums[row] holds its 32 columns. `prefetcher` prefetches memory that is needed later, a little with each group.
template <int Rows, int Digits, packed_weights::Format format, class Prefetcher>
inline void multiply(const Activations& x, int groups, const uint8_t* panel, Prefetcher& prefetcher, Floats (*sums)[2]) {
    constexpr int kShare = packed_weights::group_share(format), kParts = packed_weights::parts_of(format);
    constexpr int kLinesOfPart = packed_weights::kLines / kParts, kMost = max_rows(packed_weights::bits_of(format), Digits);
    // Rows in parts of equal height, the last one lower.
    constexpr int kCount = (Rows + kMost - 1) / kMost, kRows = (Rows + kCount - 1) / kCount, kLast = Rows % kRows;
    alignas(64) uint8_t room[packed_weights::kLines * packed_weights::kLine];
    __m256 out[2][Rows][2] = {};
    for (int g = 0; g < groups; ++g) {
        prefetcher.ask(panel + static_cast<int64_t>(g + kGroupsAhead) * kShare, kShare);
        const auto group = packed_weights::PanelGroup<format>::of(panel, g);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const packed_weights::HalfGroup<format> from = group.half(half);
            const uint8_t* lines = from.all_lines(room);
            // Otherwise GCC would take the lines from registers, of which there are too few.
            if (Rows > 1) asm("" : "+r"(lines) : : "memory");
            for (int part = 0; part < kParts; ++part) {
                const Floats scales = from.scales(part), minima = from.minima(part);
                const HalfPart now{lines + part * kLinesOfPart * packed_weights::kLine,
                                   g,
                                   part,
                                   {half_of(scales, 0), half_of(scales, 1)},
                                   {half_of(minima, 0), half_of(minima, 1)}};
#pragma GCC unroll 1
                for (int first = 0; first + kRows <= Rows; first += kRows)
                    add_part<kRows, Digits, format>(x, groups, first, now, out[half]);
                if constexpr (kLast > 0) add_part<kLast, Digits, format>(x, groups, Rows - kLast, now, out[half]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r)
        for (int half = 0; half < 2; ++half) sums[r][half] = joined(out[half][r][0], out[half][r][1]);
}
#else
constexpr int offset_of(packed_weights::Format format, int) { return -packed_weights::center_of(format); }

// acc + Σ over 4 consecutive k of q [16][4] * a [4].
static inline Ints dot4(Ints acc, Bytes q, const int8_t* a) {
    int32_t four;
    std::memcpy(&four, a, sizeof four);
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)q, _mm512_set1_epi32(four));
#else
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) acc[lane] += static_cast<int32_t>(q[4 * lane + i]) * a[i];
    return acc;
#endif
}

// The same.
template <int Rows, int Digits, packed_weights::Format format, class Prefetcher>
inline void multiply(const Activations& x, int groups, const uint8_t* panel, Prefetcher& prefetcher, Floats (*sums)[2]) {
    constexpr int kStep = Digits * kGroup, kShare = packed_weights::group_share(format);
    constexpr int kPairs = packed_weights::kLines / 2, kParts = packed_weights::parts_of(format),
                  kCenter = packed_weights::center_of(format);
    Floats out[Rows][2];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) out[r][0] = out[r][1] = Floats{};
    for (int g = 0; g < groups; ++g) {
        prefetcher.ask(panel + static_cast<int64_t>(g + kGroupsAhead) * kShare, kShare);
        const auto group = packed_weights::PanelGroup<format>::of(panel, g);
        const packed_weights::HalfGroup<format> halves[2] = {group.half(0), group.half(1)};
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
            Ints acc[Rows][2][Digits] = {};
#pragma GCC unroll 8
            for (int r = 0; r < Rows && kCenter > 0; ++r)
                acc[r][0][Digits - 1] = acc[r][1][Digits - 1] = Ints{} - kCenter * x.sums[(r * groups + g) * 2 + part];
#pragma GCC unroll 4
            for (int pair = 0; pair < kPairs; ++pair) {
                Bytes lines[2][2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) halves[half].lines(pair, &lines[0][half], &lines[1][half]);
                // Of two parts, the first one has the first lines.
#pragma GCC unroll 2
                for (int of = kParts == 1 ? 0 : part; of < (kParts == 1 ? 2 : part + 1); ++of)
#pragma GCC unroll 8
                    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
                        for (int d = 0; d < Digits; ++d) {
                            const int8_t* a = x.q + (static_cast<int64_t>(r) * groups + g) * kStep + d * kGroup + (pair + of * kPairs) * 4;
                            acc[r][0][d] = dot4(acc[r][0][d], lines[of][0], a);
                            acc[r][1][d] = dot4(acc[r][1][d], lines[of][1], a);
                        }
            }
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const Floats scales = halves[half].scales(part), minima = halves[half].minima(part);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r)
                    add_group<Digits, kCenter == 0>(&out[r][half], acc[r][half], scales, minima, x.scale[r * groups + g],
                                                    x.total[r * groups + g]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) sums[r][0] = out[r][0], sums[r][1] = out[r][1];
}
#endif

}  // namespace linear_int8
