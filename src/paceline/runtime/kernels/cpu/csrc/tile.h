// Register tiles: how weights of each type come into registers, and the sums over k.
#pragma once

#include "blocks.h"
#include "vector.h"

namespace paceline {
namespace {

// Rows of the largest tile, and panels beside each other in a tile of many rows: 6 x 16 sums fill 12 of 16 registers of
// AVX2, 12 x 32 fill 24 of 32 of AVX-512, where a loaded activation then meets two vectors of weights.
#ifdef __AVX512F__
constexpr int kMaxRows = 12, kTilePanels = 2;
#else
constexpr int kMaxRows = 6, kTilePanels = 1;
#endif

// Sixteen scales or offsets of a group, halves or floats.
template <int bytes>
PACELINE_INLINE Sixteen numbers(const char* at) {
  if constexpr (bytes == 4) {
    return load<Sixteen>(reinterpret_cast<const float*>(at));
  } else {
    const __m128i* halves = reinterpret_cast<const __m128i*>(at);
    return join(Eight{_mm256_cvtph_ps(_mm_loadu_si128(halves))}, Eight{_mm256_cvtph_ps(_mm_loadu_si128(halves + 1))});
  }
}

// Sixteen codes of 4 bits as floats: output i in the low half of byte i, output i + 8 in the high half.
PACELINE_INLINE Sixteen codes_of_4(const char* at) {
#ifdef __AVX512F__
  const __m128i twice = _mm_castpd_si128(_mm_loaddup_pd(reinterpret_cast<const double*>(at)));
  const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  const __m512i index = _mm512_srlv_epi32(_mm512_cvtepu8_epi32(twice), shifts);  // the choice below sees four bits of it
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_permutexvar_ps(index, values)};
#else
  const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  return {_mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))),
          _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4))};
#endif
}

// Sixteen signed bytes as floats.
PACELINE_INLINE Sixteen codes_of_8(const char* at) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
#ifdef __AVX512F__
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
#else
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
#endif
}

// A weight type says how many k share a head (kGroup), the bytes of that head and of one k, and gives the weights of one k.
template <WeightType type>
struct Weights {  // quantised
  static constexpr BlockFormat kFormat = block_format(type);
  static constexpr int kGroup = kFormat.group;
  static constexpr std::size_t kHead = head_bytes(kFormat), kStep = step_bytes(kFormat);

  struct Head {
    Sixteen scale, offset;
  };

  PACELINE_INLINE static Head head(const char* at) {
    Head found{numbers<kFormat.scale_bytes>(at), {}};
    if constexpr (kFormat.offset == Offset::kStored)
      found.offset = numbers<kFormat.scale_bytes>(at + kPanel * kFormat.scale_bytes);
    else if constexpr (kFormat.offset == Offset::kCentred)
      found.offset = all<Sixteen>(-static_cast<float>(kFormat.centre)) * found.scale;
    return found;
  }

  PACELINE_INLINE static Sixteen load(const char* at, const Head& head) {
    const Sixteen codes = kFormat.bits == 4 ? codes_of_4(at) : codes_of_8(at);
    if constexpr (kFormat.offset == Offset::kNone)
      return codes * head.scale;
    else  // d q fits the 24 bits of a float (d has at most 17, q 5), so the fused sum is the rounded sum
      return fma(codes, head.scale, head.offset);
  }
};

struct NoHead {};

template <>
struct Weights<kFloat32> {
  static constexpr int kGroup = 1;
  static constexpr std::size_t kHead = 0, kStep = 4 * kPanel;
  using Head = NoHead;
  static Head head(const char*) { return {}; }
  PACELINE_INLINE static Sixteen load(const char* at, const Head&) {
    return paceline::load<Sixteen>(reinterpret_cast<const float*>(at));
  }
};

template <>
struct Weights<kBFloat16> {
  static constexpr int kGroup = 1;
  static constexpr std::size_t kHead = 0, kStep = 2 * kPanel;
  using Head = NoHead;
  static Head head(const char*) { return {}; }
  PACELINE_INLINE static Sixteen load(const char* at, const Head&) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return join(Eight{_mm256_castsi256_ps(_mm256_slli_epi32(halves, 16))},
                Eight{_mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))});
  }
};

// Outputs of a panel, with their bias if there is one. The last panel may have fewer than sixteen: not inlined, it is rare.
PACELINE_INLINE void store(float* out, const float* bias, Sixteen sum) {
  paceline::store(out, bias == nullptr ? sum : sum + load<Sixteen>(bias));
}
[[gnu::noinline]] void store_some(float* out, const float* bias, Sixteen sum, std::int64_t count) {
  float all[kPanel];
  store(all, sum);
  for (std::int64_t i = 0; i < count; ++i) out[i] = all[i] + (bias != nullptr ? bias[i] : 0.0f);
}
PACELINE_INLINE void store(float* out, const float* bias, Sixteen sum, std::int64_t count) {
  if (count == kPanel) return store(out, bias, sum);
  store_some(out, bias, sum, count);
}

// One register tile: `rows` rows times `panels` panels that begin at `weight`, the first of them panel number `panel`.
// `ahead`, if not null, is fetched on the way: what the next tile reads.
template <WeightType type, int rows, int panels>
inline void tile(const LinearTask& task, std::int64_t row, std::int64_t panel, const char* weight, const char* ahead) {
  using W = Weights<type>;
  constexpr int kLine = W::kStep < 64 ? 64 / static_cast<int>(W::kStep) : 1;  // k of a cache line
  const std::int64_t num_inputs = task.num_inputs;
  const std::size_t panel_size = static_cast<std::size_t>(num_inputs / W::kGroup) * (W::kHead + W::kGroup * W::kStep);
  const std::int64_t x_stride = task.x_stride;
  const float* x = task.x + row * x_stride;

  // Every loop over the sums is unrolled: only constant indices let the compiler keep them in registers.
  Sixteen sum[rows][panels];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) sum[r][p] = all<Sixteen>(0.0f);

  for (std::int64_t k = 0; k < num_inputs;) {
    typename W::Head head[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) head[p] = W::head(weight + panel_size * p);
    weight += W::kHead;
    for (int j = 0; j < W::kGroup; ++j, ++k) {
      Sixteen w[panels];
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) w[p] = W::load(weight + panel_size * p, head[p]);
      if (ahead != nullptr && k % kLine == 0) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) _mm_prefetch(ahead + panel_size * p, _MM_HINT_T1);
        ahead += W::kStep * kLine;
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Sixteen value = all<Sixteen>(x[r * x_stride + k]);
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) sum[r][p] = fma(value, w[p], sum[r][p]);
      }
      weight += W::kStep;
    }
  }

#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
    const std::int64_t output = (panel + p) * kPanel;
    const std::int64_t left = task.num_outputs - output;
    const float* bias = task.bias == nullptr ? nullptr : task.bias + output;
    float* out = task.out + row * task.out_stride + output;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) store(out + r * task.out_stride, bias, sum[r][p], left < kPanel ? left : kPanel);
  }
}

// A quantised panel as float32: [num_inputs][kPanel].
template <WeightType type>
void widen(const char* weight, std::int64_t num_inputs, float* out) {
  using W = Weights<type>;
  for (std::int64_t k = 0; k < num_inputs;) {
    const typename W::Head head = W::head(weight);
    weight += W::kHead;
    for (int j = 0; j < W::kGroup; ++j, ++k, weight += W::kStep, out += kPanel) store(out, W::load(weight, head));
  }
}

}  // namespace
}  // namespace paceline
