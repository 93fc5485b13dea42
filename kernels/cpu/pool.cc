#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace ms_eagle {

namespace {

constexpr int kSpins = 800;  // some tens of microseconds
constexpr uint32_t kNoItem = UINT32_MAX;  // beyond every count

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int count) : size_(count) {
    try {
      for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // The system grants no more threads: those there are do the work.
    }
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_.store(true);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  void run(int64_t count, void (*item)(void*, int64_t), void* context) {
    // No ticket is valid while the job changes: a thread that is late for the job before must not take an
    // item of this one by a ticket of that one, which would then be counted twice.
    ticket_.store((uint64_t{job_} << 32) | kNoItem);
    item_.store(item, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    count_.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t{++job_} << 32);
    if (sleeping_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
    take();
    const auto total = static_cast<uint32_t>(count);
    for (int spin = 0; spin < kSpins; ++spin) {
      if (done_.load() == total) return;
      pause_briefly();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    caller_waits_.store(true);
    finished_.wait(lock, [&] { return done_.load() == total; });
    caller_waits_.store(false);
  }

 private:
  // Take items until none is left. A ticket is (job, next item). The job is read after a ticket and taken only
  // if that ticket is still the newest: then what was read belongs to it, since a job changes only when all
  // its items are done.
  void take() {
    uint64_t ticket = ticket_.load();
    while (true) {
      auto* item = item_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      const uint32_t count = count_.load(std::memory_order_relaxed);
      if (static_cast<uint32_t>(ticket) >= count) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      item(context, static_cast<uint32_t>(ticket));
      if (done_.fetch_add(1) + 1 == count && caller_waits_.load()) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        finished_.notify_one();
      }
      ticket = ticket_.load();
    }
  }

  void work() {
    uint32_t last = 0;
    const auto news = [&] { return static_cast<uint32_t>(ticket_.load() >> 32) != last || stopping_.load(); };
    while (!stopping_.load()) {
      for (int spin = 0; spin < kSpins && !news(); ++spin) pause_briefly();
      if (!news()) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, news);
        sleeping_.fetch_sub(1);
      }
      last = static_cast<uint32_t>(ticket_.load() >> 32);
      take();
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::atomic<bool> stopping_{false}, caller_waits_{false};
  std::atomic<int> sleeping_{0};
  std::atomic<void (*)(void*, int64_t)> item_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> count_{0}, done_{0};
  std::atomic<uint64_t> ticket_{0};
  uint32_t job_ = 0;
};

std::mutex owner;  // held by the one caller that uses the pool
std::atomic<int> wanted{1};
Pool* pool = nullptr;  // never destroyed at exit: a worker may be anywhere then

// After fork only the calling thread lives on: forget the workers, which exist no more.
void forget() {
  new (&owner) std::mutex;
  pool = nullptr;
}

}  // namespace

void run_items(int64_t count, void (*item)(void*, int64_t), void* context) {
  static const int registered = pthread_atfork(nullptr, nullptr, forget);
  (void)registered;
  std::unique_lock<std::mutex> lock(owner, std::defer_lock);
  const int want = wanted.load();
  if (count > 1 && want > 1 && count < UINT32_MAX && lock.try_lock()) {
    if (!pool || pool->size() != want) {
      delete pool;
      pool = nullptr;
      pool = new Pool(want);
    }
    pool->run(count, item, context);
    return;
  }
  for (int64_t i = 0; i < count; ++i) item(context, i);
}

void set_threads(int count) { wanted.store(count < 1 ? 1 : count); }

int threads() { return wanted.load(); }

}  // namespace ms_eagle
