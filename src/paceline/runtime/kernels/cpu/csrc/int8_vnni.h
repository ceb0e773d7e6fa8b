// The integer product with VNNI. Units that include this define the width by their flags.
#pragma once

#include "int8_panel.h"

namespace paceline {
namespace {

// A block of `height` rows past groups of a panel that lie one after the other.
template <class Group, int height>
PACELINE_INLINE void add_groups(const Run& run, Sixteen (&sum)[height]) {
  const char *x = run.x, *weight = run.ready;
  constexpr int kScales = height * Group::kGroup, kTails = kScales + 4 * height;
  constexpr int kRecord = height * (Group::kGroup + static_cast<int>(kRecordTail));
  for (std::int64_t g = 0; g < run.num_groups; ++g, x += kRecord, weight += Group::kBytes) {
    if constexpr (Group::kPacked)
      Group::fetch(weight);
    else
      fetch_next(run, g);
    Ints total[height];
#pragma GCC unroll 16
    for (int r = 0; r < height; ++r) total[r] = Group::kStored ? in_all(0) : four_bytes_of(x + kTails + 4 * r);
#pragma GCC unroll 8
    for (int step = 0; step < Group::kSteps; ++step) {
      const Ints codes = Group::codes(weight, step);
#pragma GCC unroll 16
      for (int r = 0; r < height; ++r) total[r] = dot(total[r], codes, x + r * Group::kGroup + 4 * step);
    }
    const Sixteen scale = Group::scale(weight);
    const float* d = reinterpret_cast<const float*>(x + kScales);
#pragma GCC unroll 16
    for (int r = 0; r < height; ++r) sum[r] = fma(scale * all<Sixteen>(d[r]), as_floats(total[r]), sum[r]);
    if constexpr (Group::kStored) {
      const Sixteen offset = Group::offset(weight);
      const float* all_codes = reinterpret_cast<const float*>(x + kTails);
#pragma GCC unroll 16
      for (int r = 0; r < height; ++r) sum[r] = fma(offset, all<Sixteen>(all_codes[r]), sum[r]);
    }
  }
}

template <class Group, int height>
void run_of_groups(const Run& run) {
  Sixteen sum[height];
  begin_sums(run, sum);
  add_groups<Group>(run, sum);
  end_sums(run, sum);
}

// One block of rows: a panel is read once, where it lies.
template <WeightType type, int height>
void one_block(const LinearTask& task, const char* at, std::int64_t first, std::int64_t last) {
  using Group = PackedGroup<type>;
  Run run{};
  run.x = at;
  run.num_groups = task.num_inputs / Group::kGroup;
  run.out_stride = task.out_stride;
  run.num_rows = task.num_rows;
  run.first = run.last = true;
  const std::size_t panel_size = panel_bytes(type, task.num_inputs);
  for (std::int64_t panel = first; panel < last; ++panel) {
    const std::int64_t output = panel * kPanel;
    run.ready = static_cast<const char*>(task.weight) + panel_size * static_cast<std::size_t>(panel);
    run.out = task.out + output;
    run.num_outputs = std::min(kPanel, task.num_outputs - output);
    run.bias = task.bias == nullptr ? nullptr : task.bias + output;
    run_of_groups<Group, height>(run);
  }
}

template <int most>
void vnni_panels(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first, std::int64_t last) {
  at_type(task.type, [&](auto type) {
    if (rows.num_blocks == 1)
      return at_height<1, most>(rows.height,
                                [&](auto height) { one_block<type.value, height.value>(task, at, first, last); });
    constexpr int kLeast = (most + 2) / 2;  // of blocks of nearly equal height
    const RunKernel kernel = at_height<kLeast, most>(rows.height, [](auto height) -> RunKernel {
      return run_of_groups<Ready<decltype(type)::value, false>, decltype(height)::value>;
    });
    all_runs<type.value, false>(task, rows, at, first, last, kMostReady, kernel);
  });
}

}  // namespace
}  // namespace paceline
