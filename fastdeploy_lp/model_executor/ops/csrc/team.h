// Threads that walk through the phases of one forward pass together.
#pragma once

#include <omp.h>

#include <atomic>

// The tasks of a phase are handed out one by one, so that a thread that lost its core for a while holds nobody up for long.
class Team {
   public:
    // `walk` is called on every thread with a Member of its own and has to make the same calls of `run` on each.
    template <class Walk>
    static void forward(const Walk& walk);

   private:
    friend class Member;
    // The counter of the next phase is cleared during this one, when everybody has left the phase before it, which used it last but one.
    std::atomic<int> next_[3] = {};
};

class Member {
   public:
    Member(Team& team, int thread) : team_(team), thread_(thread) {}

    int thread() const { return thread_; }

    // Calls task(0) … task(count - 1), each once on some thread, and returns when all are done.
    template <class Task>
    void run(int count, const Task& task) {
        team_.next_[(phase_ + 1) % 3].store(0, std::memory_order_relaxed);
        std::atomic<int>& next = team_.next_[phase_ % 3];
        for (int i = next.fetch_add(1, std::memory_order_relaxed); i < count; i = next.fetch_add(1, std::memory_order_relaxed)) task(i);
        ++phase_;
#pragma omp barrier
    }

   private:
    Team& team_;
    int thread_;
    int phase_ = 0;
};

template <class Walk>
void Team::forward(const Walk& walk) {
    Team team;
#pragma omp parallel
    {
        Member member(team, omp_get_thread_num());
        walk(member);
    }
}
