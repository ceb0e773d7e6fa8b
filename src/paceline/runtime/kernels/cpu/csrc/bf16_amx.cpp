// The product of bfloat16 with tiles. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
#include <algorithm>
#include <vector>

#include "bf16_widen.h"
#include "turn_avx512.h"

namespace paceline {
namespace {

constexpr std::int64_t kFewRows = 2 * kBlockRows;  // weights widen on the way to the tiles: up to here they are used once
constexpr std::size_t kWidened = 512 << 10;        // bytes of widened weights, beside rows in a second-level cache of 2 MiB
constexpr int kAhead = 2;                          // units between widening and multiplying: stores must reach the cache

// Tiles 0..3: sums, [panel][block of rows]. 4, 5: two panels' units. 6, 7: a unit of two blocks of rows.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};

  TileConfig(std::int64_t first, std::int64_t second) {  // rows of the two blocks; of the second perhaps none
    const std::int64_t columns[8] = {first, second, first, second, 16, 16, first, second};
    for (int i = 0; i < 8; ++i) {
      row_bytes[i] = static_cast<std::uint16_t>(4 * columns[i]);
      num_rows[i] = columns[i] == 0 ? 0 : 16;
    }
  }
};

// The library's own function for it tells GCC 12 of eight bytes only, which may leave the others unwritten.
inline void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }

// One or two blocks of rounded rows: what passes the weights together.
struct Rows {
  const LinearTask& task;
  std::int64_t row;        // of the task
  std::int64_t count[2];   // rows of each block
  const char* units[2];    // where their units are

  Rows(const LinearTask& task, const char* rows, std::int64_t row) : task(task), row(row) {
    for (int b = 0; b < 2; ++b) {
      const std::int64_t begin = row + b * kBlockRows;
      count[b] = std::clamp<std::int64_t>(task.num_rows - begin, 0, kBlockRows);
      units[b] = rows + bf16_rows_bytes(begin, task.num_inputs);
    }
  }
};

// Adds a unit's products to the sums.
template <int panels, int blocks>
[[gnu::always_inline]] inline void multiply(const char* first, const char* second, const Rows& rows, std::int64_t unit) {
  const std::int64_t size = 2 * kUnit * unit;  // of one row up to this unit
  const char* one = rows.units[0] + size * rows.count[0];
  const char* two = rows.units[1] + size * rows.count[1];
  _tile_loadd(4, first, 64);
  _tile_loadd(6, one, 4 * rows.count[0]);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (panels == 2) {
    _tile_loadd(5, second, 64);
    _tile_dpbf16ps(2, 5, 6);
  }
  if constexpr (blocks == 2) {
    _tile_loadd(7, two, 4 * rows.count[1]);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (panels == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

// Sums of a panel and a block of rows, [16 outputs][count], to their place, with the bias.
void write(float* sums, const LinearTask& task, std::int64_t row, std::int64_t count, std::int64_t panel) {
  const std::int64_t output = panel * kPanel, left = std::min(task.num_outputs - output, kPanel);
  const __mmask16 outputs = static_cast<__mmask16>((1u << left) - 1);
  const __m512 bias = task.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(outputs, task.bias + output);
  float* out = task.out + row * task.out_stride + output;
  const auto put = [&](__m512 numbers, float* at) {
    _mm512_mask_storeu_ps(at, outputs, task.bias == nullptr ? numbers : _mm512_add_ps(numbers, bias));
  };
  if (count == 1) return put(_mm512_load_ps(sums), out);
  __m512i turned[16];
  for (int i = 0; i < 16; ++i) turned[i] = _mm512_load_si512(sums + 16 * i);
  turn_16(turned);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(sums + 16 * i, turned[i]);
  for (std::int64_t r = 0; r < count; ++r) put(_mm512_load_ps(sums + 16 * r), out + r * task.out_stride);
}

template <int panels, int blocks>
void store(const Rows& rows, std::int64_t panel) {
  alignas(64) float sums[4][16 * 16];
  const std::int64_t stride[2] = {rows.count[0] == 1 ? 4 : 64, rows.count[1] == 1 ? 4 : 64};
  _tile_stored(0, sums[0], stride[0]);
  if constexpr (blocks == 2) _tile_stored(1, sums[1], stride[1]);
  if constexpr (panels == 2) _tile_stored(2, sums[2], stride[0]);
  if constexpr (panels == 2 && blocks == 2) _tile_stored(3, sums[3], stride[1]);
  for (int p = 0; p < panels; ++p)
    for (int b = 0; b < blocks; ++b)
      write(sums[2 * p + b], rows.task, rows.row + b * kBlockRows, rows.count[b], panel + p);
}

template <int panels, int blocks>
[[gnu::always_inline]] inline void clear() {
  _tile_zero(0);
  if constexpr (blocks == 2) _tile_zero(1);
  if constexpr (panels == 2) _tile_zero(2);
  if constexpr (panels == 2 && blocks == 2) _tile_zero(3);
}

// One or two panels that are rows of bfloat16 already, `panel_size` bytes apart.
template <int panels, int blocks>
void one_tile(const Rows& rows, std::int64_t panel, const char* widened, std::size_t panel_size) {
  clear<panels, blocks>();
  const std::int64_t count = num_units(rows.task.num_inputs);
  for (std::int64_t unit = 0; unit < count; ++unit) {
    const char* at = widened + 1024 * unit;
    multiply<panels, blocks>(at, at + panel_size, rows, unit);
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
      multiply<panels, blocks>(ring[unit % kRing][0], ring[unit % kRing][1], rows, unit);
    }
  }
  store<panels, blocks>(rows, panel);
}

// Calls tile(panel, two) for pairs of panels and what is left.
template <typename Tile>
void in_pairs(std::int64_t first, std::int64_t last, const Tile& tile) {
  std::int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) tile(panel, true);
  if (panel < last) tile(panel, false);
}

struct alignas(64) Line {
  char bytes[64];
};

// Memory of this thread to widen panels in.
char* widened_buffer(std::size_t bytes) {
  thread_local std::vector<Line> buffer;
  if (buffer.size() < bytes / 64) buffer.resize(bytes / 64);
  return reinterpret_cast<char*>(buffer.data());
}

template <WeightType type>
const char* panel_at(const LinearTask& task, std::int64_t panel) {
  return static_cast<const char*>(task.weight) + panel_bytes(type, task.num_inputs) * static_cast<std::size_t>(panel);
}

template <WeightType type>
void few_rows(const LinearTask& task, const char* rounded, std::int64_t first, std::int64_t last) {
  const Rows rows(task, rounded, 0);
  configure({rows.count[0], rows.count[1]});
  const std::size_t size = panel_bytes(type, task.num_inputs);
  in_pairs(first, last, [&](std::int64_t panel, bool two) {
    const char* weight = panel_at<type>(task, panel);
    const char* ahead = panel + 3 < last ? weight + 2 * size : nullptr;
    if (rows.count[1] == 0) {
      if (two) return one_tile_widening<type, 2, 1>(rows, panel, weight, size, ahead);
      return one_tile_widening<type, 1, 1>(rows, panel, weight, size, nullptr);
    }
    if (two) return one_tile_widening<type, 2, 2>(rows, panel, weight, size, ahead);
    one_tile_widening<type, 1, 2>(rows, panel, weight, size, nullptr);
  });
}

// All rows past panels [first, last), which begin at `widened`.
void all_rows(const LinearTask& task, const char* rounded, std::int64_t first, std::int64_t last, const char* widened) {
  const std::size_t size = panel_bytes(kRowsBFloat16, task.num_inputs);
  std::int64_t configured[2] = {0, 0};
  for (std::int64_t row = 0; row < task.num_rows; row += 2 * kBlockRows) {
    const Rows rows(task, rounded, row);
    if (rows.count[0] != configured[0] || rows.count[1] != configured[1]) {
      configure({configured[0] = rows.count[0], configured[1] = rows.count[1]});
    }
    in_pairs(first, last, [&](std::int64_t panel, bool two) {
      const char* at = widened + size * static_cast<std::size_t>(panel - first);
      if (rows.count[1] == 0) {
        if (two) return one_tile<2, 1>(rows, panel, at, size);
        return one_tile<1, 1>(rows, panel, at, size);
      }
      if (two) return one_tile<2, 2>(rows, panel, at, size);
      one_tile<1, 2>(rows, panel, at, size);
    });
  }
}

// Many rows: as many panels as stay in the second-level cache are widened there, and all rows pass them.
template <WeightType type>
void many_rows(const LinearTask& task, const char* rounded, std::int64_t first, std::int64_t last) {
  const std::size_t size = panel_bytes(kRowsBFloat16, task.num_inputs);
  const std::int64_t most = std::max<std::int64_t>(2, static_cast<std::int64_t>(kWidened / size) / 2 * 2);
  char* widened = type == kRowsBFloat16 ? nullptr : widened_buffer(static_cast<std::size_t>(std::min(most, last - first)) * size);
  for (std::int64_t begin = first; begin < last; begin += most) {
    const std::int64_t end = std::min(begin + most, last);
    if constexpr (type == kRowsBFloat16) {
      all_rows(task, rounded, begin, end, panel_at<type>(task, begin));
    } else {
      const std::int64_t units = (end - begin) * num_units(task.num_inputs);
      const char* weight = panel_at<type>(task, begin);
      for (std::int64_t unit = 0; unit < units; ++unit, weight += unit_bytes(type)) store_unit<type>(weight, widened + 1024 * unit);
      all_rows(task, rounded, begin, end, widened);
    }
  }
}

template <WeightType type>
void panels_of(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last) {
  if constexpr (type != kRowsBFloat16)
    if (task.num_rows <= kFewRows) return few_rows<type>(task, rows, first, last);
  many_rows<type>(task, rows, first, last);
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
  if (task.num_rows == 0) return;
  at_type(task.type, [&](auto type) { panels_of<type()>(task, rows, first, last); });
  _tile_release();  // else the system would save and restore the tiles whenever the thread loses its core
}

}  // namespace paceline
