#include "pool.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace sottovoce {

namespace {

constexpr int kSpins = 4000;  // some tens of microseconds: longer than a phase of a step is uneven

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <class Done>
void wait_until(const Done& done) {
    for (int spin = 0; !done(); ++spin) {
        if (spin < kSpins)
            pause();
        else
            std::this_thread::yield();
    }
}

class Pool {
public:
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    void run(int n_threads, const std::function<void(Worker&)>& work) {
        n_threads = make_threads(n_threads);
        std::atomic<unsigned> arrived{0};
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            arrived_ = &arrived;
            n_threads_ = n_threads;
            n_left_.store(n_threads - 1, std::memory_order_relaxed);
            ++call_;
        }
        wake_.notify_all();
        Worker worker(0, n_threads, arrived);
        work(worker);
        wait_until([this] { return n_left_.load(std::memory_order_acquire) == 0; });
    }

private:
    // How many of n_threads there are, the caller among them: fewer where the system gives no more.
    int make_threads(int n_threads) {
        while (static_cast<int>(threads_.size()) < n_threads - 1) {
            const int index = static_cast<int>(threads_.size()) + 1;
            try {
                threads_.emplace_back([this, index] { serve(index); });
            } catch (const std::system_error&) {
                return index;
            }
        }
        return n_threads;
    }

    void serve(int index) {
        unsigned seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || call_ != seen; });
            if (stopping_) return;
            seen = call_;
            if (index >= n_threads_) continue;
            Worker worker(index, n_threads_, *arrived_);
            const std::function<void(Worker&)>& work = *work_;
            lock.unlock();
            work(worker);
            n_left_.fetch_sub(1, std::memory_order_release);
            lock.lock();
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    const std::function<void(Worker&)>* work_ = nullptr;
    std::atomic<unsigned>* arrived_ = nullptr;
    std::atomic<int> n_left_{0};
    int n_threads_ = 1;
    unsigned call_ = 0;
    bool stopping_ = false;
};

// Pools whose threads sleep.
class IdlePools {
public:
    std::unique_ptr<Pool> take() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) return std::make_unique<Pool>();
        auto pool = std::move(free_.back());
        free_.pop_back();
        return pool;
    }

    void give(std::unique_ptr<Pool> pool) {
        std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(pool));
    }

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Pool>> free_;
};

std::atomic<IdlePools*> idle_pools{nullptr};

// A child process has none of its parent's threads: it begins with pools of its own.
void forget_pools() { idle_pools.store(nullptr); }

// They outlive the program's end: threads cannot be joined while a library is unloaded.
IdlePools& the_idle_pools() {
    IdlePools* found = idle_pools.load();
    if (found) return *found;
#if defined(__unix__) || defined(__APPLE__)
    static const int watched = pthread_atfork(nullptr, nullptr, forget_pools);
    (void)watched;
#endif
    auto made = std::make_unique<IdlePools>();
    if (idle_pools.compare_exchange_strong(found, made.get())) return *made.release();
    return *found;
}

}  // namespace

void Worker::barrier() {
    if (count == 1) return;
    const unsigned all = static_cast<unsigned>(count) * ++met_;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    wait_until([&] { return arrived_.load(std::memory_order_acquire) >= all; });
}

void run_together(int n_threads, const std::function<void(Worker&)>& work) {
    if (n_threads > 1) {
        IdlePools& idle = the_idle_pools();
        auto pool = idle.take();
        pool->run(n_threads, work);
        idle.give(std::move(pool));
        return;
    }
    std::atomic<unsigned> arrived{0};
    Worker alone(0, 1, arrived);
    work(alone);
}

}  // namespace sottovoce
