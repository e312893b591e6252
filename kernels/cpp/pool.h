// Threads that work together on one call, and sleep between calls.
#pragma once

#include <atomic>
#include <functional>

namespace sottovoce {

// One of the threads that work on a call.
class Worker {
public:
    Worker(int index, int count, std::atomic<unsigned>& arrived) : index(index), count(count), arrived_(arrived) {}

    const int index;
    const int count;

    // Wait until all threads of the call are here: a short while awake, then giving way to others.
    void barrier();

    // This thread's part of n things, in order: [first, last).
    int first(int n) const { return static_cast<int>(static_cast<long long>(n) * index / count); }
    int last(int n) const { return static_cast<int>(static_cast<long long>(n) * (index + 1) / count); }

private:
    std::atomic<unsigned>& arrived_;
    unsigned met_ = 0;
};

// Run work on n_threads threads, the caller being one of them, and return when all are done. Calls at the same time
// have threads of their own; where the system gives no more threads, a call has fewer. Work must not throw.
void run_together(int n_threads, const std::function<void(Worker&)>& work);

}  // namespace sottovoce
