#include "pool.h"

#include <memory>
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
        {
            std::lock_guard<std::mutex> lock(mutex_);
            phases_.taken.store(0);
            phases_.done.store(0);
            work_ = &work;
            n_threads_ = n_threads;
            ++call_;
        }
        wake_.notify_all();
        Worker worker(0, n_threads, &phases_);
        work(worker);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = nullptr;  // who comes now is too late
        }
        phases_.bell.wait([this] { return n_inside_.load() == 0; });
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
            if (index >= n_threads_ || !work_) continue;
            Worker worker(index, n_threads_, &phases_);
            const std::function<void(Worker&)>& work = *work_;
            n_inside_.fetch_add(1);
            lock.unlock();
            work(worker);
            n_inside_.fetch_sub(1);
            phases_.bell.ring();
            lock.lock();
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    Phases phases_;
    const std::function<void(Worker&)>* work_ = nullptr;
    std::atomic<int> n_inside_{0};
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

void Bell::pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void Worker::begin(uint64_t phase) {
    phases_->done.store(0);
    phases_->taken.store(phase << 32);
    phases_->bell.ring();
}

void Worker::wait(uint64_t phase) {
    phases_->bell.wait([&] { return phases_->taken.load() >> 32 != phase; });
}

void run_together(int n_threads, const std::function<void(Worker&)>& work) {
    if (n_threads > 1) {
        IdlePools& idle = the_idle_pools();
        auto pool = idle.take();
        pool->run(n_threads, work);
        idle.give(std::move(pool));
        return;
    }
    Worker alone(0, 1, nullptr);
    work(alone);
}

}  // namespace sottovoce
