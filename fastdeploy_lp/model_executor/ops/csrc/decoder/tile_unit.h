// The choice between tile registers, their emulation and neither, made once a process, and the tile state of a thread.
#pragma once

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>

#include "decoder/tiles.h"

namespace tiles {

// Mirrored by `TileChoice` in tiles.py.
enum class Choice : int32_t { automatic, off, emulated };
// Mirrored by `TileUnit` in tiles.py: what computes, or the reason why nothing does.
enum class Unit : int32_t { amx, emulated, switched_off, not_compiled, no_processor, no_permission };

// For all threads; written before the first pass.
inline Unit unit = Unit::switched_off;

inline bool available() { return unit == Unit::amx || unit == Unit::emulated; }

// The processor's bits for tiles of bytes and of bfloat16, if the operating system saves tiles too.
inline bool processor_has_tiles() {
#if defined(__x86_64__)
    constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kWanted = kBfloat16 | kTile | kInt8;
    constexpr unsigned kSavesState = 1u << 27, kTileStates = 3u << 17;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSavesState)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kWanted) != kWanted) return false;
    unsigned saved, upper;
    asm volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    return (saved & kTileStates) == kTileStates;
#else
    return false;
#endif
}

// Linux reserves room for a process's tiles when it asks; all threads share the permission.
inline bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

inline Unit choose(Choice choice) {
    if (choice == Choice::off) return Unit::switched_off;
    if (choice == Choice::emulated) return Unit::emulated;
    if (!processor_has_tiles()) return Unit::no_processor;
#if defined(FDLP_AMX)
    return may_use_tiles() ? Unit::amx : Unit::no_permission;
#else
    return Unit::not_compiled;
#endif
}

// Calls use(instructions) with those of the unit that is available.
template <class Use>
inline void with_instructions(const Use& use) {
#if defined(FDLP_AMX)
    if (unit == Unit::amx) return use(Amx{});
#endif
    use(Emulated{});
}

// The configuration that this thread has loaded, or null.
inline thread_local const Configuration* configured = nullptr;

// Configurations loaded by all threads so far. Only passes that compute in tiles load any.
inline std::atomic<int64_t> loads{0};

// Loads a configuration, which outlives the pass, unless it is loaded.
template <class Instructions>
inline void configure(const Configuration& c) {
    if (configured == &c) return;
    Instructions::configure(c);
    configured = &c;
    loads.fetch_add(1, std::memory_order_relaxed);
}

// Each thread of a pass holds one: at its end the tiles are released, since saving them makes a switch to another thread slower.
struct Release {
    Release() = default;
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;
    ~Release() {
        if (configured == nullptr) return;
        configured = nullptr;
        with_instructions([](auto instructions) { instructions.release(); });
    }
};

}  // namespace tiles
