// Compiled with AMX and AVX-512 BF16 on; call it only where the processor has them and the system grants the tiles.
#include "bf16.h"

#include <algorithm>
#include <vector>

#include "tile.h"

namespace paceline {
namespace {

// Sums 0 to 3, rows 4 and 5, panels 6 and 7; or sums 0 to 3, rows 4 and panels 5 to 7 in turn.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t num_rows[16] = {};
};

// For tiles of `upper` rows and of `lower` rows below them; 0: there are none.
void configure(int upper, int lower) {
  TileConfig config;
  const auto up = static_cast<std::uint8_t>(upper), low = static_cast<std::uint8_t>(lower);
  constexpr std::uint8_t full = 16;
  const std::uint8_t two[8] = {up, up, low, low, up, low, full, full};
  const std::uint8_t one[8] = {up, up, up, up, up, full, full, full};
  std::copy_n(lower > 0 ? two : one, 8, config.num_rows);
  // GCC 12 does not know that all of the structure is read
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

struct Output {
  const LinearTask& task;

  // What a tile of sums becomes: stored by `store(address, bytes from row to row)` straight or by way of a buffer.
  template <typename Store>
  void take(std::int64_t row, int num_rows, std::int64_t panel, const Store& store) const {
    const std::int64_t output = panel * kPanel, count = std::min(kPanel, task.num_outputs - output);
    float* out = task.out + row * task.out_stride + output;
    if (count == kPanel && task.bias == nullptr) return store(out, task.out_stride * 4);
    alignas(64) float sums[16 * kPanel];
    store(sums, kPanel * 4);
    for (int r = 0; r < num_rows; ++r)
      for (std::int64_t i = 0; i < count; ++i)
        out[r * task.out_stride + i] = sums[r * kPanel + i] + (task.bias == nullptr ? 0.0f : task.bias[output + i]);
  }
};

// 16 rows and up to 16 below them, times one panel or two.
template <bool two_panels>
void two_tiles(const LinearTask& task, const char* upper, const char* lower, std::int64_t row, int num_lower,
               std::int64_t panel, const char* weight, std::size_t panel_size) {
  _tile_zero(0);
  _tile_zero(2);
  if (two_panels) {
    _tile_zero(1);
    _tile_zero(3);
  }
  for (std::int64_t step = bf16_steps(task.num_inputs); step > 0; --step) {
    _tile_loadd(4, upper, 64);
    _tile_loadd(6, weight, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower, 64);
    _tile_dpbf16ps(2, 5, 6);
    if (two_panels) {
      _tile_loadd(7, weight + panel_size, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    upper += kTileBytes, lower += kTileBytes, weight += kTileBytes;
  }
  const Output output{task};
  output.take(row, 16, panel, [](float* at, std::int64_t stride) { _tile_stored(0, at, stride); });
  output.take(row + 16, num_lower, panel, [](float* at, std::int64_t stride) { _tile_stored(2, at, stride); });
  if (two_panels) {
    output.take(row, 16, panel + 1, [](float* at, std::int64_t stride) { _tile_stored(1, at, stride); });
    output.take(row + 16, num_lower, panel + 1, [](float* at, std::int64_t stride) { _tile_stored(3, at, stride); });
  }
}

// Up to 16 rows times one panel or four: enough sums are under way at once.
template <bool four_panels>
void one_tile(const LinearTask& task, const char* rows, std::int64_t row, int num_rows, std::int64_t panel,
              const char* weight, std::size_t panel_size) {
  _tile_zero(0);
  if (four_panels) {
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t step = bf16_steps(task.num_inputs); step > 0; --step) {
    _tile_loadd(4, rows, 64);
    _tile_loadd(5, weight, 64);
    _tile_dpbf16ps(0, 4, 5);
    if (four_panels) {
      _tile_loadd(6, weight + panel_size, 64);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(7, weight + 2 * panel_size, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, weight + 3 * panel_size, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    rows += kTileBytes, weight += kTileBytes;
  }
  const Output output{task};
  output.take(row, num_rows, panel, [](float* at, std::int64_t stride) { _tile_stored(0, at, stride); });
  if (four_panels) {
    output.take(row, num_rows, panel + 1, [](float* at, std::int64_t stride) { _tile_stored(1, at, stride); });
    output.take(row, num_rows, panel + 2, [](float* at, std::int64_t stride) { _tile_stored(2, at, stride); });
    output.take(row, num_rows, panel + 3, [](float* at, std::int64_t stride) { _tile_stored(3, at, stride); });
  }
}

// A panel of blocks as pairs of bfloat16: [steps][16 pairs][16 outputs][2]. A group is whole pairs; what lies behind the last
// k stays as it is.
template <WeightType type>
void round_panel(const char* weight, std::int64_t num_inputs, char* out) {
  using W = Weights<type>;
  const __m512i beside = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                          4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (std::int64_t k = 0; k < num_inputs; k += W::kGroup) {
    const typename W::Head head = W::head(weight);
    weight += W::kHead;
    for (int j = 0; j < W::kGroup; j += 2, weight += 2 * W::kStep, out += 64) {
      const Sixteen even = W::load(weight, head), odd = W::load(weight + W::kStep, head);
      const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v));
      _mm512_storeu_si512(out, _mm512_permutexvar_epi16(beside, both));
    }
  }
}

void round_panel(WeightType type, const char* weight, std::int64_t num_inputs, char* out) {
  switch (written_as(type)) {
    case kHalf4Centred: return round_panel<kHalf4Centred>(weight, num_inputs, out);
    case kHalf4Offset: return round_panel<kHalf4Offset>(weight, num_inputs, out);
    case kHalf8: return round_panel<kHalf8>(weight, num_inputs, out);
    case kHalf8Offset: return round_panel<kHalf8Offset>(weight, num_inputs, out);
    case kFloat4Offset: return round_panel<kFloat4Offset>(weight, num_inputs, out);
    case kFloat8Offset: return round_panel<kFloat8Offset>(weight, num_inputs, out);
    default: return round_panel<kFloat8By16>(weight, num_inputs, out);
  }
}

// Panels as the tiles read them: where they lie, or rounded from blocks into a buffer that stays in the second-level cache.
class Panels {
 public:
  explicit Panels(const LinearTask& task)
      : task_(task), stored_(panel_bytes(task.type, task.num_inputs)),
        size(static_cast<std::size_t>(bf16_steps(task.num_inputs)) * kTileBytes) {}

  // Panels [first, first + count), `size` bytes each; valid until the next call.
  const char* take(std::int64_t first, int count) {
    const char* at = static_cast<const char*>(task_.weight) + stored_ * static_cast<std::size_t>(first);
    if (task_.type == kBFloat16Pairs) return at;
    static thread_local std::vector<char> buffer;
    buffer.resize(size * static_cast<std::size_t>(count) + 63);
    if (task_.num_inputs % kTileK != 0) std::fill(buffer.begin(), buffer.end(), 0);  // behind the last k
    char* whole = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(buffer.data()) + 63) / 64 * 64);  // in cache lines
    for (int p = 0; p < count; ++p, at += stored_)
      round_panel(task_.type, at, task_.num_inputs, whole + size * static_cast<std::size_t>(p));
    return whole;
  }

 private:
  const LinearTask& task_;
  std::size_t stored_;

 public:
  const std::size_t size;
};

}  // namespace

void bf16_round_rows_amx(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last) {
  const std::int64_t steps = bf16_steps(task.num_inputs);
  for (std::int64_t row = first; row < last; ++row) {
    const float* x = task.x + row * task.x_stride;
    char* to = rows + static_cast<std::size_t>(row / 16 * steps) * kTileBytes + row % 16 * 64;
    for (std::int64_t k = 0; k < task.num_inputs; k += kTileK, to += kTileBytes) {
      const std::int64_t left = task.num_inputs - k;
      const std::uint32_t there = left >= 32 ? ~0u : (1u << left) - 1;
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(there), x + k);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(there >> 16), x + k + 16);
      _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

// Rows go in pairs of tiles, the last of which may have fewer rows below; then perhaps comes a single tile. Panels go two at a
// time past all pairs; past a single tile alone, four at a time.
void bf16_panels_amx(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last) {
  const std::size_t block = static_cast<std::size_t>(bf16_steps(task.num_inputs)) * kTileBytes;  // of 16 rows
  const auto rows_at = [&](std::int64_t row) { return rows + static_cast<std::size_t>(row / 16) * block; };
  if (task.num_rows == 0) return;
  const std::int64_t pairs = (task.num_rows + 15) / 32, whole = task.num_rows / 32;
  const int rest = static_cast<int>(task.num_rows - pairs * 32);  // of the single tile; below 0: rows lacking in the last pair
  Panels panels(task);
  std::int64_t panel = first;
  if (pairs == 0) {
    configure(rest, 0);
    for (; panel + 4 <= last; panel += 4) one_tile<true>(task, rows, 0, rest, panel, panels.take(panel, 4), panels.size);
    for (; panel < last; ++panel) one_tile<false>(task, rows, 0, rest, panel, panels.take(panel, 1), panels.size);
  }
  for (; panel < last; panel += 2) {
    const bool two = panel + 1 < last;
    const char* weight = panels.take(panel, two ? 2 : 1);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const int below = pair < whole ? 16 : 16 + rest;
      if (pair == 0 || pair == whole) configure(16, below);
      const std::int64_t row = pair * 32;
      (two ? two_tiles<true> : two_tiles<false>)(task, rows_at(row), rows_at(row + 16), row, below, panel, weight, panels.size);
    }
    if (rest <= 0) continue;
    configure(rest, 0);
    for (int p = 0; p < (two ? 2 : 1); ++p)
      one_tile<false>(task, rows_at(pairs * 32), pairs * 32, rest, panel + p, weight + panels.size * static_cast<std::size_t>(p),
                      panels.size);
  }
  _tile_release();
}

}  // namespace paceline
