// The product of bfloat16 with tiles, for few rows: panels widen on the way to the tiles, and all rows meet them there. And the
// rounding of rows, however many. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
#include "bf16_tiles.h"
#include "parallel.h"
#include "turn_avx512.h"

namespace paceline {
namespace {

constexpr int kAhead = 2;  // units between widening and multiplying: stores must reach the cache
constexpr int kRing = 2 * kAhead;
static_assert(kFewRows == 3 * kBlockRows);

// One to three blocks of rows; the last may have fewer rows than a tile. A single block meets two panels at once, so that
// there are two chains of tile products.
// Tiles from 0 on: sums. 4 and perhaps 5: weights. 7: the last block's rows. 5, 6: those of the others.
template <int blocks>
struct FewRows {
  static constexpr int kPanels = blocks == 1 ? 2 : 1, kSums = kPanels * blocks;
  const LinearTask& task;
  const char* rounded;
  std::int64_t last;  // rows of the last block

  FewRows(const LinearTask& task, const char* rounded)
      : task(task), rounded(rounded), last(task.num_rows - (blocks - 1) * kBlockRows) {
    TileConfig config(kBlockRows, kBlockRows);
    for (int i = blocks - 1; i < kSums; ++i) config.row_bytes[i] = static_cast<std::uint16_t>(4 * last);
    config.row_bytes[7] = static_cast<std::uint16_t>(4 * last);
    configure(config);
  }

  [[gnu::always_inline]] void clear() const {
    _tile_zero(0);
    if constexpr (kSums > 1) _tile_zero(1);
    if constexpr (kSums > 2) _tile_zero(2);
  }

  // Adds the products of a unit of one panel, or of two.
  [[gnu::always_inline]] void multiply(const char* first, const char* second, std::int64_t unit) const {
    const std::size_t block = bf16_rows_bytes(kBlockRows, task.num_inputs);
    const char* full = rounded + 1024 * unit;
    const char* part = rounded + (blocks - 1) * block + 64 * unit * last;
    _tile_loadd(4, first, 64);
    if constexpr (blocks > 1) {
      _tile_loadd(5, full, 64);
      _tile_dpbf16ps(0, 4, 5);
    }
    if constexpr (blocks > 2) {
      _tile_loadd(6, full + block, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    _tile_loadd(7, part, 4 * last);
    if constexpr (blocks == 1) {
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, second, 64);
      _tile_dpbf16ps(1, 5, 7);
    }
    if constexpr (blocks == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (blocks == 3) _tile_dpbf16ps(2, 4, 7);
  }

  [[gnu::always_inline]] void take(Sums& sums) const {
    const std::int64_t stride = last == 1 ? 4 : 64;
    _tile_stored(0, sums.tile[0], blocks == 1 ? stride : 64);
    if constexpr (kSums > 1) _tile_stored(1, sums.tile[1], blocks < 3 ? stride : 64);
    if constexpr (kSums > 2) _tile_stored(2, sums.tile[2], stride);
  }

  void put(Sums& sums, int i, std::int64_t panel) const {
    if ((panel + i % kPanels) * kPanel >= task.num_outputs) return;  // two were multiplied where one is left
    const int block = i / kPanels;
    sums.put(i, task, block * kBlockRows, block + 1 < blocks ? kBlockRows : last, panel + i % kPanels);
  }
};

// Every pair of panels that is given. While one multiplies, the next is fetched and the sums of the one before are put.
template <WeightType type, int blocks>
void pairs_past(const LinearTask& task, const char* rounded, Items& items) {
  constexpr std::size_t kUnitBytes = unit_bytes(type);
  std::int64_t pair = items.take();
  if (pair < 0) return;
  const FewRows<blocks> rows(task, rounded);
  constexpr int kPanels = FewRows<blocks>::kPanels, kSums = FewRows<blocks>::kSums;
  const std::int64_t count = num_units(task.num_inputs), num_panels = (task.num_outputs + kPanel - 1) / kPanel;
  const std::size_t size = panel_bytes(type, task.num_inputs);
  alignas(64) char ring[kRing][kPanels][1024];
  Sums sums;
  std::int64_t leaving = 0;  // panel of those sums
  int next_sum = kSums;      // that has yet to be put
  while (pair >= 0) {
    const std::int64_t next = items.take(), end = std::min(2 * pair + 2, num_panels);
    for (std::int64_t panel = 2 * pair; panel < end; panel += kPanels) {
      const char* weight = panel_at<type>(task, panel);
      const char* second = panel + 1 < end ? weight + size : weight;  // else the last one twice
      const std::int64_t coming = panel + kPanels < end ? panel + kPanels : 2 * next;
      const char* ahead = coming < 0 ? nullptr : panel_at<type>(task, coming);
      Pace putting{kSums - next_sum, count};
      rows.clear();
      for (std::int64_t step = 0; step < count + kAhead; ++step) {
        if (step < count) {
          store_unit<type>(weight, ring[step % kRing][0]);
          weight += kUnitBytes;
          if constexpr (kPanels == 2) {
            store_unit<type>(second, ring[step % kRing][1]);
            second += kUnitBytes;
          }
          if (ahead != nullptr) {
#pragma GCC unroll 32
            for (std::size_t line = 0; line < kPanels * kUnitBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
            ahead += kPanels * kUnitBytes;
          }
          for (std::int64_t due = putting.due(); due > 0; --due) rows.put(sums, next_sum++, leaving);
        }
        if (step >= kAhead) {
          const std::int64_t unit = step - kAhead;
          rows.multiply(ring[unit % kRing][0], ring[unit % kRing][kPanels - 1], unit);
        }
      }
      rows.take(sums);
      leaving = panel;
      next_sum = 0;
    }
    pair = next;
  }
  while (next_sum < kSums) rows.put(sums, next_sum++, leaving);
}

// Weights that are bfloat16 already pass no ring: they go the way of many rows.
bool are_few(const LinearTask& task) { return task.num_rows <= kFewRows && task.type != kRowsBFloat16; }

template <WeightType type>
void few_rows(const LinearTask& task, const char* rounded, Items& items) {
  if constexpr (type != kRowsBFloat16) {
    if (task.num_rows <= kBlockRows) return pairs_past<type, 1>(task, rounded, items);
    if (task.num_rows <= 2 * kBlockRows) return pairs_past<type, 2>(task, rounded, items);
    pairs_past<type, 3>(task, rounded, items);
  }
}

}  // namespace

void round_blocks_amx(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last) {
  const std::int64_t units = num_units(task.num_inputs);
  for (std::int64_t block = first; block < last; ++block) {
    const std::int64_t begin = block * kBlockRows, count = std::min(task.num_rows - begin, kBlockRows);
    const __mmask16 present = static_cast<__mmask16>((1u << count) - 1);
    char* to = rows + bf16_rows_bytes(begin, task.num_inputs);
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t left = std::min(task.num_inputs - unit * kUnit, kUnit);
      const std::uint32_t inputs = left == kUnit ? ~0u : (1u << left) - 1;
      const auto pairs_of = [&](std::int64_t r) {
        const float* x = task.x + (begin + r) * task.x_stride + unit * kUnit;
        return bf16_of(_mm512_maskz_loadu_ps(static_cast<__mmask16>(inputs), x),
                       _mm512_maskz_loadu_ps(static_cast<__mmask16>(inputs >> 16), x + 16));
      };
      if (count == 1) {
        _mm512_store_si512(to + 64 * unit, pairs_of(0));
        continue;
      }
      __m512i turned[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) turned[r] = r < count ? pairs_of(r) : _mm512_setzero_si512();
      turn_16(turned);
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair)
        _mm512_mask_storeu_epi32(to + (64 * unit + 4 * pair) * count, present, turned[pair]);
    }
  }
}

std::int64_t bf16_items_amx(const LinearTask& task) {
  return are_few(task) ? (task.num_outputs + 2 * kPanel - 1) / (2 * kPanel) : bf16_items_of_many_amx(task);
}

void bf16_products_amx(const LinearTask& task, const char* rows, Items& items) {
  if (are_few(task))
    at_type(task.type, [&](auto type) { few_rows<type()>(task, rows, items); });
  else
    bf16_many_rows_amx(task, rows, items);
  _tile_release();  // else the system would save and restore the tiles whenever the thread loses its core
}

}  // namespace paceline
