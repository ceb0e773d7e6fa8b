// Panels of codes as VNNI and AMX read them: where they are, for few rows; or made ready once, for many.
#pragma once

#include <algorithm>
#include <type_traits>

#include "int8.h"
#include "int8_vector.h"

namespace paceline {
namespace {

constexpr std::int64_t kMostReady = 20 << 10;  // bytes of a panel that are made ready at once: part of a first-level cache
constexpr std::size_t kBlockBytes = 512 << 10;  // of quantised rows that pass a panel: in a second-level cache of 1 MiB
constexpr std::size_t kAhead = 8 << 10;  // bytes of weights from where is read to where memory is fetched from

// A group as it is packed (blocks.h). Codes come as unsigned bytes.
template <WeightType type>
struct PackedGroup {
  static constexpr BlockFormat kFormat = block_format(type);
  static constexpr bool kPacked = true, kStored = kFormat.offset == Offset::kStored;
  static constexpr int kGroup = kFormat.group, kSteps = kGroup / 4;
  static constexpr std::size_t kHead = head_bytes(kFormat), kStep = step_bytes(kFormat), kBytes = group_bytes(kFormat);

  PACELINE_INLINE static Sixteen number(const char* at) {
    return kFormat.scale_bytes == 2 ? half_floats_at(at) : load<Sixteen>(reinterpret_cast<const float*>(at));
  }
  PACELINE_INLINE static Sixteen scale(const char* at) { return number(at); }
  PACELINE_INLINE static Sixteen offset(const char* at) { return number(at + kPanel * kFormat.scale_bytes); }
  PACELINE_INLINE static Ints codes(const char* at, int step) {
    at += kHead + static_cast<std::size_t>(step) * kStep;
    if constexpr (kFormat.bits == 4) return halves_at(at);
    return kFormat.offset == Offset::kNone ? with_sign_turned(bytes_at(at)) : bytes_at(at);
  }
  PACELINE_INLINE static void fetch(const char* at) {
#pragma GCC unroll 16
    for (std::size_t line = 0; line < kBytes; line += 64) _mm_prefetch(at + kAhead + line, _MM_HINT_T0);
  }
};

// The same made ready: scale[16] and offset[16] (if stored) as floats, then 64 bytes of codes for each four k.
template <bool stored, int group>
struct ReadyGroup {
  static constexpr bool kPacked = false, kStored = stored;
  static constexpr int kGroup = group, kSteps = group / 4;
  static constexpr std::size_t kHead = stored ? 128 : 64, kBytes = kHead + 16 * group;

  PACELINE_INLINE static Sixteen scale(const char* at) { return load<Sixteen>(reinterpret_cast<const float*>(at)); }
  PACELINE_INLINE static Sixteen offset(const char* at) { return scale(at + 64); }
  PACELINE_INLINE static Ints codes(const char* at, int step) { return bytes_at(at + kHead + 64 * step); }
};

// What runs of many rows read. `centred`: codes are signed and around zero, as 8 bits are packed; else unsigned.
template <WeightType type, bool centred>
using Ready = std::conditional_t<centred && type == kInt8Signed, PackedGroup<type>,
                                 ReadyGroup<PackedGroup<type>::kStored, PackedGroup<type>::kGroup>>;

// Groups of a panel as Ready has them, in `ready` if they must change.
template <WeightType type, bool centred>
const char* make_ready(const char* weight, std::int64_t num_groups, char* ready) {
  using From = PackedGroup<type>;
  using To = Ready<type, centred>;
  if constexpr (To::kPacked) return weight;
  const char* first = ready;
  for (std::int64_t g = 0; g < num_groups; ++g, weight += From::kBytes, ready += To::kBytes) {
    store(reinterpret_cast<float*>(ready), From::scale(weight));
    if constexpr (To::kStored) store(reinterpret_cast<float*>(ready + 64), From::offset(weight));
#pragma GCC unroll 8
    for (int step = 0; step < From::kSteps; ++step) {
      Ints codes = From::codes(weight, step);
      if constexpr (centred && !To::kStored) codes = minus_bytes(codes, static_cast<char>(code_shift(From::kFormat)));
      put(ready + To::kHead + 64 * step, codes);
    }
  }
  return first;
}

// One run of groups of a panel past one block of rows.
struct Run {
  const char* x;      // the block from the run's first group on
  const char* ready;  // the groups, one after the other
  std::int64_t num_groups;
  float* out;         // of the block's first row: sums so far, and where they go
  std::int64_t out_stride, num_outputs, num_rows;  // outputs of the panel, rows of the block that exist
  const float* bias;  // or null: added at the end
  bool first, last;   // run of the panel
  const char* next;   // or null: what the next run is made from, fetched meanwhile
  std::size_t next_step;  // bytes of it for each group of this one
};

// Into the second-level cache: the first one is full.
PACELINE_INLINE void fetch_next(const Run& run, std::int64_t group) {
  if (run.next == nullptr) return;
  const char* at = run.next + run.next_step * static_cast<std::size_t>(group);
  for (std::size_t line = 0; line < run.next_step; line += 64) _mm_prefetch(at + line, _MM_HINT_T1);
}

// What computes a run, for the height of its block.
using RunKernel = void (*)(const Run&);

// Every run, of nearly equal length and of at most `most_groups` groups, of panels [first, last) past every block of rows.
template <WeightType type, bool centred>
void all_runs(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first, std::int64_t last,
              std::int64_t most_groups, RunKernel kernel) {
  using Group = Ready<type, centred>;
  alignas(64) char ready[kMostReady];
  const std::int64_t num_groups = task.num_inputs / Group::kGroup;
  most_groups = std::min(most_groups, kMostReady / static_cast<std::int64_t>(Group::kBytes));
  const std::int64_t num_runs = (num_groups + most_groups - 1) / most_groups;
  const std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kBlockBytes / rows.block_bytes));
  for (std::int64_t begin = 0; begin < rows.num_blocks; begin += most)
    for (std::int64_t panel = first; panel < last; ++panel) {
      const char* weight =
          static_cast<const char*>(task.weight) + panel_bytes(type, task.num_inputs) * static_cast<std::size_t>(panel);
      const std::int64_t output = panel * kPanel;
      for (std::int64_t i = 0; i < num_runs; ++i) {
        const std::int64_t group = num_groups * i / num_runs;
        Run run{};
        run.num_groups = num_groups * (i + 1) / num_runs - group;
        run.out_stride = task.out_stride;
        run.num_outputs = std::min(kPanel, task.num_outputs - output);
        run.bias = task.bias == nullptr ? nullptr : task.bias + output;
        run.first = i == 0;
        run.last = i + 1 == num_runs;
        const char* packed = weight + PackedGroup<type>::kBytes * static_cast<std::size_t>(group);
        run.ready = make_ready<type, centred>(packed, run.num_groups, ready);
        const std::int64_t end = std::min(begin + most, rows.num_blocks);
        for (std::int64_t block = begin; block < end; ++block) {
          if (block + 1 == end && (panel + 1 < last || !run.last)) {
            run.next = packed + PackedGroup<type>::kBytes * static_cast<std::size_t>(run.num_groups);
            run.next_step = PackedGroup<type>::kBytes;
          }
          const std::int64_t row = block * rows.height;
          run.x = at + rows.block_bytes * static_cast<std::size_t>(block) +
                  rows.group_bytes * static_cast<std::size_t>(group);
          run.out = task.out + row * task.out_stride + output;
          run.num_rows = std::min<std::int64_t>(rows.height, task.num_rows - row);
          kernel(run);
        }
      }
    }
}

// The sums of a block's rows before a run, and after it.
template <int height>
PACELINE_INLINE void begin_sums(const Run& run, Sixteen (&sum)[height]) {
  if (run.first)  // lines that are written at the end come meanwhile
    for (int r = 0; r < run.num_rows; ++r) asm volatile("prefetchw %0" : : "m"(run.out[r * run.out_stride]));
#pragma GCC unroll 16
  for (int r = 0; r < height; ++r)
    sum[r] = run.first || r >= run.num_rows ? all<Sixteen>(0.0f) : load_some(run.out + r * run.out_stride, run.num_outputs);
}

template <int height>
PACELINE_INLINE void end_sums(const Run& run, const Sixteen (&sum)[height]) {
  const bool add = run.last && run.bias != nullptr;
  const Sixteen bias = add ? load_some(run.bias, run.num_outputs) : all<Sixteen>(0.0f);
#pragma GCC unroll 16
  for (int r = 0; r < height; ++r)
    if (r < run.num_rows) store_some(run.out + r * run.out_stride, add ? sum[r] + bias : sum[r], run.num_outputs);
}

// work(a compile-time number equal to `height`, of `least` to `most`).
template <int least, int most, class Work>
PACELINE_INLINE auto at_height(int height, const Work& work) {
  if constexpr (most > least)
    if (height < most) return at_height<least, most - 1>(height, work);
  return work(std::integral_constant<int, most>{});
}

}  // namespace
}  // namespace paceline
