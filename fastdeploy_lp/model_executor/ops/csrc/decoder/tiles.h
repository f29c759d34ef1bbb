// Tile registers and their matrix products: Intel AMX, and the same instructions emulated in plain C++ with the same bits.
//
// A kernel is written once, with the instructions as a template parameter (`Amx` or `Emulated`). Tiles are 0 … 7.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The library is compiled with -march=native, so these macros mean that compiler and processor both have the instructions.
#if defined(__x86_64__) && defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define FDLP_AMX 1
#endif

namespace tiles {

constexpr int kTiles = 8, kMaxRows = 16, kMaxRowBytes = 64;

// Sizes of the tiles, as the instruction LDTILECFG reads them.
struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    constexpr void set(int tile, int height, int bytes) {
        rows[tile] = static_cast<uint8_t>(height), row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};
static_assert(sizeof(Configuration) == 64, "LDTILECFG reads 64 bytes");

#if defined(FDLP_AMX)

// Assembly instead of the compiler's macros: those of GCC do not name the memory that is read, so that stores to it may move past them.
struct Amx {
    static void configure(const Configuration& c) { asm volatile("ldtilecfg %0" ::"m"(c)); }
    static void release() { asm volatile("tilerelease"); }

    template <int tile>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(tile));
    }

    // Row i at from + i * stride.
    template <int tile>
    static void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile), "m"(*static_cast<const uint8_t(*)[]>(from)));
    }

    template <int tile>
    static void store(void* to, int64_t stride) {
        asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(*static_cast<uint8_t(*)[]>(to)) : "r"(to), "r"(stride), "i"(tile));
    }

    // sums += a * b, with a [rows][inputs] of signed and b [inputs / 4][columns][4] of unsigned bytes, sums of 32 bits.
    template <int sums, int a, int b>
    static void multiply_int8() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
    }

    // sums += a * b, with a [rows][inputs] and b [inputs / 2][columns][2] of bfloat16, sums of float32. See `Emulated` for the order.
    template <int sums, int a, int b>
    static void multiply_bfloat16() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
    }
};

#endif

// The same on any processor. What the processor refuses with a fault ends the process here too.
class Emulated {
   public:
    static void configure(const Configuration& c) {
        require(c.palette == 1 && c.start_row == 0, "the palette is 1");
        for (const uint8_t byte : c.reserved) require(byte == 0, "reserved bytes are 0");
        for (int tile = 0; tile < 16; ++tile) {
            require((c.rows[tile] == 0) == (c.row_bytes[tile] == 0), "a tile has rows and columns or neither");
            require(c.rows[tile] <= (tile < kTiles ? kMaxRows : 0) && c.row_bytes[tile] <= kMaxRowBytes, "a tile has 16 rows of 64 bytes");
        }
        state() = State{c, true, {}};
    }

    static void release() { state() = State{}; }

    template <int tile>
    static void zero() {
        State& s = state();
        require(s.configured && s.shape.rows[tile] > 0, "the tile is configured");
        std::memset(s.tile[tile], 0, sizeof s.tile[tile]);
    }

    template <int tile>
    static void load(const void* from, int64_t stride) {
        zero<tile>();
        State& s = state();
        for (int row = 0; row < s.shape.rows[tile]; ++row)
            std::memcpy(s.tile[tile][row], static_cast<const uint8_t*>(from) + row * stride, s.shape.row_bytes[tile]);
    }

    template <int tile>
    static void store(void* to, int64_t stride) {
        const State& s = state();
        require(s.configured && s.shape.rows[tile] > 0, "the tile is configured");
        for (int row = 0; row < s.shape.rows[tile]; ++row)
            std::memcpy(static_cast<uint8_t*>(to) + row * stride, s.tile[tile][row], s.shape.row_bytes[tile]);
    }

    template <int sums, int a, int b>
    static void multiply_int8() {
        each_row<sums, a, b, int32_t>([](int32_t* to, int columns, const uint8_t* left, int bytes, const uint8_t(*right)[kMaxRowBytes]) {
            for (int k = 0; k < bytes; ++k)
                for (int n = 0; n < columns; ++n) to[n] += static_cast<int8_t>(left[k]) * static_cast<int32_t>(right[k / 4][4 * n + k % 4]);
        });
    }

    // A row's products with even inputs are one chain of multiply-adds and those with odd inputs another; their sum is added to `sums`.
    // Denormal numbers count as zero, and denormal results are zero.
    template <int sums, int a, int b>
    static void multiply_bfloat16() {
        each_row<sums, a, b, float>([](float* to, int columns, const uint8_t* left, int bytes, const uint8_t(*right)[kMaxRowBytes]) {
            for (int n = 0; n < columns; ++n) {
                float chains[2] = {};
                for (int k = 0; k < bytes / 4; ++k)
                    for (int i = 0; i < 2; ++i)
                        chains[i] = multiply_add(bfloat16(left + 4 * k + 2 * i), bfloat16(right[k] + 4 * n + 2 * i), chains[i]);
                to[n] = multiply_add(1.0f, to[n], multiply_add(1.0f, chains[0], chains[1]));
            }
        });
    }

   private:
    struct State {
        Configuration shape{};
        bool configured = false;
        uint8_t tile[kTiles][kMaxRows][kMaxRowBytes] = {};
    };

    static State& state() {
        static thread_local State of_thread;
        return of_thread;
    }

    static void require(bool holds, const char* rule) {
        if (holds) return;
        std::fprintf(stderr, "emulated tiles: the processor would refuse this instruction: %s\n", rule);
        std::abort();
    }

    // Calls add(row of sums, columns, row of a, its bytes, b) for each row.
    template <int sums, int a, int b, class Element, class Add>
    static void each_row(const Add& add) {
        static_assert(sums != a && sums != b && a != b, "the processor refuses one tile in two places");
        State& s = state();
        const Configuration& shape = s.shape;
        require(s.configured && shape.rows[sums] > 0 && shape.rows[a] > 0 && shape.rows[b] > 0, "the tiles are configured");
        require(shape.rows[sums] == shape.rows[a], "sums and a have the same rows");
        require(shape.row_bytes[sums] == shape.row_bytes[b], "sums and b have the same columns");
        require(shape.row_bytes[a] == 4 * shape.rows[b], "b has a row for each 4 bytes of a");
        require(shape.row_bytes[sums] % 4 == 0, "columns have 4 bytes");
        for (int row = 0; row < shape.rows[sums]; ++row) {
            Element to[kMaxRowBytes / sizeof(Element)];
            std::memcpy(to, s.tile[sums][row], sizeof to);
            add(to, shape.row_bytes[sums] / 4, s.tile[a][row], shape.row_bytes[a], s.tile[b]);
            std::memcpy(s.tile[sums][row], to, sizeof to);
        }
    }

    static float bfloat16(const uint8_t* from) {
        uint16_t upper;
        std::memcpy(&upper, from, sizeof upper);
        const uint32_t bits = static_cast<uint32_t>(upper) << 16;
        float x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    }

    static float flush(float x) { return std::fabs(x) < kLeastNormal ? std::copysign(0.0f, x) : x; }

    // A result is denormal if it is below the least normal number after rounding to 24 bits, as on x86.
    static float multiply_add(float x, float y, float sum) {
        x = flush(x), y = flush(y), sum = flush(sum);
        const float rounded = std::fma(x, y, sum);
        const double exact = static_cast<double>(x) * y + sum;
        return std::fabs(exact) < kLeastNormal - 0x1p-151 ? std::copysign(0.0f, rounded) : rounded;
    }

    static constexpr double kLeastNormal = 0x1p-126;
};

}  // namespace tiles
