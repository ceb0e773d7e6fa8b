// Register tiles on AVX2: how weights of each type come into registers, and the sums over k.
#pragma once

#include <immintrin.h>

#include "blocks.h"

namespace paceline {
namespace {

struct Pair {
  __m256 low, high;  // outputs 0..7 and 8..15 of a panel
};

// Sixteen scales or offsets of a group, halves or floats.
template <int bytes>
[[gnu::always_inline]] inline Pair numbers(const char* at) {
  if constexpr (bytes == 2) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(at);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  } else {
    const float* floats = reinterpret_cast<const float*>(at);
    return {_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8)};
  }
}

// A weight type says how many k share a head (kGroup), the bytes of that head and of one k, and gives the weights of one k.
template <WeightType type>
struct Weights {  // quantised
  static constexpr BlockFormat kFormat = block_format(type);
  static constexpr int kGroup = kFormat.group;
  static constexpr std::size_t kHead = head_bytes(kFormat), kStep = step_bytes(kFormat);

  struct Head {
    Pair scale, offset;
  };

  [[gnu::always_inline]] static inline Head head(const char* at) {
    Head found{numbers<kFormat.scale_bytes>(at), {}};
    if constexpr (kFormat.offset == Offset::kStored) {
      found.offset = numbers<kFormat.scale_bytes>(at + kPanel * kFormat.scale_bytes);
    } else if constexpr (kFormat.offset == Offset::kCentred) {
      const __m256 centre = _mm256_set1_ps(-static_cast<float>(kFormat.centre));
      found.offset = {_mm256_mul_ps(centre, found.scale.low), _mm256_mul_ps(centre, found.scale.high)};
    }
    return found;
  }

  [[gnu::always_inline]] static inline Pair load(const char* at, const Head& head) {
    __m256i low, high;
    if constexpr (kFormat.bits == 4) {
      const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
      low = _mm256_and_si256(both, _mm256_set1_epi32(15));
      high = _mm256_srli_epi32(both, 4);
    } else {
      low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
      high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 8)));
    }
    const __m256 q_low = _mm256_cvtepi32_ps(low), q_high = _mm256_cvtepi32_ps(high);
    if constexpr (kFormat.offset == Offset::kNone)
      return {_mm256_mul_ps(q_low, head.scale.low), _mm256_mul_ps(q_high, head.scale.high)};
    else  // d q fits the 24 bits of a float (d has at most 17, q 5), so the fused sum is the rounded sum
      return {_mm256_fmadd_ps(q_low, head.scale.low, head.offset.low),
              _mm256_fmadd_ps(q_high, head.scale.high, head.offset.high)};
  }
};

struct NoHead {};

template <>
struct Weights<kFloat32> {
  static constexpr int kGroup = 1;
  static constexpr std::size_t kHead = 0, kStep = 4 * kPanel;
  using Head = NoHead;
  static Head head(const char*) { return {}; }
  [[gnu::always_inline]] static inline Pair load(const char* at, const Head&) {
    const float* values = reinterpret_cast<const float*>(at);
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
  }
};

template <>
struct Weights<kBFloat16> {
  static constexpr int kGroup = 1;
  static constexpr std::size_t kHead = 0, kStep = 2 * kPanel;
  using Head = NoHead;
  static Head head(const char*) { return {}; }
  [[gnu::always_inline]] static inline Pair load(const char* at, const Head&) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(halves, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
};

[[gnu::always_inline]] inline void store(float* out, const float* bias, Pair sum, std::int64_t count) {
  if (bias != nullptr && count == kPanel) {
    sum.low = _mm256_add_ps(sum.low, _mm256_loadu_ps(bias));
    sum.high = _mm256_add_ps(sum.high, _mm256_loadu_ps(bias + 8));
  }
  if (count == kPanel) {
    _mm256_storeu_ps(out, sum.low);
    _mm256_storeu_ps(out + 8, sum.high);
    return;
  }
  alignas(32) float all[kPanel];
  _mm256_store_ps(all, sum.low);
  _mm256_store_ps(all + 8, sum.high);
  for (std::int64_t i = 0; i < count; ++i) out[i] = all[i] + (bias != nullptr ? bias[i] : 0.0f);
}

// One register tile: `rows` rows times `panels` panels that begin at `weight`, the first of them panel number `panel`.
// `ahead`, if not null, is fetched on the way: what the next tile reads.
template <WeightType type, int rows, int panels>
inline void tile(const LinearTask& task, std::int64_t row, std::int64_t panel, const char* weight, const char* ahead) {
  using W = Weights<type>;
  const std::int64_t num_inputs = task.num_inputs;
  const std::size_t panel_size = static_cast<std::size_t>(num_inputs / W::kGroup) * (W::kHead + W::kGroup * W::kStep);
  const std::int64_t x_stride = task.x_stride;
  const float* x = task.x + row * x_stride;

  // Every loop over the sums is unrolled: only constant indices let the compiler keep them in registers.
  Pair sum[rows][panels];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) sum[r][p] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

  for (std::int64_t k = 0; k < num_inputs;) {
    typename W::Head head[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) head[p] = W::head(weight + panel_size * p);
    weight += W::kHead;
    for (int j = 0; j < W::kGroup; ++j, ++k) {
      Pair w[panels];
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) w[p] = W::load(weight + panel_size * p, head[p]);
      if (ahead != nullptr) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += W::kStep;
      }
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const __m256 value = _mm256_broadcast_ss(x + r * x_stride + k);
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) {
          sum[r][p].low = _mm256_fmadd_ps(value, w[p].low, sum[r][p].low);
          sum[r][p].high = _mm256_fmadd_ps(value, w[p].high, sum[r][p].high);
        }
      }
      weight += W::kStep;
    }
  }

#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
    const std::int64_t output = (panel + p) * kPanel;
    const std::int64_t left = task.num_outputs - output;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
      store(task.out + (row + r) * task.out_stride + output, task.bias == nullptr ? nullptr : task.bias + output,
            sum[r][p], left < kPanel ? left : kPanel);
  }
}

// A quantised panel as float32: [num_inputs][kPanel].
template <WeightType type>
void widen(const char* weight, std::int64_t num_inputs, float* out) {
  using W = Weights<type>;
  for (std::int64_t k = 0; k < num_inputs;) {
    const typename W::Head head = W::head(weight);
    weight += W::kHead;
    for (int j = 0; j < W::kGroup; ++j, ++k, weight += W::kStep, out += kPanel) {
      const Pair w = W::load(weight, head);
      _mm256_storeu_ps(out, w.low);
      _mm256_storeu_ps(out + 8, w.high);
    }
  }
}

}  // namespace
}  // namespace paceline
