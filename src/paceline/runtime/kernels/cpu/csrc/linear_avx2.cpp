// The product on AVX2 with FMA and F16C. Compiled with those instructions on; call it only where the processor has them.
#include <algorithm>
#include <vector>

#include "tile_avx2.h"

namespace paceline {
namespace {

constexpr std::int64_t kBlockBytes = 256 << 10;  // of activations: half of a second-level cache of 512 KiB; 48 rows at least
constexpr std::int64_t kWidenRows = 9;           // from so many rows on, a quantised panel is widened once for all of them

const char* panel_at(const LinearTask& task, std::int64_t panel) {
  return static_cast<const char*>(task.weight) +
         panel_bytes(task.type, task.num_inputs) * static_cast<std::size_t>(panel);
}

// Few rows: several panels at once, so that enough sums are under way to hide the latency of an addition.
template <WeightType type, int rows, int panels>
void few_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  std::int64_t panel = first;
  for (; panel + panels <= last; panel += panels) tile<type, rows, panels>(task, 0, panel, panel_at(task, panel), nullptr);
  for (; panel < last; ++panel) tile<type, rows, 1>(task, 0, panel, panel_at(task, panel), nullptr);
}

template <WeightType type>
void one_tile(const LinearTask& task, int rows, std::int64_t row, std::int64_t panel, const char* weight,
              const char* ahead) {
  switch (rows) {
    case 1: return tile<type, 1, 1>(task, row, panel, weight, ahead);
    case 2: return tile<type, 2, 1>(task, row, panel, weight, ahead);
    case 3: return tile<type, 3, 1>(task, row, panel, weight, ahead);
    case 4: return tile<type, 4, 1>(task, row, panel, weight, ahead);
    case 5: return tile<type, 5, 1>(task, row, panel, weight, ahead);
    default: return tile<type, 6, 1>(task, row, panel, weight, ahead);
  }
}

// Rows [begin, end) past one panel, in tiles of nearly equal height. The last tile fetches `next`.
template <WeightType type>
void tiles(const LinearTask& task, std::int64_t begin, std::int64_t end, std::int64_t panel, const char* weight,
           const char* next) {
  const std::int64_t num_rows = end - begin, num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  const std::int64_t least = num_rows / num_tiles, larger = num_rows % num_tiles;
  std::int64_t row = begin;
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    const int rows = static_cast<int>(least + (t < larger ? 1 : 0));
    one_tile<type>(task, rows, row, panel, weight, t + 1 == num_tiles ? next : nullptr);
    row += rows;
  }
}

// Many rows: a panel stays in the cache while rows pass it, and the next one is fetched during the last tile. Rows pass in
// blocks whose activations stay in the second-level cache too; each block reads the weights anew.
template <WeightType type>
void many_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t most = std::max<std::int64_t>(8 * kMaxRows, kBlockBytes / 4 / task.num_inputs);
  const std::int64_t num_blocks = (task.num_rows + most - 1) / most;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t begin = task.num_rows * block / num_blocks, end = task.num_rows * (block + 1) / num_blocks;
    for (std::int64_t panel = first; panel < last; ++panel)
      tiles<type>(task, begin, end, panel, panel_at(task, panel), panel + 1 < last ? panel_at(task, panel + 1) : nullptr);
  }
}

// Many rows of quantised weights: each panel is widened to floats in a buffer that stays in the second-level cache, and
// all rows pass it there.
template <WeightType type>
void many_rows_widened(const LinearTask& task, std::int64_t first, std::int64_t last) {
  thread_local std::vector<float> buffer;
  buffer.resize(static_cast<std::size_t>(task.num_inputs * kPanel));
  for (std::int64_t panel = first; panel < last; ++panel) {
    widen<type>(panel_at(task, panel), task.num_inputs, buffer.data());
    tiles<kFloat32>(task, 0, task.num_rows, panel, reinterpret_cast<const char*>(buffer.data()), nullptr);
  }
}

template <WeightType type>
void panels_of(const LinearTask& task, std::int64_t first, std::int64_t last) {
  switch (task.num_rows) {
    case 0: return;
    case 1: return few_rows<type, 1, 4>(task, first, last);
    case 2: return few_rows<type, 2, 3>(task, first, last);
    case 3: return few_rows<type, 3, 2>(task, first, last);
    default:
      if constexpr (type >= kFirstBlocks)
        if (task.num_rows >= kWidenRows) return many_rows_widened<type>(task, first, last);
      return many_rows<type>(task, first, last);
  }
}

}  // namespace

void linear_panels_avx2(const LinearTask& task, std::int64_t first, std::int64_t last) {
  switch (task.type) {
    case kFloat32: return panels_of<kFloat32>(task, first, last);
    case kBFloat16: return panels_of<kBFloat16>(task, first, last);
    case kHalf4Centred: return panels_of<kHalf4Centred>(task, first, last);
    case kHalf4Offset: return panels_of<kHalf4Offset>(task, first, last);
    case kHalf8: return panels_of<kHalf8>(task, first, last);
    case kHalf8Offset: return panels_of<kHalf8Offset>(task, first, last);
    case kFloat4Offset: return panels_of<kFloat4Offset>(task, first, last);
    case kFloat8Offset: return panels_of<kFloat8Offset>(task, first, last);
    default: return panels_of<kFloat8By16>(task, first, last);
  }
}

}  // namespace paceline
