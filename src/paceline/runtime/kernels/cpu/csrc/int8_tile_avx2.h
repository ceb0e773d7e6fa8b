// Register tiles of the integer product on AVX2: how codes come into registers, and the sums of a group.
#pragma once

#include <cstring>

#include "int8.h"
#include "tile.h"

namespace paceline {
namespace {

// How a panel of a type is read.
template <WeightType type>
struct Codes {
  static constexpr BlockFormat kFormat = block_format(type);
  static constexpr bool kStored = kFormat.offset == Offset::kStored, kSigned = kFormat.offset == Offset::kNone;
  static constexpr int kGroup = kFormat.group, kSteps = kGroup / 4, kScaleBytes = kFormat.scale_bytes;
  static constexpr std::size_t kHead = head_bytes(kFormat), kStep = step_bytes(kFormat);
  static constexpr std::size_t kGroupBytes = group_bytes(kFormat);
  static constexpr int kRows = kFormat.width == 4 ? 6 : 4;  // of a tile; more rows would not gain (tried)

  // Steps of four k whose products are added in 16 bits. One step adds two products of at most kMost * 127, and no sum
  // passes 32,767: 4 bits 8 x 2 x 15 x 127 = 30,480; 5 bits 4 x 2 x 31 x 127 = 31,496; 6 bits 2 x 2 x 63 x 127 = 32,004;
  // signed bytes 2 x 128 x 127 = 32,512.
  static constexpr int kMost = kSigned ? 128 : (1 << kFormat.width) - 1;
  static constexpr int kRun = kSigned ? 1 : kFormat.width == 4 ? 8 : kFormat.width == 5 ? 4 : 2;
  static_assert(kRun * 2 * kMost * 127 <= 32767 && kSteps % kRun == 0 && kFormat.together == 4);

  struct Step {
    __m256i low, high;  // four k of outputs 0..7 and of 8..15
  };

  [[gnu::always_inline]] static inline Step load(const char* at) {
    const __m256i* vectors = reinterpret_cast<const __m256i*>(at);
    const __m256i first = _mm256_loadu_si256(vectors);
    if constexpr (kFormat.bits == 8) {
      return {first, _mm256_loadu_si256(vectors + 1)};
    } else {
      const __m256i mask = _mm256_set1_epi8(15);
      return {_mm256_and_si256(first, mask), _mm256_and_si256(_mm256_srli_epi16(first, 4), mask)};
    }
  }
};

// Sums of two products in 16 bits. `magnitude` is |w| where codes are signed.
template <bool with_sign>
[[gnu::always_inline]] inline __m256i products(__m256i w, __m256i magnitude, __m256i a) {
  return with_sign ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
}

// The sum is formed here and not later: compilers would regroup integer sums into trees, whose leaves fit no registers.
[[gnu::always_inline]] inline __m256i sum_here(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

[[gnu::always_inline]] inline __m256i four_of(const char* at) {
  std::int32_t four;
  std::memcpy(&four, at, 4);
  return _mm256_set1_epi32(four);
}

[[gnu::always_inline]] inline __m256 float_of(const char* at) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(at));
}

// One group of `rows` quantised rows, at `x` and `stride` bytes apart (blocks of one row), times one panel.
template <WeightType type, int rows>
[[gnu::always_inline]] inline void add_group(const char* x, std::size_t stride, const char* weight, Sixteen (&sum)[rows]) {
  using W = Codes<type>;
  const __m256i ones = _mm256_set1_epi16(1);
  typename W::Step total[rows];
#pragma GCC unroll 8
  for (int begin = 0; begin < W::kSteps; begin += W::kRun) {
    typename W::Step part[rows];
#pragma GCC unroll 8
    for (int t = 0; t < W::kRun; ++t) {
      const int step = begin + t;
      const typename W::Step w = W::load(weight + W::kHead + static_cast<std::size_t>(step) * W::kStep);
      typename W::Step magnitude{};
      if constexpr (W::kSigned) magnitude = {_mm256_abs_epi8(w.low), _mm256_abs_epi8(w.high)};
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const __m256i a = four_of(x + stride * static_cast<std::size_t>(r) + 4 * step);
        const __m256i low = products<W::kSigned>(w.low, magnitude.low, a);
        const __m256i high = products<W::kSigned>(w.high, magnitude.high, a);
        part[r] = t == 0 ? typename W::Step{low, high}
                         : typename W::Step{sum_here(_mm256_add_epi16(part[r].low, low)),
                                            sum_here(_mm256_add_epi16(part[r].high, high))};
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const typename W::Step wide{_mm256_madd_epi16(part[r].low, ones), _mm256_madd_epi16(part[r].high, ones)};
      total[r] = begin == 0 ? wide
                            : typename W::Step{sum_here(_mm256_add_epi32(total[r].low, wide.low)),
                                               sum_here(_mm256_add_epi32(total[r].high, wide.high))};
    }
  }
  const Sixteen scale = numbers<W::kScaleBytes>(weight);
  Sixteen offset{};
  if constexpr (W::kStored) offset = numbers<W::kScaleBytes>(weight + kPanel * W::kScaleBytes);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const char* record = x + stride * static_cast<std::size_t>(r) + W::kGroup;
    if constexpr (!W::kStored && !W::kSigned) {
      const __m256i centred = four_of(record + 4);
      total[r] = {_mm256_add_epi32(total[r].low, centred), _mm256_add_epi32(total[r].high, centred)};
    }
    const __m256 d = float_of(record);
    sum[r].low = _mm256_fmadd_ps(_mm256_mul_ps(scale.low, d), _mm256_cvtepi32_ps(total[r].low), sum[r].low);
    sum[r].high = _mm256_fmadd_ps(_mm256_mul_ps(scale.high, d), _mm256_cvtepi32_ps(total[r].high), sum[r].high);
    if constexpr (W::kStored) {
      const __m256 all = float_of(record + 4);
      sum[r].low = _mm256_fmadd_ps(offset.low, all, sum[r].low);
      sum[r].high = _mm256_fmadd_ps(offset.high, all, sum[r].high);
    }
  }
}

// One register tile: `rows` quantised rows at `x` times panel number `panel` at `weight`. `ahead`, if not null, is fetched
// on the way: what the next tile reads.
template <WeightType type, int rows>
inline void int8_tile(const LinearTask& task, const char* x, std::size_t stride, std::int64_t row, std::int64_t panel,
                      const char* weight, const char* ahead) {
  using W = Codes<type>;
  constexpr std::size_t kRecord = W::kGroup + kRecordTail;

  // Every loop over rows and steps is unrolled: only constant indices let the compiler keep sums in registers.
  Sixteen sum[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

  for (std::int64_t k = 0; k < task.num_inputs; k += W::kGroup, x += kRecord, weight += W::kGroupBytes) {
    if (ahead != nullptr) {
#pragma GCC unroll 16
      for (std::size_t line = 0; line < W::kGroupBytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
      ahead += W::kGroupBytes;
    }
    add_group<type, rows>(x, stride, weight, sum);
  }

  const std::int64_t output = panel * kPanel, left = task.num_outputs - output;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
    store(task.out + (row + r) * task.out_stride + output, task.bias == nullptr ? nullptr : task.bias + output, sum[r],
          left < kPanel ? left : kPanel);
}

}  // namespace
}  // namespace paceline
