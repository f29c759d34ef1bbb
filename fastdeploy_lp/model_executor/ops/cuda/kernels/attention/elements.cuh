// Element types of queries, keys and values, and products of small matrices of them on tensor cores.
//
// A pair holds two neighboring elements: operands of a product are pairs. Conversions are operations on bits, since the runtime
// compiler has no header of these types.
#pragma once

#include "block.cuh"

// One instruction of a warp: sums float32 [16, 8] += a [16, 16] * b [16, 8]. Each lane has a part of every operand; the layout is that
// of "mma.m16n8k16" in NVIDIA's PTX ISA, and the CPU's stand-in for a GPU defines it the same way.
#if !defined(FDLP_MULTIPLY)
#define FDLP_MULTIPLY(type, sums, a, b)                                                                                                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#endif

namespace fdlp {

__device__ inline u32 packed(u32 first, u32 second) { return first | second << 16; }

// The first elements of two pairs, and the second ones.
__device__ inline void interleave(u32 a, u32 b, u32& first, u32& second) {
    first = packed(a & 0xffffu, b & 0xffffu);
    second = packed(a >> 16, b >> 16);
}

struct Bfloat16 {
    typedef unsigned short Stored;
    typedef u32 Pair;

    __device__ static float value(Stored bits) { return with_bits_of<float>(static_cast<u32>(bits) << 16); }

    // To the nearest, of two equally near ones to the even one.
    __device__ static Stored rounded(float x) {
        const u32 bits = with_bits_of<u32>(x);
        if (x != x) return static_cast<Stored>(bits >> 16 | 0x40u);
        return static_cast<Stored>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }

    __device__ static Pair pair(float first, float second) { return packed(rounded(first), rounded(second)); }

    __device__ static void multiply(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) { FDLP_MULTIPLY(bf16, sums, a, b); }
};

struct Float16 {
    typedef unsigned short Stored;
    typedef u32 Pair;

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

    __device__ static Pair pair(float first, float second) { return packed(rounded(first), rounded(second)); }

    __device__ static void multiply(float (&sums)[4], const Pair (&a)[4], const Pair (&b)[2]) { FDLP_MULTIPLY(f16, sums, a, b); }
};

struct Floats {
    float first, second;
};

__device__ inline void interleave(const Floats& a, const Floats& b, Floats& first, Floats& second) {
    first = {a.first, b.first};
    second = {a.second, b.second};
}

// Tensor cores would round the factors, so lanes exchange them: far slower, and no model is served in this type on a GPU yet.
struct Float32 {
    typedef float Stored;
    typedef Floats Pair;

    __device__ static float value(Stored x) { return x; }
    __device__ static Stored rounded(float x) { return x; }
    __device__ static Pair pair(float first, float second) { return {first, second}; }

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

// Neighboring pairs, loaded and stored at once.
template <class Element, int kPairs>
struct alignas(kPairs * sizeof(typename Element::Pair)) Pairs {
    typename Element::Pair at[kPairs];
};

// Zeros unless `there`: memory that is not there is not read.
template <class Element, int kPairs>
__device__ Pairs<Element, kPairs> load(const typename Element::Stored* from, bool there) {
    Pairs<Element, kPairs> loaded = {};
    if (there) loaded = *reinterpret_cast<const Pairs<Element, kPairs>*>(from);
    return loaded;
}

}  // namespace fdlp
