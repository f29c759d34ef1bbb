// The instructions of `kernels/attention/instructions.cuh` on the CPU, as NVIDIA's PTX ISA defines them.
#pragma once

#include "block.cuh"

struct alignas(8) float2 {
    float x, y;
};

namespace fdlp {

inline unsigned char* launch_memory() { return reinterpret_cast<unsigned char*>(shim::running()->memory.data()); }

inline float value_of_bf16(u32 bits) { return with_bits_of<float>(bits << 16); }
inline float value_of_f16(u32 bits) { return static_cast<float>(with_bits_of<_Float16>(static_cast<unsigned short>(bits))); }

inline unsigned short to_bf16(float x) {
    const u32 bits = with_bits_of<u32>(x), kept = bits & 0xffff0000u, rest = bits & 0xffffu;
    if (x != x) return 0x7fff;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (kept & 0x10000u) != 0);
    return static_cast<unsigned short>((kept >> 16) + up);
}

inline u32 pair_bf16(float first, float second) { return to_bf16(first) | static_cast<u32>(to_bf16(second)) << 16; }
inline u32 pair_f16(float first, float second) {
    const _Float16 halves[2] = {static_cast<_Float16>(first), static_cast<_Float16>(second)};
    return with_bits_of<unsigned short>(halves[0]) | static_cast<u32>(with_bits_of<unsigned short>(halves[1])) << 16;
}

// What this lane's numbers point to is what the other lanes of the warp see; `act` reads it by lane.
template <class Given, class Act>
void with_lanes(int line, const Given& mine, const Act& act) {
    shim::wait(shim::State::kWarp, line, reinterpret_cast<uint64_t>(&mine));
    const uint64_t* lanes = &shim::running()->of_warps[shim::self().thread.x / shim::kWarp * shim::kWarp];
    act([&](int lane) -> const Given& { return *reinterpret_cast<const Given*>(lanes[lane]); });
    // Until every lane has read what all gave.
    shim::wait(shim::State::kWarp, line, 0);
}

struct Factors {
    u32 a[4], b[2];
};

template <class ValueOf>
void multiply(int line, float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], const ValueOf& value_of) {
    with_lanes(line, Factors{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, [&](const auto& of_lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
            double sum = static_cast<double>(sums[i]);
            for (int k = 0; k < 16; ++k) {
                const u32 left = of_lane(row % 8 * 4 + k % 8 / 2).a[k / 8 * 2 + row / 8] >> (k % 2 * 16) & 0xffffu;
                const u32 right = of_lane(column * 4 + k % 8 / 2).b[k / 8] >> (k % 2 * 16) & 0xffffu;
                sum += static_cast<double>(value_of(left)) * static_cast<double>(value_of(right));
            }
            sums[i] = static_cast<float>(sum);
        }
    });
}
inline void multiply_bf16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { multiply(__LINE__, sums, a, b, value_of_bf16); }
inline void multiply_f16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) { multiply(__LINE__, sums, a, b, value_of_f16); }

inline void load_matrices(u32 (&to)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) shim::running()->error = "a row of a matrix is not aligned";
    with_lanes(__LINE__, static_cast<const u32*>(row), [&](const auto& of_lane) {
        for (int i = 0; i < 4; ++i) to[i] = of_lane(8 * i + lane() / 4)[lane() % 4];
    });
}
inline void load_transposed(u32 (&to)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) shim::running()->error = "a row of a matrix is not aligned";
    with_lanes(__LINE__, static_cast<const unsigned short*>(row), [&](const auto& of_lane) {
        for (int i = 0; i < 4; ++i) {
            const int first = 8 * i + lane() % 4 * 2;
            to[i] = of_lane(first)[lane() / 4] | static_cast<u32>(of_lane(first + 1)[lane() / 4]) << 16;
        }
    });
}

inline float power_of_2(float x) { return exp2f(x); }

// Until the copies are waited for, NaN is there, in any element type.
inline void copy_later(void* to, const void* from, bool there) {
    memset(to, 0xff, 16);
    shim::self().copies.push_back({to, from, there});
}
inline void end_copies() {
    auto& fiber = shim::self();
    fiber.ended_copies.insert(fiber.ended_copies.end(), fiber.copies.begin(), fiber.copies.end());
    fiber.copies.clear();
}
inline void wait_for_copies() {
    for (const shim::Copy& copy : shim::self().ended_copies) {
        if (copy.there) {
            memcpy(copy.to, copy.from, 16);
        } else {
            memset(copy.to, 0, 16);
        }
    }
    shim::self().ended_copies.clear();
}

}  // namespace fdlp
