// Rows of numbers turned: what lies one after another comes to lie side by side.
#pragma once

#include "vector.h"

namespace paceline {
namespace {

// out[d * 16 + j] = key[j][d] for eight keys, j from 0 on, and eight d.
PACELINE_INLINE void turn_8x8(const __m256 (&key)[8], float* out) {
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
    _mm256_storeu_ps(out + i * 16, _mm256_permute2f128_ps(four[i], four[4 + i], 0x20));
    _mm256_storeu_ps(out + (4 + i) * 16, _mm256_permute2f128_ps(four[i], four[4 + i], 0x31));
  }
}

// out[d * 16 + j] = key(j)[d] for sixteen keys and eight d; key(j) gives eight numbers.
template <typename Key>
PACELINE_INLINE void turn_eight(const Key& key, float* out) {
  for (int half = 0; half < 16; half += 8) {
    __m256 eight[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) eight[j] = key(half + j).v;
    turn_8x8(eight, out + half);
  }
}

// out[d * 16 + j] = key(j, V{}, 0)[d] for sixteen keys and sixteen d; key(j, V{}, d) gives the numbers from d on.
template <typename Key>
PACELINE_INLINE void turn_sixteen(const Key& key, float* out) {
#ifdef __AVX512F__
  __m512 one[16], two[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) one[j] = key(j, Sixteen{}, 0).v;
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_ps(one[i], one[i + 1]);
    two[i + 1] = _mm512_unpackhi_ps(one[i], one[i + 1]);
  }
  // one[4 i + c], quarter q: d = 4 q + c of keys 4 i to 4 i + 3
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    one[i] = _mm512_shuffle_ps(two[i], two[i + 2], 0x44);
    one[i + 1] = _mm512_shuffle_ps(two[i], two[i + 2], 0xee);
    one[i + 2] = _mm512_shuffle_ps(two[i + 1], two[i + 3], 0x44);
    one[i + 3] = _mm512_shuffle_ps(two[i + 1], two[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even = _mm512_shuffle_f32x4(one[c], one[4 + c], 0x88), odd = _mm512_shuffle_f32x4(one[c], one[4 + c], 0xdd);
    const __m512 more = _mm512_shuffle_f32x4(one[8 + c], one[12 + c], 0x88);
    const __m512 most = _mm512_shuffle_f32x4(one[8 + c], one[12 + c], 0xdd);
    _mm512_storeu_ps(out + 16 * c, _mm512_shuffle_f32x4(even, more, 0x88));
    _mm512_storeu_ps(out + 16 * (4 + c), _mm512_shuffle_f32x4(odd, most, 0x88));
    _mm512_storeu_ps(out + 16 * (8 + c), _mm512_shuffle_f32x4(even, more, 0xdd));
    _mm512_storeu_ps(out + 16 * (12 + c), _mm512_shuffle_f32x4(odd, most, 0xdd));
  }
#else
  turn_eight([&](int j) { return key(j, Eight{}, 0); }, out);
  turn_eight([&](int j) { return key(j, Eight{}, 8); }, out + 8 * 16);
#endif
}

// Signed bytes: out[d * 16 + j] = key[j][begin + d] as a float, for sixteen keys (null: zeros) and kTurnedBytes d. Of the
// address bits (key, d) of a byte within 16 x 16, one step of interleaving moves the first to the end; four steps exchange
// key and d. Each quarter (AVX2: half) of a register does so for 16 of the d.
#ifdef __AVX512F__
using Bytes = __m512i;
PACELINE_INLINE Bytes interleave_low(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
PACELINE_INLINE Bytes interleave_high(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
#else
using Bytes = __m256i;
PACELINE_INLINE Bytes interleave_low(Bytes a, Bytes b) { return _mm256_unpacklo_epi8(a, b); }
PACELINE_INLINE Bytes interleave_high(Bytes a, Bytes b) { return _mm256_unpackhi_epi8(a, b); }
#endif
constexpr int kTurnedBytes = sizeof(Bytes);

template <typename T>
PACELINE_INLINE void turn_bytes(const T* const (&key)[16], int begin, float* out) {
  Bytes codes[16], next[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) {
    codes[j] = Bytes{};
    if (key[j] != nullptr) __builtin_memcpy(&codes[j], key[j] + begin, sizeof(Bytes));
  }
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = interleave_low(codes[i], codes[i + 8]);
      next[2 * i + 1] = interleave_high(codes[i], codes[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) codes[i] = next[i];
  }
#pragma GCC unroll 16
  for (int d = 0; d < 16; ++d) {
    float* at = out + 16 * d;
#ifdef __AVX512F__
    const auto widen = [&](__m128i sixteen, int quarter) {
      _mm512_storeu_ps(at + 256 * quarter, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen)));
    };
    widen(_mm512_castsi512_si128(codes[d]), 0);
    widen(_mm512_extracti32x4_epi32(codes[d], 1), 1);
    widen(_mm512_extracti32x4_epi32(codes[d], 2), 2);
    widen(_mm512_extracti32x4_epi32(codes[d], 3), 3);
#else
    const auto widen = [&](__m128i sixteen, int half) {
      _mm256_storeu_ps(at + 256 * half, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sixteen)));
      _mm256_storeu_ps(at + 256 * half + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sixteen, 8))));
    };
    widen(_mm256_castsi256_si128(codes[d]), 0);
    widen(_mm256_extracti128_si256(codes[d], 1), 1);
#endif
  }
}

}  // namespace
}  // namespace paceline
