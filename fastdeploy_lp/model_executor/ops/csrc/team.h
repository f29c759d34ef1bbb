// Threads that walk through the phases of one forward pass together.
#pragma once

#include <omp.h>
#include <sched.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <climits>

// Where the threads meet at the end of a phase. A phase takes microseconds, so they watch for its end for a moment. Whoever waits longer
// sleeps: another thread has lost its core to another process, and the kernel moves it to a core that is idle, not to one that is watching.
class Barrier {
   public:
    void wait(int threads) {
        const int generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_seq_cst);
            if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all();
            return;
        }
        for (int spins = 0; spins < kSpins; ++spins) {
            if (generation_.load(std::memory_order_acquire) != generation) return;
            pause();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (generation_.load(std::memory_order_seq_cst) == generation) sleep_while(generation);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

   private:
    static constexpr int kSpins = 2000;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

#if defined(__linux__)
    void sleep_while(int generation) { syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, generation, nullptr, nullptr, 0); }
    void wake_all() { syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
    void sleep_while(int) { sched_yield(); }
    void wake_all() {}
#endif

    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> generation_{0};
    alignas(64) std::atomic<int> sleepers_{0};
};

// The tasks of a phase are handed out one by one, so that a thread that lost its core for a while holds nobody up for long.
class Team {
   public:
    // `walk` is called on every thread with a Member of its own and has to make the same calls of `run` on each.
    template <class Walk>
    static void forward(const Walk& walk);

   private:
    friend class Member;
    Barrier barrier_;
    // The counter of the next phase is cleared during this one, when everybody has left the phase before it, which used it last but one.
    std::atomic<int> next_[3] = {};
};

class Member {
   public:
    Member(Team& team, int thread, int threads) : team_(team), thread_(thread), threads_(threads) {}

    int thread() const { return thread_; }
    int threads() const { return threads_; }

    // Calls task(0) … task(count - 1), each once on some thread, and returns when all are done.
    template <class Task>
    void run(int count, const Task& task) {
        team_.next_[(phase_ + 1) % 3].store(0, std::memory_order_relaxed);
        std::atomic<int>& next = team_.next_[phase_ % 3];
        for (int i = next.fetch_add(1, std::memory_order_relaxed); i < count; i = next.fetch_add(1, std::memory_order_relaxed)) task(i);
        ++phase_;
        team_.barrier_.wait(threads_);
    }

   private:
    Team& team_;
    int thread_, threads_;
    int phase_ = 0;
};

template <class Walk>
void Team::forward(const Walk& walk) {
    Team team;
#pragma omp parallel
    {
        Member member(team, omp_get_thread_num(), omp_get_num_threads());
        walk(member);
    }
}
