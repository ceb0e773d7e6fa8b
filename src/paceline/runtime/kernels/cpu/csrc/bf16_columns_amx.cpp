// The product of bfloat16 with tiles, for some dozens of rows: a panel widens on the way to the tiles, and up to four blocks of
// rows meet it there. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
//
// A widened panel would leave the first-level cache and come back for each two blocks; here a unit of it meets all rows at once.
#include "bf16_tiles.h"
#include "parallel.h"

namespace paceline {
namespace {

constexpr std::int64_t kMostBlocks = 4;  // tiles of sums
constexpr int kAhead = 2;                // units between widening and multiplying: stores must reach the cache
constexpr int kRing = 4;                 // units in that ring

// Two to four blocks of rows; the last may have fewer rows than a tile.
struct Column {
  const LinearTask& task;
  std::int64_t row, last_count;  // rows of the last block
  const char* units[kMostBlocks];

  Column(const LinearTask& task, const char* rounded, std::int64_t first, std::int64_t blocks)
      : task(task), row(first * kBlockRows), last_count(std::min(task.num_rows - (first + blocks - 1) * kBlockRows, kBlockRows)) {
    for (std::int64_t b = 0; b < kMostBlocks; ++b) units[b] = rounded + bf16_rows_bytes((first + b) * kBlockRows, task.num_inputs);
  }
};

// Tiles 0..3: sums of a block each. 4: weights. 7: the last block's rows. 5, 6: those of the others.
template <int blocks>
void configure_column(std::int64_t last) {
  TileConfig config(kBlockRows, kBlockRows);
  config.row_bytes[blocks - 1] = config.row_bytes[7] = static_cast<std::uint16_t>(4 * last);
  configure(config);
}

template <int blocks>
[[gnu::always_inline]] inline void multiply_column(const char* weights, const Column& column, std::int64_t unit) {
  const auto full = [&](int block) { return column.units[block] + 1024 * unit; };
  const char* last = column.units[blocks - 1] + 64 * unit * column.last_count;
  _tile_loadd(4, weights, 64);
  _tile_stream_loadd(5, full(0), 64);
  _tile_dpbf16ps(0, 4, 5);
  if constexpr (blocks > 2) {
    _tile_stream_loadd(6, full(1), 64);
    _tile_dpbf16ps(1, 4, 6);
  }
  if constexpr (blocks > 3) {
    _tile_stream_loadd(5, full(2), 64);
    _tile_dpbf16ps(2, 4, 5);
  }
  _tile_stream_loadd(7, last, 4 * column.last_count);
  if constexpr (blocks == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (blocks == 3) _tile_dpbf16ps(2, 4, 7);
  if constexpr (blocks == 4) _tile_dpbf16ps(3, 4, 7);
}

// Sums of a column and a panel that have left the tiles, until they have been put.
struct Leaving {
  Sums sums;
  std::int64_t row = 0, last_count = 0, panel = 0;
  int next = 0, blocks = 0;

  std::int64_t left() const { return blocks - next; }
  void put_one(const LinearTask& task) {
    const int i = next++;
    sums.put(i, task, row + i * kBlockRows, i + 1 < blocks ? kBlockRows : last_count, panel);
  }
};

// `ahead`, if not null, is fetched meanwhile: the panel after this one.
template <WeightType type, int blocks>
void one_panel(const Column& column, std::int64_t panel, const char* ahead, Leaving& leaving) {
  constexpr std::size_t kUnitBytes = unit_bytes(type);
  alignas(64) char ring[kRing][1024];
  const char* weight = panel_at<type>(column.task, panel);
  const std::int64_t count = num_units(column.task.num_inputs);
  Pace putting{leaving.left(), count};
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (blocks > 2) _tile_zero(2);
  if constexpr (blocks > 3) _tile_zero(3);
  for (std::int64_t step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      store_unit<type>(weight, ring[step % kRing]);
      weight += kUnitBytes;
      if (ahead != nullptr) {
#pragma GCC unroll 16
        for (std::size_t line = 0; line < kUnitBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        ahead += kUnitBytes;
      }
      for (std::int64_t due = putting.due(); due > 0; --due) leaving.put_one(column.task);
    }
    if (step >= kAhead) multiply_column<blocks>(ring[(step - kAhead) % kRing], column, step - kAhead);
  }
  const std::int64_t last_stride = column.last_count == 1 ? 4 : 64;
  float(&tile)[4][256] = leaving.sums.tile;
  _tile_stored(0, tile[0], 64);
  _tile_stored(1, tile[1], blocks == 2 ? last_stride : 64);
  if constexpr (blocks > 2) _tile_stored(2, tile[2], blocks == 3 ? last_stride : 64);
  if constexpr (blocks > 3) _tile_stored(3, tile[3], last_stride);
  leaving.row = column.row;
  leaving.last_count = column.last_count;
  leaving.panel = panel;
  leaving.next = 0;
  leaving.blocks = blocks;
}

template <WeightType type>
void columns_of(const LinearTask& task, const char* rounded, Items& items) {
  std::int64_t panel = items.take();
  if (panel < 0) return;
  const std::int64_t blocks = (task.num_rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t columns = (blocks + kMostBlocks - 1) / kMostBlocks;
  Leaving leaving;
  std::int64_t configured = 0;
  while (panel >= 0) {
    const std::int64_t next = items.take();
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t first = blocks * c / columns, count = blocks * (c + 1) / columns - first;
      const Column column(task, rounded, first, count);
      const char* ahead = c + 1 == columns && next >= 0 ? panel_at<type>(task, next) : nullptr;
      const auto run = [&](auto number) {
        constexpr int kBlocks = number();
        if (configured != 16 * kBlocks + column.last_count) configure_column<kBlocks>(column.last_count);
        configured = 16 * kBlocks + column.last_count;
        one_panel<type, kBlocks>(column, panel, ahead, leaving);
      };
      if (count == 2) run(std::integral_constant<int, 2>{});
      if (count == 3) run(std::integral_constant<int, 3>{});
      if (count == 4) run(std::integral_constant<int, 4>{});
    }
    panel = next;
  }
  while (leaving.left() > 0) leaving.put_one(task);
}

}  // namespace

void bf16_columns_amx(const LinearTask& task, const char* rows, Items& items) {
  at_type(task.type, [&](auto type) {
    if constexpr (type() != kRowsBFloat16) columns_of<type()>(task, rows, items);
  });
  _tile_release();
}

}  // namespace paceline
