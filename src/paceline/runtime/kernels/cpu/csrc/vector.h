// Eight and sixteen floats at once. Units that include this are compiled once for each width of registers: sixteen floats
// are one register of AVX-512 or two of AVX2, and every operation does the same to each of them, so results have the same
// bits either way. In an unnamed namespace: the two compilations must not share code.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace paceline {
namespace {

struct Eight {
  __m256 v;
};

#ifdef __AVX512F__
struct Sixteen {
  __m512 v;
};
#else
struct Sixteen {
  __m256 low, high;
};
#endif

template <typename V>
constexpr int kWidth = 8;
template <>
constexpr int kWidth<Sixteen> = 16;

#define PACELINE_INLINE [[gnu::always_inline]] inline

// --- eight

template <typename V>
PACELINE_INLINE V all(float x);
template <typename V>
PACELINE_INLINE V load(const float* at);

template <>
PACELINE_INLINE Eight all<Eight>(float x) {
  return {_mm256_set1_ps(x)};
}
template <>
PACELINE_INLINE Eight load<Eight>(const float* at) {
  return {_mm256_loadu_ps(at)};
}
PACELINE_INLINE void store(float* at, Eight x) { _mm256_storeu_ps(at, x.v); }
PACELINE_INLINE Eight operator+(Eight a, Eight b) { return {_mm256_add_ps(a.v, b.v)}; }
PACELINE_INLINE Eight operator-(Eight a, Eight b) { return {_mm256_sub_ps(a.v, b.v)}; }
PACELINE_INLINE Eight operator*(Eight a, Eight b) { return {_mm256_mul_ps(a.v, b.v)}; }
PACELINE_INLINE Eight operator/(Eight a, Eight b) { return {_mm256_div_ps(a.v, b.v)}; }
PACELINE_INLINE Eight fma(Eight a, Eight b, Eight c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }    // a b + c
PACELINE_INLINE Eight fnma(Eight a, Eight b, Eight c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
// Of a pair with a NaN they give the second.
PACELINE_INLINE Eight least(Eight a, Eight b) { return {_mm256_min_ps(a.v, b.v)}; }
PACELINE_INLINE Eight most(Eight a, Eight b) { return {_mm256_max_ps(a.v, b.v)}; }
PACELINE_INLINE Eight nearest_integer(Eight x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x where not a < b (or either is NaN), else 0.
PACELINE_INLINE Eight unless_less(Eight a, Eight b, Eight x) {
  return {_mm256_and_ps(x.v, _mm256_cmp_ps(a.v, b.v, _CMP_NLT_UQ))};
}
PACELINE_INLINE bool any_nan(Eight a, Eight b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)) != 0;
}
// 2^n for integers n of -126 to 127.
PACELINE_INLINE Eight power_of_two(Eight n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}

// The sum of eight floats, always in the same order.
PACELINE_INLINE float sum_of(Eight x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
PACELINE_INLINE float largest_of(Eight x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// --- sixteen

#ifdef __AVX512F__

PACELINE_INLINE Sixteen join(Eight low, Eight high) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)};
}
PACELINE_INLINE Eight low_of(Sixteen x) { return {_mm512_castps512_ps256(x.v)}; }
PACELINE_INLINE Eight high_of(Sixteen x) { return {_mm512_extractf32x8_ps(x.v, 1)}; }
template <>
PACELINE_INLINE Sixteen all<Sixteen>(float x) {
  return {_mm512_set1_ps(x)};
}
template <>
PACELINE_INLINE Sixteen load<Sixteen>(const float* at) {
  return {_mm512_loadu_ps(at)};
}
PACELINE_INLINE void store(float* at, Sixteen x) { _mm512_storeu_ps(at, x.v); }
PACELINE_INLINE Sixteen operator+(Sixteen a, Sixteen b) { return {_mm512_add_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen operator-(Sixteen a, Sixteen b) { return {_mm512_sub_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen operator*(Sixteen a, Sixteen b) { return {_mm512_mul_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen operator/(Sixteen a, Sixteen b) { return {_mm512_div_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen fma(Sixteen a, Sixteen b, Sixteen c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PACELINE_INLINE Sixteen fnma(Sixteen a, Sixteen b, Sixteen c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
PACELINE_INLINE Sixteen least(Sixteen a, Sixteen b) { return {_mm512_min_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen most(Sixteen a, Sixteen b) { return {_mm512_max_ps(a.v, b.v)}; }
PACELINE_INLINE Sixteen nearest_integer(Sixteen x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PACELINE_INLINE Sixteen unless_less(Sixteen a, Sixteen b, Sixteen x) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v)};
}
PACELINE_INLINE bool any_nan(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q) != 0; }
PACELINE_INLINE Sixteen power_of_two(Sixteen n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
// x in places [from, to), elsewhere `other`.
PACELINE_INLINE Sixteen between(int from, int to, Sixteen x, Sixteen other) {
  const __mmask16 places = static_cast<__mmask16>((1u << to) - (1u << from));
  return {_mm512_mask_mov_ps(other.v, places, x.v)};
}

#else

PACELINE_INLINE Sixteen join(Eight low, Eight high) { return {low.v, high.v}; }
PACELINE_INLINE Eight low_of(Sixteen x) { return {x.low}; }
PACELINE_INLINE Eight high_of(Sixteen x) { return {x.high}; }
template <>
PACELINE_INLINE Sixteen all<Sixteen>(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
template <>
PACELINE_INLINE Sixteen load<Sixteen>(const float* at) {
  return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}
PACELINE_INLINE void store(float* at, Sixteen x) {
  _mm256_storeu_ps(at, x.low);
  _mm256_storeu_ps(at + 8, x.high);
}
PACELINE_INLINE Sixteen operator+(Sixteen a, Sixteen b) { return join(low_of(a) + low_of(b), high_of(a) + high_of(b)); }
PACELINE_INLINE Sixteen operator-(Sixteen a, Sixteen b) { return join(low_of(a) - low_of(b), high_of(a) - high_of(b)); }
PACELINE_INLINE Sixteen operator*(Sixteen a, Sixteen b) { return join(low_of(a) * low_of(b), high_of(a) * high_of(b)); }
PACELINE_INLINE Sixteen operator/(Sixteen a, Sixteen b) { return join(low_of(a) / low_of(b), high_of(a) / high_of(b)); }
PACELINE_INLINE Sixteen fma(Sixteen a, Sixteen b, Sixteen c) {
  return join(fma(low_of(a), low_of(b), low_of(c)), fma(high_of(a), high_of(b), high_of(c)));
}
PACELINE_INLINE Sixteen fnma(Sixteen a, Sixteen b, Sixteen c) {
  return join(fnma(low_of(a), low_of(b), low_of(c)), fnma(high_of(a), high_of(b), high_of(c)));
}
PACELINE_INLINE Sixteen least(Sixteen a, Sixteen b) {
  return join(least(low_of(a), low_of(b)), least(high_of(a), high_of(b)));
}
PACELINE_INLINE Sixteen most(Sixteen a, Sixteen b) {
  return join(most(low_of(a), low_of(b)), most(high_of(a), high_of(b)));
}
PACELINE_INLINE Sixteen nearest_integer(Sixteen x) {
  return join(nearest_integer(low_of(x)), nearest_integer(high_of(x)));
}
PACELINE_INLINE Sixteen unless_less(Sixteen a, Sixteen b, Sixteen x) {
  return join(unless_less(low_of(a), low_of(b), low_of(x)), unless_less(high_of(a), high_of(b), high_of(x)));
}
PACELINE_INLINE bool any_nan(Sixteen a, Sixteen b) {
  return any_nan(low_of(a), low_of(b)) || any_nan(high_of(a), high_of(b));
}
PACELINE_INLINE Sixteen power_of_two(Sixteen n) { return join(power_of_two(low_of(n)), power_of_two(high_of(n))); }
PACELINE_INLINE Sixteen between(int from, int to, Sixteen x, Sixteen other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), later = _mm256_add_epi32(lanes, _mm256_set1_epi32(8));
  const __m256i before = _mm256_set1_epi32(from - 1), end = _mm256_set1_epi32(to);
  const auto chosen = [&](__m256i lane) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, before), _mm256_cmpgt_epi32(end, lane)));
  };
  return {_mm256_blendv_ps(other.low, x.low, chosen(lanes)), _mm256_blendv_ps(other.high, x.high, chosen(later))};
}

#endif

PACELINE_INLINE float sum_of(Sixteen x) { return sum_of(low_of(x) + high_of(x)); }
PACELINE_INLINE float largest_of(Sixteen x) { return largest_of(most(low_of(x), high_of(x))); }

// Calls work(V{}, i) for runs of kWidth<V> numbers from i on, until [0, size) is done; `size` is a multiple of 8.
template <typename Work>
PACELINE_INLINE void by_register(std::int64_t size, const Work& work) {
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) work(Sixteen{}, i);
  if (i < size) work(Eight{}, i);
}

}  // namespace
}  // namespace paceline
