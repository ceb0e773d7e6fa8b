// exp and tanh on eight floats. Compiled with AVX2 and FMA on.
#pragma once

#include <immintrin.h>

namespace paceline {
namespace {

// e^x, within 2 units in the last place; 0 below -87.3, what e^88 is above 88, NaN of NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and
// e^r by the first eight terms of its series, whose rest is below 2^-26 there.
[[gnu::always_inline]] inline __m256 exp8(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-87.3f);
  const __m256 seen = _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ);
  x = _mm256_min_ps(_mm256_set1_ps(88.0f), _mm256_max_ps(lowest, x));  // of a pair with a NaN they give the second
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first with few enough bits that n times it is exact
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 sum = _mm256_set1_ps(1.0f / 5040);
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 720));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 120));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 24));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 6));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(0.5f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(sum, _mm256_castsi256_ps(power)), seen);
}

// 1 - 2 / (e^2x + 1): an absolute error of some 1e-7, which is what a capped score needs.
[[gnu::always_inline]] inline __m256 tanh8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = exp8(_mm256_add_ps(x, x));
  return _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
}

// The sum of eight floats, always in the same order.
[[gnu::always_inline]] inline float sum8(__m256 x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

[[gnu::always_inline]] inline float max8(__m256 x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

}  // namespace
}  // namespace paceline
