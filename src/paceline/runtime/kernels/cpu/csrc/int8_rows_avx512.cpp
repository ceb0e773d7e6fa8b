// Rows rounded to 8 bits on AVX-512, with the codes and scales of quantise_rows_avx2. Sixteen groups at a time, so that
// their largest magnitudes, quotients and sums are one register each.
#include <cstring>

#include <immintrin.h>

#include "int8.h"

namespace paceline {
namespace {

constexpr int kLanes = 16;

// Pairs of registers folded into one: each operation halves what is left of a lane. See reduced.
template <class Fold>
[[gnu::always_inline]] inline __m512i reduced(__m512i (&v)[kLanes], const Fold& fold) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    v[i] = fold(_mm512_inserti64x4(v[i], _mm512_castsi512_si256(v[i + 8]), 1), _mm512_shuffle_i64x2(v[i], v[i + 8], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    v[i] = fold(_mm512_shuffle_i64x2(v[i], v[i + 4], 0x88), _mm512_shuffle_i64x2(v[i], v[i + 4], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) v[i] = fold(_mm512_unpacklo_epi64(v[i], v[i + 2]), _mm512_unpackhi_epi64(v[i], v[i + 2]));
  const __m512 a = _mm512_castsi512_ps(v[0]), b = _mm512_castsi512_ps(v[1]);
  const __m512i mixed = fold(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                             _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_epi32(order, mixed);
}

struct Lanes {
  const float* x[kLanes];
  char* codes[kLanes];
  float d[kLanes];
  std::int32_t tail[kLanes];
};

// As int8_avx2.cpp does it for one group.
template <int group>
void quantise(Lanes& lanes, BlockFormat f) {
  constexpr int kParts = group / 16;
  __m512i v[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    v[i] = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(lanes.x[i])), magnitude);
    if constexpr (kParts == 2)
      v[i] = _mm512_max_epi32(
          v[i], _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(lanes.x[i] + 16)), magnitude));
  }
  const __m512 most = _mm512_castsi512_ps(reduced(v, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }));
  // not less than kLeastMagnitude, or NaN
  const __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_set1_ps(kLeastMagnitude), _CMP_NLT_UQ);
  const __m512 all = _mm512_set1_ps(127.0f), d = _mm512_maskz_div_ps(some, most, all);
  alignas(64) float factor[kLanes];
  _mm512_store_ps(factor, _mm512_maskz_div_ps(some, all, most));
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const __m512 scale = _mm512_set1_ps(factor[i]);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(lanes.x[i] + 16 * part), scale));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.codes[i] + 16 * part), _mm512_cvtsepi32_epi8(codes));
      v[i] = part == 0 ? codes : _mm512_add_epi32(v[i], codes);
    }
  }
  const __m512i sum = reduced(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
  _mm512_storeu_ps(lanes.d, d);
  _mm512_storeu_si512(lanes.tail, f.offset == Offset::kStored
                                      ? _mm512_castps_si512(_mm512_mul_ps(d, _mm512_cvtepi32_ps(sum)))
                                      : _mm512_mullo_epi32(sum, _mm512_set1_epi32(-code_shift(f))));
}

template <int group>
void one_block(const LinearTask& task, const Int8Rows& rows, char* record, std::int64_t first_row, BlockFormat f) {
  static constexpr float kZeros[group] = {};
  const std::int64_t num_groups = task.num_inputs / group;
  const std::size_t height = static_cast<std::size_t>(rows.height), scales = height * group, tails = scales + 4 * height;
  Lanes lanes;
  if (rows.height == kLanes && first_row + kLanes <= task.num_rows) {  // a lane for each row
    for (int i = 0; i < kLanes; ++i) {
      lanes.x[i] = task.x + (first_row + i) * task.x_stride;
      lanes.codes[i] = record + i * group;
    }
    for (std::int64_t g = 0; g < num_groups; ++g, record += rows.group_bytes) {
      quantise<group>(lanes, f);
      std::memcpy(record + scales, lanes.d, sizeof(lanes.d));
      std::memcpy(record + tails, lanes.tail, sizeof(lanes.tail));
      for (int i = 0; i < kLanes; ++i) {
        lanes.x[i] += group;
        lanes.codes[i] += rows.group_bytes;
      }
    }
    return;
  }
  // a lane for each code run in the order they lie in: rows of the first group, rows of the second, ...
  char unread[group];
  std::int64_t g = 0;
  int r = 0;
  while (g < num_groups) {
    char* scale[kLanes];
    int used = 0;
    for (int i = 0; i < kLanes; ++i) {
      lanes.x[i] = kZeros;
      lanes.codes[i] = unread;
      if (g == num_groups) continue;
      const std::int64_t row = first_row + r;
      if (row < task.num_rows) lanes.x[i] = task.x + row * task.x_stride + g * group;
      lanes.codes[i] = record + r * group;
      scale[i] = record + scales + 4 * r;
      used = i + 1;
      if (++r == rows.height) {
        r = 0;
        ++g;
        record += rows.group_bytes;
      }
    }
    quantise<group>(lanes, f);
    for (int i = 0; i < used; ++i) {
      std::memcpy(scale[i], &lanes.d[i], 4);
      std::memcpy(scale[i] + 4 * rows.height, &lanes.tail[i], 4);
    }
  }
}

}  // namespace

void quantise_rows_avx512(const LinearTask& task, const Int8Rows& rows, char* at, std::int64_t first,
                          std::int64_t last) {
  const BlockFormat f = block_format(task.type);
  const auto run = f.group == 32 ? one_block<32> : one_block<16>;
  for (std::int64_t block = first; block < last; ++block)
    run(task, rows, at + rows.block_bytes * static_cast<std::size_t>(block), block * rows.height, f);
}

}  // namespace paceline
