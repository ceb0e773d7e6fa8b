// Rows of numbers turned: what lies one after another comes to lie side by side.
#pragma once

#include <immintrin.h>

namespace paceline {
namespace {

// out[d * stride + j] = key[j][d] for eight keys and eight d. `out` and `stride` keep to 32 bytes.
template <int stride>
[[gnu::always_inline]] inline void turn8(const __m256 (&key)[8], float* out) {
  __m256 pair[8], four[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pair[2 * i] = _mm256_unpacklo_ps(key[2 * i], key[2 * i + 1]);
    pair[2 * i + 1] = _mm256_unpackhi_ps(key[2 * i], key[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    four[4 * i] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0x44);
    four[4 * i + 1] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0xee);
    four[4 * i + 2] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0x44);
    four[4 * i + 3] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_store_ps(out + i * stride, _mm256_permute2f128_ps(four[i], four[4 + i], 0x20));
    _mm256_store_ps(out + (4 + i) * stride, _mm256_permute2f128_ps(four[i], four[4 + i], 0x31));
  }
}

// out[d * 16 + j] = key[j][d] as a float, for sixteen keys and 32 d of signed bytes. Of the address bits (key, d) of a byte
// within 16 x 16, one step of interleaving moves the first to the end; four steps exchange key and d. Each half of a
// register does so for 16 of the d.
[[gnu::always_inline]] inline void turn_bytes(__m256i (&key)[16], float* out) {
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    __m256i next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm256_unpacklo_epi8(key[i], key[i + 8]);
      next[2 * i + 1] = _mm256_unpackhi_epi8(key[i], key[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) key[i] = next[i];
  }
  const auto widen = [](__m128i codes, float* at) {
    _mm256_store_ps(at, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)));
    _mm256_store_ps(at + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8))));
  };
#pragma GCC unroll 16
  for (int d = 0; d < 16; ++d) {
    widen(_mm256_castsi256_si128(key[d]), out + d * 16);
    widen(_mm256_extracti128_si256(key[d], 1), out + (16 + d) * 16);
  }
}

}  // namespace
}  // namespace paceline
