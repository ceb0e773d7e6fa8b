// Sixteen registers of sixteen numbers turned: number j of register i becomes number i of register j.
#pragma once

#include <immintrin.h>

namespace paceline {
namespace {

[[gnu::always_inline]] inline void turn_16(__m512i (&row)[16]) {
  __m512i pair[16], four[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {  // within quarters: rows i, i + 1 beside each other
    pair[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    pair[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // four[i + c], quarter q: column 4 q + c of rows i .. i + 3
    four[i] = _mm512_unpacklo_epi64(pair[i], pair[i + 2]);
    four[i + 1] = _mm512_unpackhi_epi64(pair[i], pair[i + 2]);
    four[i + 2] = _mm512_unpacklo_epi64(pair[i + 1], pair[i + 3]);
    four[i + 3] = _mm512_unpackhi_epi64(pair[i + 1], pair[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x44), b = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x44);
    const __m512i e = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xee);
    row[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    row[4 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    row[8 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    row[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
}

}  // namespace
}  // namespace paceline
