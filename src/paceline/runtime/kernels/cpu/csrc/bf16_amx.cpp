// The product of bfloat16 with tiles, for few rows: weights widen on the way to the tiles. And rows rounded for any number of
// them. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
#include <cassert>

#include "bf16_tiles.h"
#include "turn_avx512.h"

namespace paceline {
namespace {

constexpr int kAhead = 2;  // units between widening and multiplying: stores must reach the cache

template <int panels, int blocks>
void store(const Rows& rows, std::int64_t panel) {
  Sums sums;
  sums.take<panels, blocks>(rows);
  for (int p = 0; p < panels; ++p)
    for (int b = 0; b < blocks; ++b) sums.put(2 * p + b, rows.task, rows.row + b * kBlockRows, rows.count[b], panel + p);
}

// One or two panels, `panel_size` bytes apart, that are rows of bfloat16 already.
template <int panels, int blocks>
void one_tile(const Rows& rows, std::int64_t panel, const char* weight, std::size_t panel_size) {
  clear<panels, blocks>();
  const std::int64_t count = num_units(rows.task.num_inputs);
  for (std::int64_t unit = 0; unit < count; ++unit) {
    const char* at = weight + 1024 * unit;
    multiply<panels, blocks, false>(at, at + panel_size, rows, unit);
  }
  store<panels, blocks>(rows, panel);
}

// One or two panels that widen on the way, through a ring that stays in the first-level cache. `ahead`, if not null, is
// fetched meanwhile: the next panels.
template <WeightType type, int panels, int blocks>
void one_tile_widening(const Rows& rows, std::int64_t panel, const char* weight, std::size_t panel_size, const char* ahead) {
  constexpr int kRing = 2 * kAhead;
  constexpr std::size_t kUnitBytes = unit_bytes(type);
  alignas(64) char ring[kRing][2][1024];
  clear<panels, blocks>();
  const std::int64_t count = num_units(rows.task.num_inputs);
  for (std::int64_t step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      const char* at = weight + kUnitBytes * static_cast<std::size_t>(step);
      store_unit<type>(at, ring[step % kRing][0]);
      if constexpr (panels == 2) store_unit<type>(at + panel_size, ring[step % kRing][1]);
      if (ahead != nullptr) {
#pragma GCC unroll 32
        for (std::size_t line = 0; line < panels * kUnitBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        ahead += panels * kUnitBytes;
      }
    }
    if (step >= kAhead) {
      const std::int64_t unit = step - kAhead;
      multiply<panels, blocks, false>(ring[unit % kRing][0], ring[unit % kRing][1], rows, unit);
    }
  }
  store<panels, blocks>(rows, panel);
}

template <WeightType type, int panels, int blocks>
void one_or_two(const Rows& rows, std::int64_t panel, std::size_t size, bool more) {
  const char* weight = panel_at<type>(rows.task, panel);
  if constexpr (type == kRowsBFloat16)
    one_tile<panels, blocks>(rows, panel, weight, size);
  else
    one_tile_widening<type, panels, blocks>(rows, panel, weight, size, more ? weight + 2 * size : nullptr);
}

template <WeightType type>
void panels_of(const LinearTask& task, const char* rounded, std::int64_t first, std::int64_t last) {
  const Rows rows(task, rounded, 0);
  configure({rows.count[0], rows.count[1]});
  const std::size_t size = panel_bytes(type, task.num_inputs);
  const bool both = rows.count[1] != 0;
  std::int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) {
    const bool more = panel + 4 <= last;
    both ? one_or_two<type, 2, 2>(rows, panel, size, more) : one_or_two<type, 2, 1>(rows, panel, size, more);
  }
  if (panel < last) both ? one_or_two<type, 1, 2>(rows, panel, size, false) : one_or_two<type, 1, 1>(rows, panel, size, false);
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

void bf16_panels_amx(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last) {
  assert(task.num_rows <= kFewRows);
  if (task.num_rows == 0) return;
  at_type(task.type, [&](auto type) { panels_of<type()>(task, rows, first, last); });
  _tile_release();  // else the system would save and restore the tiles whenever the thread loses its core
}

}  // namespace paceline
