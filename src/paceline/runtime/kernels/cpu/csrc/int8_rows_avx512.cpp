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

}  // namespace

void quantise_rows_avx512(const LinearTask& task, const Int8Rows& rows, char* at, std::int64_t first,
                          std::int64_t last) {
  static constexpr float kZeros[32] = {};
  const BlockFormat f = block_format(task.type);
  const std::int64_t num_groups = task.num_inputs / f.group;
  char unread[32];  // codes of lanes that stand for nothing
  for (std::int64_t block = first; block < last; ++block) {
    char* start = at + rows.block_bytes * static_cast<std::size_t>(block);
    // groups of the block's rows in the order of their codes: rows of the first group, rows of the second, ...
    for (std::int64_t item = 0, count = num_groups * rows.height; item < count; item += kLanes) {
      Lanes lanes;
      char* scale[kLanes];
      std::int64_t group = item / rows.height;
      int r = static_cast<int>(item % rows.height);
      const int used = static_cast<int>(count - item < kLanes ? count - item : kLanes);
      for (int i = 0; i < kLanes; ++i) {
        const std::int64_t row = block * rows.height + r;
        char* record = start + rows.group_bytes * static_cast<std::size_t>(group);
        lanes.x[i] = i < used && row < task.num_rows ? task.x + row * task.x_stride + group * f.group : kZeros;
        lanes.codes[i] = i < used ? record + r * f.group : unread;
        scale[i] = record + rows.height * f.group + 4 * r;
        if (++r == rows.height) r = 0, ++group;
      }
      if (f.group == 32)
        quantise<32>(lanes, f);
      else
        quantise<16>(lanes, f);
      for (int i = 0; i < used; ++i) {
        std::memcpy(scale[i], &lanes.d[i], 4);
        std::memcpy(scale[i] + 4 * rows.height, &lanes.tail[i], 4);
      }
    }
  }
}

}  // namespace paceline
