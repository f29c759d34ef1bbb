// Element types of queries, keys and values, and products of small matrices of them on tensor cores.
//
// A pair holds two neighboring elements: operands of a product are pairs. Conversions are operations on bits, since the runtime
// compiler has no header of these types.
#pragma once

#include "instructions.cuh"

namespace fdlp {

// Factors of products with 16-bit elements, from tiles in shared memory. `Tiles` has the places of units of 8 elements.
struct Halves {
    typedef unsigned short Stored;
    typedef u32 Pair;

    // b[i]: of rows from row + 8 i on, 16 elements from `element` on, as the second factor of a product with their sums.
    template <class Tiles>
    __device__ static void rows(Pair (&b)[2][2], const Stored* tile, int row, int element) {
        const int mine = row + lane() / 16 * 8 + lane() % 8, unit = element / 8 | (lane() / 8 & 1);
        load_matrices(reinterpret_cast<u32(&)[4]>(b), tile + Tiles::place(mine, unit));
    }

    // b[i]: of 16 rows from `row` on, 8 elements from element + 8 i on, as the second factor of a product with sums of rows.
    template <class Tiles>
    __device__ static void columns(Pair (&b)[2][2], const Stored* tile, int row, int element) {
        const int mine = row + lane() % 16, unit = element / 8 | lane() / 16;
        load_transposed(reinterpret_cast<u32(&)[4]>(b), tile + Tiles::place(mine, unit));
    }
};

struct Bfloat16 : Halves {
    __device__ static float value(Stored bits) { return with_bits_of<float>(static_cast<u32>(bits) << 16); }

    // To the nearest, of two equally near ones to the even one.
    __device__ static Stored rounded(float x) {
        const u32 bits = with_bits_of<u32>(x);
        if (x != x) return static_cast<Stored>(bits >> 16 | 0x40u);
        return static_cast<Stored>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }

    __device__ static Pair pair(float first, float second) { return pair_bf16(first, second); }

    __device__ static void multiply(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) { multiply_bf16(sums, a, b); }
};

struct Float16 : Halves {
    __device__ static float value(Stored stored) {
        const u32 sign = (stored & 0x8000u) << 16, magnitude = (stored & 0x7fffu) << 13;
        if ((stored & 0x7c00u) == 0x7c00u) return with_bits_of<float>(sign | 0x7f800000u | magnitude);
        // 2^112: the exponents of both types begin 112 apart.
        const float scaled = with_bits_of<float>(magnitude) * with_bits_of<float>(0x77800000u);
        return with_bits_of<float>(sign | with_bits_of<u32>(scaled));
    }

    // As for Bfloat16.
    __device__ static Stored rounded(float x) {
        const u32 bits = with_bits_of<u32>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return static_cast<Stored>(sign | 0x7e00u);
        if (magnitude >= 0x477ff000u) return static_cast<Stored>(sign | 0x7c00u);
        // Below the normal numbers, the steps of the type are those of floats from 0.5 on.
        if (magnitude < 0x38800000u)
            return static_cast<Stored>(sign | (with_bits_of<u32>(with_bits_of<float>(magnitude) + 0.5f) - 0x3f000000u));
        return static_cast<Stored>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
    }

    __device__ static Pair pair(float first, float second) { return pair_f16(first, second); }

    __device__ static void multiply(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) { multiply_f16(sums, a, b); }
};

struct Floats {
    float first, second;
};

// Tensor cores would round the factors, so lanes exchange them: far slower, and no model is served in this type on a GPU yet.
struct Float32 {
    typedef float Stored;
    typedef Floats Pair;

    __device__ static float value(Stored x) { return x; }
    __device__ static Stored rounded(float x) { return x; }
    __device__ static Pair pair(float first, float second) { return {first, second}; }

    // As those of `Halves`; lane l has element or row 2 (l % 4) and 1 after it of the first 8, and of the next 8.
    template <class Tiles>
    __device__ static void rows(Pair (&b)[2][2], const Stored* tile, int row, int element) {
        for (int i = 0; i < 2; ++i) {
            for (int half = 0; half < 2; ++half) {
                const int mine = row + 8 * i + lane() / 4, at = element + 8 * half + 2 * (lane() % 4);
                const Stored* two = tile + Tiles::place(mine, at / 4) + at % 4;
                b[i][half] = {two[0], two[1]};
            }
        }
    }

    template <class Tiles>
    __device__ static void columns(Pair (&b)[2][2], const Stored* tile, int row, int element) {
        for (int i = 0; i < 2; ++i) {
            for (int half = 0; half < 2; ++half) {
                const int mine = row + 8 * half + 2 * (lane() % 4), at = element + 8 * i + lane() / 4;
                b[i][half] = {tile[Tiles::place(mine, at / 4) + at % 4], tile[Tiles::place(mine + 1, at / 4) + at % 4]};
            }
        }
    }

    // A function of its own: as a part of its callers it compiles for minutes.
    __device__ __noinline__ static void multiply(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) {
        const int row = lane() / 4 * 4, column = lane() % 4 * 8;
        for (int half = 0; half < 2; ++half) {
            for (int k = 0; k < 4; ++k) {
                add(sums, a[2 * half].first, a[2 * half + 1].first, b[half].first, row + k, column + k);
                add(sums, a[2 * half].second, a[2 * half + 1].second, b[half].second, row + k, column + k);
            }
        }
    }

   private:
    // One of the 16 products of each sum; the factors are those of lane `row` and of lanes `column` and four after it.
    __device__ static void add(float (&sums)[4], float upper, float lower, float right, int row, int column) {
        upper = __shfl_sync(kEveryLane, upper, row);
        lower = __shfl_sync(kEveryLane, lower, row);
        const float here = __shfl_sync(kEveryLane, right, column), next = __shfl_sync(kEveryLane, right, column + 4);
        sums[0] = fmaf(upper, here, sums[0]);
        sums[1] = fmaf(upper, next, sums[1]);
        sums[2] = fmaf(lower, here, sums[2]);
        sums[3] = fmaf(lower, next, sums[3]);
    }
};

// Neighboring elements, loaded and stored at once.
template <class Element>
struct alignas(8 * sizeof(typename Element::Stored)) Eight {
    typename Element::Stored at[8];
};

}  // namespace fdlp
