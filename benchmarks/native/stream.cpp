// Reads memory as fast as all threads together can.

#include <cstdint>

#include "exports.h"
#include "team.h"

namespace {

typedef long long Longs __attribute__((vector_size(64)));
constexpr int64_t kLinesPerTask = 16384;
constexpr int kUnroll = 8, kAhead = 128;

}  // namespace

// The sum of lines [lines][8]; `lines` has to be a multiple of kUnroll. Summing keeps the compiler from leaving the reads out.
FDLP_EXPORT int64_t bench_stream(const Longs* lines, int64_t count) {
    int64_t total = 0;
    Team::forward([&](Member& team) {
        Longs sums[kUnroll] = {};
        team.run(static_cast<int>((count + kLinesPerTask - 1) / kLinesPerTask), [&](int task) {
            const int64_t first = task * kLinesPerTask, end = first + kLinesPerTask < count ? first + kLinesPerTask : count;
            for (int64_t line = first; line < end; line += kUnroll)
                for (int i = 0; i < kUnroll; ++i) {
                    __builtin_prefetch(lines + line + kAhead + i, 0, 2);
                    sums[i] += lines[line + i];
                }
        });
        int64_t sum = 0;
        for (const Longs& part : sums)
            for (int lane = 0; lane < 8; ++lane) sum += part[lane];
#pragma omp atomic
        total += sum;
    });
    return total;
}
