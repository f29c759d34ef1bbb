// Enough of CUDA to run kernels on the CPU: the threads of a block are fibers of one thread, blocks run one after another.
//
// A fiber runs until it waits at a barrier, or for its warp. Fibers take turns in a chosen order, so that a missing barrier
// changes the results in one of the orders; blocks run in this order, too, so that any of them may be the last one. A barrier
// that some threads never reach, or a shuffle that some lanes of a warp never join, ends the launch with an error.
#pragma once

#include <math.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#error "fibers are switched by x86-64 code"
#endif

extern "C" void shim_switch(void** save, void* resume);
asm(R"(
.text
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace shim {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

enum class State { kReady, kBarrier, kWarp, kDone };
enum Order : int { kForward, kBackward, kShuffled };

// 16 bytes that are copied later, or zeros that are written later.
struct Copy {
    void* to;
    const void* from;
    bool there;
};

struct Fiber {
    Index thread;
    State state = State::kReady;
    int line = 0;           // of the barrier or shuffle waited at
    uint64_t given = 0;     // to the warp, or to the block
    void* stack = nullptr;  // where it stopped
    std::vector<Copy> copies, ended_copies;
};

struct alignas(16) Word {
    uint64_t halves[2] = {~uint64_t{0}, ~uint64_t{0}};  // NaN in any element type
};

struct Block {
    Index block, block_size, grid;
    std::vector<Fiber> fibers;
    std::vector<uint64_t> of_warps;  // what each lane gave to the last shuffle of its warp
    bool any = false;                // of what the fibers gave to the last barrier
    std::vector<Word> memory;        // that the launch asked for, and a word that no kernel may write
    Fiber* current = nullptr;
    void* scheduler = nullptr;
    void (*kernel)(void**) = nullptr;
    void** arguments = nullptr;
    std::string error;
};

inline Block*& running() {
    static Block* block;
    return block;
}
inline Fiber& self() { return *running()->current; }

inline void wait(State state, int line, uint64_t given) {
    Block& block = *running();
    Fiber& fiber = *block.current;
    fiber.state = state;
    fiber.line = line;
    fiber.given = given;
    shim_switch(&fiber.stack, block.scheduler);
}

inline void enter() {
    Block& block = *running();
    block.kernel(block.arguments);
    block.current->state = State::kDone;
    shim_switch(&block.current->stack, block.scheduler);
    abort();
}

inline int lane() { return static_cast<int>(self().thread.x % kWarp); }

// What lane `from` of this warp gave.
template <class Value>
Value shuffle(int line, unsigned mask, Value value, int from) {
    static_assert(sizeof(Value) <= sizeof(uint64_t), "a word");
    if (mask != 0xffffffffu) running()->error = "a shuffle without every lane of the warp";
    uint64_t word = 0;
    memcpy(&word, &value, sizeof(value));
    wait(State::kWarp, line, word);
    const uint64_t got = running()->of_warps[self().thread.x / kWarp * kWarp + static_cast<unsigned>(from)];
    memcpy(&value, &got, sizeof(value));
    return value;
}

template <class Value>
Value shuffle_up(int line, unsigned mask, Value value, int distance) {
    return shuffle(line, mask, value, lane() < distance ? lane() : lane() - distance);
}

template <class Value>
Value shuffle_of(int line, unsigned mask, Value value, int from, int width = kWarp) {
    return shuffle(line, mask, value, lane() / width * width + from % width);
}

inline unsigned ballot(int line, unsigned mask, bool voted) {
    shuffle<int>(line, mask, voted, lane());
    unsigned votes = 0;
    const uint64_t* given = &running()->of_warps[self().thread.x / kWarp * kWarp];
    for (unsigned i = 0; i < kWarp; ++i) votes |= static_cast<unsigned>(given[i] != 0) << i;
    return votes;
}

inline bool barrier(int line, bool given = false) {
    wait(State::kBarrier, line, given);
    return running()->any;
}

template <class Value>
Value atomic_add(Value* at, Value value) {
    const Value before = *at;
    *at += value;
    return before;
}

inline unsigned atomic_inc(unsigned* at, unsigned last) {
    const unsigned before = *at;
    *at = before >= last ? 0 : before + 1;
    return before;
}

// Lets the fibers [begin, end) go on if all wait for the same; returns whether they may.
inline bool release(Block& block, size_t begin, size_t end, State state) {
    for (size_t i = begin; i < end; ++i) {
        if (block.fibers[i].state != state) return false;
        if (block.fibers[i].line != block.fibers[begin].line) {
            block.error =
                "threads wait at lines " + std::to_string(block.fibers[begin].line) + " and " + std::to_string(block.fibers[i].line);
            return false;
        }
    }
    for (size_t i = begin; i < end; ++i) block.fibers[i].state = State::kReady;
    return true;
}

// Lets every warp that waits for its lanes go on, or the whole block; returns whether any may.
inline bool release_some(Block& block) {
    bool some = false;
    for (size_t begin = 0; begin < block.fibers.size(); begin += kWarp) {
        if (!release(block, begin, begin + kWarp, State::kWarp)) continue;
        for (size_t i = begin; i < begin + kWarp; ++i) block.of_warps[i] = block.fibers[i].given;
        some = true;
    }
    if (some || !release(block, 0, block.fibers.size(), State::kBarrier)) return some;
    block.any = std::any_of(block.fibers.begin(), block.fibers.end(), [](const Fiber& fiber) { return fiber.given != 0; });
    return true;
}

inline char* stacks(size_t count) {
    static std::unique_ptr<char[]> memory;
    static size_t held = 0;
    if (held < count) memory.reset(new char[count * kStackBytes]);
    held = std::max(held, count);
    return memory.get();
}

inline std::minstd_rand& random_numbers() {
    static std::minstd_rand random;
    return random;
}

inline std::vector<unsigned> turns_of(size_t count, Order order) {
    std::vector<unsigned> turns(count);
    std::iota(turns.begin(), turns.end(), 0u);
    if (order == kBackward) std::reverse(turns.begin(), turns.end());
    if (order == kShuffled) std::shuffle(turns.begin(), turns.end(), random_numbers());
    return turns;
}

inline void run_block(Block& block, Order order) {
    running() = &block;
    const size_t count = block.fibers.size();
    std::vector<unsigned> turns = turns_of(count, order);
    for (size_t i = 0; i < count; ++i) {
        // Six registers, the address that the first switch returns to, and a place that keeps the stack aligned.
        void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stacks(count)) + (i + 1) * kStackBytes) & ~uintptr_t{15});
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(&enter);
        top -= 6;
        block.fibers[i] = Fiber{};
        block.fibers[i].thread.x = static_cast<unsigned>(i);
        block.fibers[i].stack = top;
    }
    while (block.error.empty()) {
        if (order == kShuffled) std::shuffle(turns.begin(), turns.end(), random_numbers());
        for (unsigned turn : turns) {
            if (block.fibers[turn].state != State::kReady) continue;
            block.current = &block.fibers[turn];
            shim_switch(&block.scheduler, block.current->stack);
        }
        const size_t done = std::count_if(block.fibers.begin(), block.fibers.end(), [](const Fiber& f) { return f.state == State::kDone; });
        if (done == count) return;
        if (!release_some(block) && block.error.empty()) block.error = "some threads wait for others that never come";
    }
}

// Calls a kernel with arguments of which `at` has the addresses, as `cuLaunchKernel` does.
template <auto kKernel>
struct Call;
template <class... Arguments, void (*kKernel)(Arguments...)>
struct Call<kKernel> {
    static void with(void** at) { with(at, std::index_sequence_for<Arguments...>()); }

   private:
    template <size_t... kIndex>
    static void with(void** at, std::index_sequence<kIndex...>) {
        kKernel(*static_cast<Arguments*>(at[kIndex])...);
    }
};

inline std::string launch(void (*kernel)(void**), unsigned grid_x, unsigned grid_y, unsigned threads, unsigned shared, void** arguments,
                          Order order) {
    if (threads == 0 || threads % kWarp != 0 || threads > 1024) return "a block has whole warps, 32 at most";
    Block block;
    block.block_size = {threads, 1, 1};
    block.grid = {grid_x, grid_y, 1};
    block.fibers.resize(threads);
    block.of_warps.resize(threads);
    block.kernel = kernel;
    block.arguments = arguments;
    const Word unwritten;
    for (unsigned number : turns_of(size_t{grid_x} * grid_y, order)) {
        block.block = {number % grid_x, number / grid_x, 0};
        block.memory.assign(shared / sizeof(Word) + 1, Word{});
        run_block(block, order);
        if (memcmp(&block.memory.back(), &unwritten, sizeof(Word)) != 0) block.error = "memory beyond the launch's was written";
        if (!block.error.empty()) break;
    }
    return block.error;
}

}  // namespace shim

struct alignas(16) float4 {
    float x, y, z, w;
};

// After the standard library's headers, which have names like these.
#define __CUDACC__
#define __global__
#define __device__
#define __shared__ static
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads)
#define threadIdx shim::self().thread
#define blockIdx shim::running()->block
#define blockDim shim::running()->block_size
#define gridDim shim::running()->grid
#define __syncthreads() shim::barrier(__LINE__)
#define __syncthreads_or(given) shim::barrier(__LINE__, given)
#define __shfl_xor_sync(mask, value, distance) shim::shuffle(__LINE__, mask, value, shim::lane() ^ (distance))
#define __shfl_up_sync(mask, value, distance) shim::shuffle_up(__LINE__, mask, value, distance)
#define __shfl_sync(mask, ...) shim::shuffle_of(__LINE__, mask, __VA_ARGS__)
#define __ballot_sync(mask, voted) shim::ballot(__LINE__, mask, voted)
#define __ffs __builtin_ffs
#define __threadfence() static_cast<void>(0)
#define __ldcg(at) (*(at))
#define atomicAdd shim::atomic_add
#define atomicInc shim::atomic_inc
