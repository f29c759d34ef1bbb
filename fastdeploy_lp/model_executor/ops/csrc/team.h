// Threads that run the phases of one forward pass together.
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
#include <cstdint>
#include <vector>

// Barrier at the end of a phase. A phase takes microseconds, so threads first spin. A thread that waits longer sleeps: another thread has
// lost its core to another process, and the kernel moves it to a core that is idle, not to one that is spinning.
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

// The share of `thread` in `count` tasks: a contiguous range, so that one thread's reads are adjacent.
struct Share {
    int first, end;

    static Share of(int count, int thread, int threads) { return {at(count, thread, threads), at(count, thread + 1, threads)}; }

   private:
    static int at(int count, int thread, int threads) { return static_cast<int>(static_cast<int64_t>(count) * thread / threads); }
};

// The cores that a thread may use.
class Cores {
   public:
#if defined(__linux__)
    Cores() {
        if (sched_getaffinity(0, sizeof(set_), &set_)) CPU_ZERO(&set_);
    }

    int count() const { return CPU_COUNT(&set_); }

    // The calling thread may use the n-th of these cores only.
    void keep_on(int n) const {
        int core = -1;
        for (int seen = -1; seen < n;) seen += CPU_ISSET(++core, &set_) != 0;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof(one), &one);
    }

    // The calling thread may use all of these cores.
    void release() const { sched_setaffinity(0, sizeof(set_), &set_); }

   private:
    cpu_set_t set_;
#else
    int count() const { return 0; }
    void keep_on(int) const {}
    void release() const {}
#endif
};

// Keeps the threads of a team that takes every core on separate cores. When another process takes a core for a moment, the kernel often
// wakes a thread on the core of another one and leaves both there, while the first core becomes idle. The calling thread, 0, is kept only
// during a forward pass: threads that it starts elsewhere inherit its cores. The others belong to OpenMP, and stay.
class Place {
   public:
    Place(const Cores& cores, int thread, int threads) : cores_(cores), ends_(thread == 0 && takes_all(cores, threads)) {
        if (takes_all(cores, threads)) cores_.keep_on(thread);
    }
    ~Place() {
        if (ends_) cores_.release();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    static bool takes_all(const Cores& cores, int threads) { return threads > 1 && cores.count() == threads; }

    const Cores& cores_;
    const bool ends_;
};

// Each thread runs its own share of a phase's tasks and then steals remaining ones, so that a thread that lost its core for a while delays
// the others only briefly. Taking an own task is almost free; a counter shared by all threads would move from core to core each time.
class Team {
   public:
    // Calls `walk` on every thread with a separate Member; it must make the same calls of `run` on each.
    template <class Walk>
    static void forward(const Walk& walk);

   private:
    friend class Member;
    struct alignas(64) Taken {
        // Counters of this thread's share. The next phase's counter is cleared during this phase, when every thread has left the previous
        // phase.
        std::atomic<int> in_phase[3] = {};
    };

    explicit Team(int threads) : taken_(threads) {}

    Barrier barrier_;
    std::vector<Taken> taken_;
};

class Member {
   public:
    Member(Team& team, int thread, int threads) : team_(team), thread_(thread), threads_(threads) {}

    int thread() const { return thread_; }
    int threads() const { return threads_; }

    // Calls task(0) … task(count - 1), each once on some thread, and returns when all are done.
    template <class Task>
    void run(int count, const Task& task) {
        team_.taken_[thread_].in_phase[(phase_ + 1) % 3].store(0, std::memory_order_relaxed);
        for (int i = 0; i < threads_; ++i) {
            const int owner = (thread_ + i) % threads_;
            const Share share = Share::of(count, owner, threads_);
            std::atomic<int>& taken = team_.taken_[owner].in_phase[phase_ % 3];
            while (share.first + taken.load(std::memory_order_relaxed) < share.end) {
                const int next = share.first + taken.fetch_add(1, std::memory_order_relaxed);
                if (next < share.end) task(next);
            }
        }
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
    Team team(omp_get_max_threads());
    const Cores cores;
#pragma omp parallel
    {
        const Place place(cores, omp_get_thread_num(), omp_get_num_threads());
        Member member(team, omp_get_thread_num(), omp_get_num_threads());
        walk(member);
    }
}
