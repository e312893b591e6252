// Threads that work together on one call, and sleep between calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace sottovoce {

// Where threads wait for what another one makes true and rings for: a short while awake, then asleep, so that a
// thread that has lost its core finds this one free.
class Bell {
public:
    template <class Done>
    void wait(const Done& done) {
        if (spin_until(done)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1);
        rung_.wait(lock, done);
        asleep_.fetch_sub(1);
    }

    void ring() {
        if (!asleep_.load()) return;
        { std::lock_guard<std::mutex> lock(mutex_); }
        rung_.notify_all();
    }

private:
    std::atomic<int> asleep_{0};
    std::mutex mutex_;
    std::condition_variable rung_;

    template <class Done>
    static bool spin_until(const Done& done) {
        constexpr int kSpins = 4000;  // some tens of microseconds: longer than a phase of a step is uneven
        for (int spin = 0; spin < kSpins; ++spin) {
            if (done()) return true;
            pause();
        }
        return false;
    }
    static void pause();
};

// What the threads of a call share: the phase that they are in, and how much of it is taken and done.
struct Phases {
    alignas(64) std::atomic<uint64_t> taken{0};  // the number of the phase, and the first thing that nobody has taken
    alignas(64) std::atomic<int> done{0};
    Bell bell;
};

// One of the threads that work on a call.
class Worker {
public:
    Worker(int index, int count, Phases* phases) : index(index), count(count), phases_(phases) {}

    const int index;
    const int count;

    // A phase: work(first, last) on pieces of n things, whoever is free takes the next, and all wait until the last
    // piece is done. A thread that comes late finds nothing left to do, and nobody waits for it. Nothing that one
    // thread leaves to another may be done outside of phases.
    template <class Work>
    void share(int n, int piece, const Work& work) {
        if (n <= 0) return;
        if (count == 1) return work(0, n);
        const uint64_t phase = ++phase_ - 1;
        uint64_t at = phases_->taken.load();
        while (at >> 32 == phase) {
            const int first = static_cast<int>(at & 0xffffffffu);
            if (first >= n) return wait(phase);
            const int last = piece < n - first ? first + piece : n;
            if (!phases_->taken.compare_exchange_weak(at, phase << 32 | static_cast<uint64_t>(last))) continue;
            work(first, last);
            if (phases_->done.fetch_add(last - first) + last - first == n) return begin(phase + 1);
            at = phases_->taken.load();
        }
    }

    // The same with pieces of one size for each thread to have several.
    template <class Work>
    void share(int n, const Work& work) {
        share(n, piece_of(n), work);
    }

    // The same for things that are pieces of their own: work(i).
    template <class Work>
    void each(int n, const Work& work) {
        share(n, 1, [&](int first, int last) {
            for (int i = first; i < last; ++i) work(i);
        });
    }

private:
    Phases* phases_;
    uint64_t phase_ = 0;

    int piece_of(int n) const {
        constexpr int kPieces = 8, kLargest = 16;
        const int piece = n / (count * kPieces);
        return piece < 1 ? 1 : piece > kLargest ? kLargest : piece;
    }
    void begin(uint64_t phase);
    void wait(uint64_t phase);
};

// Run work on n_threads threads, the caller being one of them, and return when all is done. Calls at the same time
// have threads of their own; where the system gives no more threads, or they come late, a call has fewer. Work must
// not throw.
void run_together(int n_threads, const std::function<void(Worker&)>& work);

}  // namespace sottovoce
