// The product of bfloat16 with tiles, for many rows: a pair of panels is widened once, and a chunk of rows that stays in the
// second-level cache passes it. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
//
// The unit that multiplies tiles does nothing else, and whatever else there is to do is done beside it: while a pair of panels
// multiplies, the next one widens, and the sums of two blocks of rows go to the output while the next two multiply.
#include "bf16_tiles.h"
#include "parallel.h"

namespace paceline {
namespace {

constexpr std::int64_t kChunkBytes = 768 << 10;  // of rounded rows, in a second-level cache of 2 MiB that two threads may share
constexpr std::int64_t kLeastChunk = 4;          // pairs of blocks: a panel is worth widening for them
constexpr std::size_t kFetch = 2 << 10;          // bytes of packed weights from where is read to where memory is fetched from

// Items of the product: a pair of panels past a chunk of rows, which is some pairs of blocks.
struct Plan {
  std::int64_t row_pairs, chunks, panel_pairs;

  explicit Plan(const LinearTask& task)
      : row_pairs((task.num_rows + 2 * kBlockRows - 1) / (2 * kBlockRows)),
        panel_pairs((task.num_outputs + 2 * kPanel - 1) / (2 * kPanel)) {
    const auto bytes = static_cast<std::int64_t>(bf16_rows_bytes(2 * kBlockRows, task.num_inputs));
    const std::int64_t most = std::max(kLeastChunk, kChunkBytes / bytes);
    chunks = (row_pairs + most - 1) / most;
  }
  std::int64_t items() const { return chunks * panel_pairs; }
  std::int64_t first_row_pair(std::int64_t chunk) const { return row_pairs * chunk / chunks; }
};

// A pair of panels, or a single one, as rows of bfloat16: where it lies in memory, or on its way into `widened`.
template <WeightType type>
struct Panels {
  std::int64_t first = 0;
  bool two = false;
  const char* packed = nullptr;
  const char* at = nullptr;  // once it is there
  char* widened = nullptr;

  Panels() = default;
  Panels(const LinearTask& task, std::int64_t pair, char* widened)
      : first(2 * pair), two((2 * pair + 1) * kPanel < task.num_outputs), packed(panel_at<type>(task, first)),
        at(type == kRowsBFloat16 ? packed : widened), widened(widened) {}

  std::int64_t units(const LinearTask& task) const { return (two ? 2 : 1) * num_units(task.num_inputs); }
  void widen_one() {
    constexpr std::size_t kBytes = unit_bytes(type);
    if constexpr (type == kRowsBFloat16) {
#pragma GCC unroll 16
      for (std::size_t line = 0; line < kBytes; line += 64) _mm_prefetch(packed + line, _MM_HINT_T1);
    } else {
#pragma GCC unroll 16
      for (std::size_t line = 0; line < kBytes; line += 64) _mm_prefetch(packed + kFetch + line, _MM_HINT_T0);
      store_unit<type>(packed, widened);
      widened += 1024;
    }
    packed += kBytes;
  }
};

// Sums of the last tile, until they have been put.
struct Leaving {
  Sums sums;
  std::int64_t row = 0, count[2] = {0, 0}, panel = 0;
  int next = 4, panels = 0;

  void put_one(const LinearTask& task) {
    const int i = next++, block = i % 2;
    if (i / 2 < panels && count[block] > 0) sums.put(i, task, row + block * kBlockRows, count[block], panel + i / 2);
  }
};

// The lines that this tile's sums of two rows will go to.
template <int panels>
[[gnu::always_inline]] inline void fetch_output(const Rows& rows, std::int64_t panel, std::int64_t row) {
  const std::int64_t last = std::min(row + 2, rows.count[0] + rows.count[1]);
  for (; row < last; ++row) {
    const float* at = rows.task.out + (rows.row + row) * rows.task.out_stride + panel * kPanel;
    asm volatile("prefetchw %0" : : "m"(*at));
    if constexpr (panels == 2) asm volatile("prefetchw %0" : : "m"(at[kPanel]));
  }
}

template <WeightType type, int panels, int blocks>
void one_tile(const Rows& rows, const Panels<type>& now, Panels<type>& next, Pace& widening, Leaving& leaving) {
  const std::int64_t count = num_units(rows.task.num_inputs);
  const std::size_t size = 1024 * static_cast<std::size_t>(count);
  Pace putting{4 - leaving.next, count};
  clear<panels, blocks>();
  for (std::int64_t unit = 0; unit < count; ++unit) {
    const char* at = now.at + 1024 * unit;
    multiply<panels, blocks, true>(at, at + size, rows, unit);
    fetch_output<panels>(rows, now.first, 2 * unit);
    for (std::int64_t due = putting.due(); due > 0; --due) leaving.put_one(rows.task);
    for (std::int64_t due = widening.due(); due > 0; --due) next.widen_one();
  }
  leaving.sums.take<panels, blocks>(rows);
  leaving.row = rows.row;
  std::copy_n(rows.count, 2, leaving.count);
  leaving.panel = now.first;
  leaving.next = 0;
  leaving.panels = panels;
}

template <WeightType type>
void items_of(const LinearTask& task, const char* rounded, Items& items) {
  std::int64_t item = items.take();
  if (item < 0) return;
  const Plan plan(task);
  const std::size_t size = type == kRowsBFloat16 ? 0 : 2 * panel_bytes(kRowsBFloat16, task.num_inputs);
  char* buffers[2] = {widened_buffer(2 * size), nullptr};
  buffers[1] = buffers[0] + size;
  Leaving leaving;
  Panels<type> now(task, item % plan.panel_pairs, buffers[0]);
  if constexpr (type != kRowsBFloat16)
    for (std::int64_t left = now.units(task); left > 0; --left) now.widen_one();
  std::int64_t configured[2] = {0, 0};
  for (int turn = 1; item >= 0; turn ^= 1) {
    const std::int64_t chunk = item / plan.panel_pairs, end = plan.first_row_pair(chunk + 1);
    item = items.take();
    Panels<type> next;
    if (item >= 0) next = Panels<type>(task, item % plan.panel_pairs, buffers[turn]);
    std::int64_t pair = plan.first_row_pair(chunk);
    Pace widening{item >= 0 ? next.units(task) : 0, (end - pair) * num_units(task.num_inputs)};
    for (; pair < end; ++pair) {
      const Rows rows(task, rounded, pair * 2 * kBlockRows);
      if (rows.count[0] != configured[0] || rows.count[1] != configured[1])
        configure({configured[0] = rows.count[0], configured[1] = rows.count[1]});
      if (rows.count[1] > 0)
        now.two ? one_tile<type, 2, 2>(rows, now, next, widening, leaving) : one_tile<type, 1, 2>(rows, now, next, widening, leaving);
      else
        now.two ? one_tile<type, 2, 1>(rows, now, next, widening, leaving) : one_tile<type, 1, 1>(rows, now, next, widening, leaving);
    }
    now = next;
  }
  while (leaving.next < 4) leaving.put_one(task);
}

}  // namespace

std::int64_t bf16_items_of_many_amx(const LinearTask& task) { return Plan(task).items(); }

void bf16_many_rows_amx(const LinearTask& task, const char* rows, Items& items) {
  at_type(task.type, [&](auto type) { items_of<type()>(task, rows, items); });
}

}  // namespace paceline
