// The pool of threads behind `share`. One per process; it grows to what was asked for and never shrinks.
//
// A step is hundreds of short jobs with little between them. A thread that slept after each would be woken each time, which
// takes longer than most jobs; one that span for ever would take a core from others. So a worker looks for the next job
// for a while, soon offering its core to whoever wants it, and then sleeps.
//
// A barrier that all threads must reach would wait for one that has lost its core. Here the caller closes a job when no
// work is left and waits only for those that had joined.
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "parallel.h"

namespace paceline {
namespace {

constexpr int kPauses = 400;  // before a waiting thread offers its core
constexpr auto kAwake = std::chrono::microseconds(500);  // without a job, before a worker sleeps: longer than between jobs
constexpr int kMostThreads = 256;

struct Pool {
  // Number of the job in the upper half; kOpen while it may be joined; who has joined in the lower bits.
  std::atomic<std::uint64_t> word{0};
  void (*body)(void*) = nullptr;
  void* data = nullptr;
  int num_workers = 0;                 // that the job may have
  std::mutex busy;                     // one job at a time
  int num_started = 0;                 // under `busy`
  std::atomic<int> num_asleep{0};
  std::mutex sleep;
  std::condition_variable wake;
};

constexpr std::uint64_t kOpen = 1 << 16, kJoined = kOpen - 1, kNumber = std::uint64_t{1} << 32;

std::uint64_t number_of(std::uint64_t word) { return word / kNumber; }

// Takes part in the job of `word`, if it is still open.
void join(Pool& pool, int worker, std::uint64_t word) {
  while (word & kOpen) {
    const std::uint64_t number = number_of(word);
    if (pool.word.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      if (worker < pool.num_workers) pool.body(pool.data);
      pool.word.fetch_sub(1, std::memory_order_release);
      return;
    }
    if (number_of(word) != number) return;
  }
}

void work(Pool& pool, int worker) {
  std::uint64_t seen = 0;  // number of the last job looked at
  for (;;) {
    std::uint64_t word = pool.word.load(std::memory_order_acquire);
    if (number_of(word) == seen) {
      auto until = std::chrono::steady_clock::time_point{};
      for (int turn = 0; number_of(word) == seen; ++turn) {
        if (turn < kPauses) {
          _mm_pause();
        } else {
          sched_yield();
          const auto now = std::chrono::steady_clock::now();
          if (turn == kPauses) until = now + kAwake;
          if (now > until) {
            std::unique_lock<std::mutex> lock(pool.sleep);
            pool.num_asleep.fetch_add(1);  // before the last look: whoever publishes after it sees a sleeper
            pool.wake.wait(lock, [&] { return number_of(pool.word.load()) != seen; });
            pool.num_asleep.fetch_sub(1);
          }
        }
        word = pool.word.load(std::memory_order_acquire);
      }
    }
    seen = number_of(word);
    join(pool, worker, word);
  }
}

Pool* pool_of_process = nullptr;

// A forked child has none of its parent's threads, and locks may have been held: it begins with a pool of its own.
void make_pool() { pool_of_process = new Pool; }

Pool& the_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    make_pool();
    pthread_atfork(nullptr, nullptr, make_pool);
  });
  return *pool_of_process;
}

}  // namespace

void run_together(void (*body)(void*), void* data, int num_threads) {
  Pool& pool = the_pool();
  const std::unique_lock<std::mutex> mine(pool.busy, std::try_to_lock);
  if (!mine.owns_lock()) return body(data);  // another engine of this process has the workers
  try {
    for (const int wanted = std::min(num_threads, kMostThreads) - 1; pool.num_started < wanted; ++pool.num_started)
      std::thread(work, std::ref(pool), pool.num_started).detach();
  } catch (const std::system_error&) {  // the system gives no more threads: those there are will do
  }
  pool.body = body;
  pool.data = data;
  pool.num_workers = num_threads - 1;
  pool.word.store((number_of(pool.word.load(std::memory_order_relaxed)) + 1) * kNumber + kOpen);
  if (pool.num_asleep.load() > 0) {
    { const std::lock_guard<std::mutex> lock(pool.sleep); }
    pool.wake.notify_all();
  }
  body(data);
  std::uint64_t word = pool.word.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int turn = 0; word & kJoined; ++turn) {
    if (turn < kPauses)
      _mm_pause();
    else
      sched_yield();
    word = pool.word.load(std::memory_order_acquire);
  }
}

}  // namespace paceline
