// How work is shared between threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace paceline {

// Runs body(data) in the caller and in up to num_threads - 1 others, and returns when all of them are done. `body` takes
// portions of the work until none is left, so whoever comes late, or not at all, is not waited for.
void run_together(void (*body)(void*), void* data, int num_threads);

// Calls work(first, last) until [0, count) is done, `grain` items at a time; each thread takes the next ones when it has
// finished. In the caller alone where `num_threads` is 1.
template <typename Work>
void share(std::int64_t count, std::int64_t grain, int num_threads, const Work& work) {
  struct Job {
    const Work* work;
    std::int64_t count, grain;
    std::atomic<std::int64_t> next{0};
  };
  if (num_threads < 2 || count <= grain) {
    if (count > 0) work(std::int64_t{0}, count);
    return;
  }
  Job job{&work, count, grain};
  run_together(
      [](void* data) {
        Job& mine = *static_cast<Job*>(data);
        for (;;) {
          const std::int64_t first = mine.next.fetch_add(mine.grain, std::memory_order_relaxed);
          if (first >= mine.count) return;
          (*mine.work)(first, std::min(first + mine.grain, mine.count));
        }
      },
      &job, num_threads);
}

// Items 0 to count - 1, each given to one thread.
class Items {
 public:
  explicit Items(std::int64_t count) : count_(count) {}

  std::int64_t take() {  // -1: all are given
    const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    return item < count_ ? item : -1;
  }

 private:
  const std::int64_t count_;
  std::atomic<std::int64_t> next_{0};
};

// Calls work(items) once in each thread, for work that looks ahead: it takes items itself until there are none.
template <typename Work>
void share_items(std::int64_t count, int num_threads, const Work& work) {
  struct Job {
    const Work* work;
    Items items;
  };
  Job job{&work, Items(count)};
  if (num_threads < 2 || count < 2) return work(job.items);
  run_together(
      [](void* data) {
        Job& mine = *static_cast<Job*>(data);
        (*mine.work)(mine.items);
      },
      &job, num_threads);
}

}  // namespace paceline
