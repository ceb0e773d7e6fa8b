// The product of bfloat16 in registers. Compiled with AVX-512 BF16 on; call it only where has_bf16_products() says so.
#include <algorithm>
#include <vector>

#include "bf16_widen.h"

namespace paceline {
namespace {

constexpr int kTileRows = 4, kTileOutputs = 4;  // 16 sums, and what the tile loads, in 32 registers

[[gnu::always_inline]] inline __m512 add_products(__m512 sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}

// Sums of two halves: of a in the lower half of the result, of b in the upper.
[[gnu::always_inline]] inline __m512 halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

// Then of quarters: a result has the four of a and b in turn.
[[gnu::always_inline]] inline __m512 quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// The sixteen numbers of each sum added: i + 8, then i + 4, i + 2, i + 1. Result 4 q + j is of sum[q + 4 j].
[[gnu::always_inline]] inline __m512 totals(const __m512 (&sum)[16]) {
  __m512 of_four[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    of_four[j] = quarters(halves(sum[4 * j], sum[4 * j + 1]), halves(sum[4 * j + 2], sum[4 * j + 3]));
  const auto pairs = [](__m512 a, __m512 b) {  // each quarter: two of a, two of b
    const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
  };
  const __m512 first = pairs(of_four[0], of_four[1]), second = pairs(of_four[2], of_four[3]);
  return _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
}

// Up to sixteen outputs of a row, from `output` on, with the bias.
void put(const LinearTask& task, std::int64_t row, std::int64_t output, std::int64_t count, __m512 numbers) {
  count = std::min(task.num_outputs - output, count);
  if (count <= 0) return;
  const __mmask16 outputs = static_cast<__mmask16>((1u << count) - 1);
  if (task.bias != nullptr) numbers = _mm512_add_ps(numbers, _mm512_maskz_loadu_ps(outputs, task.bias + output));
  _mm512_mask_storeu_ps(task.out + row * task.out_stride + output, outputs, numbers);
}

// One row: the outputs of a panel, whose weights widen in registers.
template <WeightType type>
void one_row(const LinearTask& task, const char* x, std::int64_t panel, const char* weight) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  for (std::int64_t unit = num_units(task.num_inputs); unit > 0; --unit, x += 2 * kUnit, weight += unit_bytes(type)) {
    const __m512i pairs = load_512(x);
    widen_unit<type>(weight, [&](int i, __m512i row) { sum[i] = add_products(sum[i], pairs, row); });
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  put(task, 0, panel * kPanel, kPanel, _mm512_permutexvar_ps(order, totals(sum)));
}

// Some rows and four outputs of a panel of bfloat16, from output `first` of it on.
template <int rows>
void one_tile(const LinearTask& task, const char* x, std::int64_t row, std::int64_t panel, int first, const char* widened) {
  const std::size_t stride = bf16_rows_bytes(1, task.num_inputs);
  __m512 sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_ps();
  x += stride * static_cast<std::size_t>(row);
  widened += 64 * first;
  for (std::int64_t unit = num_units(task.num_inputs); unit > 0; --unit, x += 2 * kUnit, widened += 1024) {
    __m512i w[kTileOutputs];
#pragma GCC unroll 4
    for (int i = 0; i < kTileOutputs; ++i) w[i] = load_512(widened + 64 * i);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m512i pairs = load_512(x + stride * static_cast<std::size_t>(r));
#pragma GCC unroll 4
      for (int i = 0; i < kTileOutputs; ++i) sum[r + 4 * i] = add_products(sum[r + 4 * i], pairs, w[i]);
    }
  }
  alignas(64) float total[16];
  _mm512_store_ps(total, totals(sum));
  for (int r = 0; r < rows; ++r)
    put(task, row + r, panel * kPanel + first, kTileOutputs, _mm512_castps128_ps512(_mm_load_ps(total + 4 * r)));
}

struct alignas(64) Line {
  char bytes[64];
};

// Memory of this thread to widen a panel in.
char* widened_buffer(std::int64_t units) {
  thread_local std::vector<Line> buffer;
  if (buffer.size() < static_cast<std::size_t>(units) * 16) buffer.resize(static_cast<std::size_t>(units) * 16);
  return reinterpret_cast<char*>(buffer.data());
}

// Several rows: a panel is widened once, and they pass it.
template <WeightType type>
void rows_past(const LinearTask& task, const char* rows, std::int64_t panel, const char* weight) {
  if constexpr (type != kRowsBFloat16) {
    const std::int64_t units = num_units(task.num_inputs);
    char* widened = widened_buffer(units);
    for (std::int64_t unit = 0; unit < units; ++unit, weight += unit_bytes(type)) store_unit<type>(weight, widened + 1024 * unit);
    weight = widened;
  }
  for (std::int64_t row = 0; row < task.num_rows; row += kTileRows)
    for (int first = 0; first < kPanel; first += kTileOutputs) switch (std::min<std::int64_t>(task.num_rows - row, kTileRows)) {
        case 1: one_tile<1>(task, rows, row, panel, first, weight); break;
        case 2: one_tile<2>(task, rows, row, panel, first, weight); break;
        case 3: one_tile<3>(task, rows, row, panel, first, weight); break;
        default: one_tile<kTileRows>(task, rows, row, panel, first, weight);
      }
}

template <WeightType type>
void panels_of(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last) {
  const std::size_t size = panel_bytes(type, task.num_inputs);
  for (std::int64_t panel = first; panel < last; ++panel) {
    const char* weight = static_cast<const char*>(task.weight) + size * static_cast<std::size_t>(panel);
    if (task.num_rows == 1)
      one_row<type>(task, rows, panel, weight);
    else
      rows_past<type>(task, rows, panel, weight);
  }
}

}  // namespace

void round_blocks_avx512bf16(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last) {
  const std::int64_t units = num_units(task.num_inputs);
  for (std::int64_t row = first * kBlockRows; row < std::min(last * kBlockRows, task.num_rows); ++row) {
    char* to = rows + bf16_rows_bytes(row, task.num_inputs);
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const float* x = task.x + row * task.x_stride + unit * kUnit;
      const std::int64_t left = std::min(task.num_inputs - unit * kUnit, kUnit);
      const std::uint32_t inputs = left == kUnit ? ~0u : (1u << left) - 1;
      _mm512_store_si512(to + 64 * unit, bf16_of(_mm512_maskz_loadu_ps(static_cast<__mmask16>(inputs), x),
                                                _mm512_maskz_loadu_ps(static_cast<__mmask16>(inputs >> 16), x + 16)));
    }
  }
}

void bf16_panels_avx512bf16(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last) {
  at_type(task.type, [&](auto type) { panels_of<type()>(task, rows, first, last); });
}

}  // namespace paceline
