// Instructions of a GPU for which C++ has no expression. The CPU's stand-in for a GPU has a file of the same name.
#pragma once

#include "block.cuh"

namespace fdlp {

// Shared memory of the size that the launch asks for.
__device__ inline unsigned char* launch_memory() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<unsigned char*>(memory);
}

__device__ inline u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// One instruction of a warp: sums float32 [16, 8] += a [16, 16] * b [16, 8]. Each lane has a part of every operand; the layout is that
// of "mma.m16n8k16" in NVIDIA's PTX ISA.
#define FDLP_MULTIPLY(type)                                                                                                            \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ inline void multiply_bf16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { FDLP_MULTIPLY(bf16); }
__device__ inline void multiply_f16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { FDLP_MULTIPLY(f16); }
#undef FDLP_MULTIPLY

// Four matrices [8, 8] of 16-bit elements in shared memory. Lane 8 i + r has the address of row r of matrix i, which is aligned to 16
// bytes; to[i] is the pair of columns 2 (lane % 4) and 1 after it of row lane / 4 of matrix i, or of its transpose.
__device__ inline void load_matrices(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void load_transposed(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Two numbers to the nearest elements, of two equally near ones to the even one; the first is the lower half.
__device__ inline u32 pair_bf16(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
__device__ inline u32 pair_f16(float first, float second) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// 2^x, to about a bit; 0 where that is below the normal numbers.
__device__ inline float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// Copies 16 bytes to shared memory while this thread goes on; zeros unless `there`. The copies up to a call of `end_copies` are a group.
__device__ inline void copy_later(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

}  // namespace fdlp
