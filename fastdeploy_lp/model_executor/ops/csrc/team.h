// Threads that walk through the phases of one forward pass together.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>

// Where the threads meet at the end of a phase. They keep their cores while they wait: a phase takes microseconds, and on a busy machine a
// core given away comes back milliseconds later, hundreds of times a pass.
class Barrier {
   public:
    void wait(int threads) {
        const int generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins)
            if (spins < kSpins)
                pause();
            else
                sched_yield();
    }

   private:
    static constexpr int kSpins = 1 << 20;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> generation_{0};
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
