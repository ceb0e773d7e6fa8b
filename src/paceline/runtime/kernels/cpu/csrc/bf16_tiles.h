// Tiles of a matrix instruction for bfloat16: two panels by two blocks of rows. Compiled with AVX-512 BF16 and AMX on.
#pragma once

#include <algorithm>
#include <vector>

#include "bf16_widen.h"

namespace paceline {
namespace {

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

// Adds a unit's products to the sums. `once`: no panel will meet these rows again before the first-level cache is full of
// others, so it is told not to keep them.
template <int panels, int blocks, bool once>
[[gnu::always_inline]] inline void multiply(const char* first, const char* second, const Rows& rows, std::int64_t unit) {
  const std::int64_t size = 2 * kUnit * unit;  // of one row up to this unit
  const char* one = rows.units[0] + size * rows.count[0];
  const char* two = rows.units[1] + size * rows.count[1];
  _tile_loadd(4, first, 64);
  if constexpr (once)
    _tile_stream_loadd(6, one, 4 * rows.count[0]);
  else
    _tile_loadd(6, one, 4 * rows.count[0]);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (panels == 2) {
    _tile_loadd(5, second, 64);
    _tile_dpbf16ps(2, 5, 6);
  }
  if constexpr (blocks == 2) {
    if constexpr (once)
      _tile_stream_loadd(7, two, 4 * rows.count[1]);
    else
      _tile_loadd(7, two, 4 * rows.count[1]);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (panels == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

template <int panels, int blocks>
[[gnu::always_inline]] inline void clear() {
  _tile_zero(0);
  if constexpr (blocks == 2) _tile_zero(1);
  if constexpr (panels == 2) _tile_zero(2);
  if constexpr (panels == 2 && blocks == 2) _tile_zero(3);
}

// Sixteen rows of sixteen numbers in memory, turned: number j of row i becomes number i of register j. Quarters of a register
// are put together by loads, which leaves half of the shuffles: their port is the one that tile products need too.
[[gnu::always_inline]] inline void turn_stored(const float* at, __m512 (&turned)[16]) {
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    __m512 row[4];  // quarter l of row[j]: numbers 4 c .. 4 c + 3 of row 4 l + j
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const float* from = at + 16 * j + 4 * c;
      row[j] = _mm512_broadcast_f32x4(_mm_load_ps(from));
      row[j] = _mm512_mask_broadcast_f32x4(row[j], 0x00f0, _mm_load_ps(from + 64));
      row[j] = _mm512_mask_broadcast_f32x4(row[j], 0x0f00, _mm_load_ps(from + 128));
      row[j] = _mm512_mask_broadcast_f32x4(row[j], 0xf000, _mm_load_ps(from + 192));
    }
    const auto low = [](__m512 a, __m512 b) { return _mm512_castps_pd(_mm512_unpacklo_ps(a, b)); };
    const auto high = [](__m512 a, __m512 b) { return _mm512_castps_pd(_mm512_unpackhi_ps(a, b)); };
    const __m512d a = low(row[0], row[1]), b = high(row[0], row[1]), d = low(row[2], row[3]), e = high(row[2], row[3]);
    turned[4 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, d));
    turned[4 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, d));
    turned[4 * c + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, e));
    turned[4 * c + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, e));
  }
}

// Sums on their way from tiles to the output.
struct Sums {
  alignas(64) float tile[4][16 * 16];  // [16 outputs][rows of the block]

  template <int panels, int blocks>
  [[gnu::always_inline]] inline void take(const Rows& rows) {
    const std::int64_t stride[2] = {rows.count[0] == 1 ? 4 : 64, rows.count[1] == 1 ? 4 : 64};
    _tile_stored(0, tile[0], stride[0]);
    if constexpr (blocks == 2) _tile_stored(1, tile[1], stride[1]);
    if constexpr (panels == 2) _tile_stored(2, tile[2], stride[0]);
    if constexpr (panels == 2 && blocks == 2) _tile_stored(3, tile[3], stride[1]);
  }

  // Number `i` of them, of `count` rows from `row` on and a panel, to its place, with the bias.
  void put(int i, const LinearTask& task, std::int64_t row, std::int64_t count, std::int64_t panel) {
    const std::int64_t output = panel * kPanel, left = std::min(task.num_outputs - output, kPanel);
    const __mmask16 outputs = static_cast<__mmask16>((1u << left) - 1);
    const __m512 bias = task.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(outputs, task.bias + output);
    float* out = task.out + row * task.out_stride + output;
    const auto write = [&](__m512 numbers, float* at) {
      _mm512_mask_storeu_ps(at, outputs, task.bias == nullptr ? numbers : _mm512_add_ps(numbers, bias));
    };
    if (count == 1) return write(_mm512_load_ps(tile[i]), out);
    __m512 turned[16];
    turn_stored(tile[i], turned);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      if (r >= count) return;
      write(turned[r], out + r * task.out_stride);
    }
  }
};

// Spreads `things` evenly over `steps`.
struct Pace {
  std::int64_t things, steps, owed = 0;

  std::int64_t due() {  // now, after one more step
    owed += things;
    std::int64_t count = 0;
    for (; owed >= steps; owed -= steps) ++count;
    return count;
  }
};

struct alignas(64) Line {
  char bytes[64];
};

// Memory of this thread to widen panels in.
inline char* widened_buffer(std::size_t bytes) {
  thread_local std::vector<Line> buffer;
  if (buffer.size() < bytes / 64) buffer.resize(bytes / 64);
  return reinterpret_cast<char*>(buffer.data());
}

template <WeightType type>
const char* panel_at(const LinearTask& task, std::int64_t panel) {
  return static_cast<const char*>(task.weight) + panel_bytes(type, task.num_inputs) * static_cast<std::size_t>(panel);
}

}  // namespace
}  // namespace paceline
