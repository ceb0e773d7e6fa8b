// The largest magnitude of a run of numbers, for those that are rounded to codes of 8 bits.
#pragma once

#include <immintrin.h>

namespace paceline {
namespace {

// |x| as bit patterns: those order as the numbers do, with NaN above all.
[[gnu::always_inline]] inline __m256i magnitudes(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

[[gnu::always_inline]] inline float largest(__m256i bits) {
  __m128i found = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  found = _mm_max_epi32(found, _mm_shuffle_epi32(found, 0x4e));
  found = _mm_max_epi32(found, _mm_shuffle_epi32(found, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(found));
}

}  // namespace
}  // namespace paceline
