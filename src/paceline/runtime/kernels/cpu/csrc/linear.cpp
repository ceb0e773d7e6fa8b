// The float product. Compiled once for AVX2 and once for AVX-512, with the same bits; call it only where the processor has
// the instructions.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "tile.h"

namespace paceline {
namespace PACELINE_LEVEL {
namespace {

// Of activations: half of a second-level cache, which is 512 KiB or more on processors with AVX2 and 1 MiB or more on those
// with AVX-512; 48 rows at least.
constexpr std::int64_t kBlockBytes = kTilePanels == 1 ? 256 << 10 : 512 << 10;
constexpr std::int64_t kWidenRows = kTilePanels == 1 ? 9 : 7;  // and more: a quantised panel is widened once for all
constexpr std::int64_t kLeastWidened = 192;                    // rows, before a panel is widened anew

const char* panel_at(const LinearTask& task, std::int64_t panel) {
  return static_cast<const char*>(task.weight) +
         panel_bytes(task.type, task.num_inputs) * static_cast<std::size_t>(panel);
}

// Rows of the largest tile of a type: blocks in more rows are widened first.
template <WeightType type>
constexpr int kRowsOf = type >= kFirstBlocks ? std::min<int>(kMaxRows, kWidenRows - 1) : kMaxRows;

// A tile of `rows` rows, at most `most`.
template <WeightType type, int most, int panels>
void one_tile(const LinearTask& task, int rows, std::int64_t row, std::int64_t panel, const char* weight,
              const char* ahead) {
  if constexpr (most > 1)
    if (rows < most) return one_tile<type, most - 1, panels>(task, rows, row, panel, weight, ahead);
  tile<type, most, panels>(task, row, panel, weight, ahead);
}

// Few rows: several panels at once, so that enough sums are under way to hide the latency of an addition.
template <WeightType type, int rows, int panels>
void few_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  std::int64_t panel = first;
  for (; panel + panels <= last; panel += panels) tile<type, rows, panels>(task, 0, panel, panel_at(task, panel), nullptr);
  for (; panel < last; ++panel) tile<type, rows, 1>(task, 0, panel, panel_at(task, panel), nullptr);
}

// Rows [begin, end) past `panels` panels, in tiles of nearly equal height. The last tile fetches `next`.
template <WeightType type, int panels>
void tiles(const LinearTask& task, std::int64_t begin, std::int64_t end, std::int64_t panel, const char* weight,
           const char* next) {
  constexpr int kRows = kRowsOf<type>;
  const std::int64_t num_rows = end - begin, num_tiles = (num_rows + kRows - 1) / kRows;
  const std::int64_t least = num_rows / num_tiles, larger = num_rows % num_tiles;
  std::int64_t row = begin;
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    const int rows = static_cast<int>(least + (t < larger ? 1 : 0));
    one_tile<type, kRows, panels>(task, rows, row, panel, weight, t + 1 == num_tiles ? next : nullptr);
    row += rows;
  }
}

// Calls work(std::integral_constant<int, panels>{}, panel) for panels [first, last), kTilePanels at once and then the rest.
template <typename Work>
void by_panels(std::int64_t first, std::int64_t last, const Work& work) {
  std::int64_t panel = first;
  for (; panel + kTilePanels <= last; panel += kTilePanels) work(std::integral_constant<int, kTilePanels>{}, panel);
  if constexpr (kTilePanels > 1)
    for (; panel < last; ++panel) work(std::integral_constant<int, 1>{}, panel);
}

// Calls work(begin, end) for blocks of rows, nearly equal and `least` or more, whose activations stay in the second-level cache.
template <typename Work>
void by_blocks(const LinearTask& task, std::int64_t least, const Work& work) {
  const std::int64_t most = std::max<std::int64_t>(least, kBlockBytes / 4 / task.num_inputs);
  const std::int64_t num_blocks = (task.num_rows + most - 1) / most;
  for (std::int64_t block = 0; block < num_blocks; ++block)
    work(task.num_rows * block / num_blocks, task.num_rows * (block + 1) / num_blocks);
}

// Many rows: panels stay in the cache while rows pass them, and the next ones are fetched during the last tile. Each block
// of rows reads the weights anew.
template <WeightType type>
void many_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  by_blocks(task, 48, [&](std::int64_t begin, std::int64_t end) {
    by_panels(first, last, [&](auto panels, std::int64_t panel) {
      const char* next = panel + 2 * panels <= last ? panel_at(task, panel + panels) : nullptr;
      tiles<type, panels>(task, begin, end, panel, panel_at(task, panel), next);
    });
  });
}

// Many rows of quantised weights: panels are widened to floats in a buffer that stays in the second-level cache, and
// rows pass them there.
template <WeightType type>
void many_rows_widened(const LinearTask& task, std::int64_t first, std::int64_t last) {
  thread_local std::vector<float> buffer;
  const std::int64_t size = task.num_inputs * kPanel;
  buffer.resize(static_cast<std::size_t>(size * kTilePanels));
  const char* wide = reinterpret_cast<const char*>(buffer.data());
  by_blocks(task, kLeastWidened, [&](std::int64_t begin, std::int64_t end) {
    by_panels(first, last, [&](auto panels, std::int64_t panel) {
      for (int p = 0; p < panels; ++p) widen<type>(panel_at(task, panel + p), task.num_inputs, buffer.data() + size * p);
      tiles<kFloat32, panels>(task, begin, end, panel, wide, nullptr);
    });
  });
}

template <WeightType type>
void panels_of(const LinearTask& task, std::int64_t first, std::int64_t last) {
  switch (task.num_rows) {
    case 0: return;
    case 1: return few_rows<type, 1, 4>(task, first, last);
    case 2: return few_rows<type, 2, kTilePanels == 1 ? 3 : 4>(task, first, last);
    case 3: return few_rows<type, 3, 2>(task, first, last);
    default:
      if constexpr (type >= kFirstBlocks)
        if (task.num_rows >= kWidenRows) return many_rows_widened<type>(task, first, last);
      return many_rows<type>(task, first, last);
  }
}

}  // namespace

void linear_panels(const LinearTask& task, std::int64_t first, std::int64_t last) {
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

}  // namespace PACELINE_LEVEL
}  // namespace paceline
