// A unit of a panel as 16 rows of 32 bfloat16, one register each. Compiled with AVX-512 and its BF16 on.
#pragma once

// GCC 12's own headers read a register before it is set, on purpose, and GCC warns of it wherever they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <immintrin.h>

#include <type_traits>

#include "bf16.h"

namespace paceline {
namespace {

// 32 bfloat16 of sixteen floats each: those of `low` first.
[[gnu::always_inline]] inline __m512i bf16_of(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Sixteen scales or offsets at `at` as floats where a broadcast can read them: there, or widened into `buffer`.
template <int scale_bytes>
[[gnu::always_inline]] inline const float* scales_at(const char* at, float* buffer) {
  if constexpr (scale_bytes == 4) {
    return reinterpret_cast<const float*>(at);
  } else {
    _mm512_store_ps(buffer, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
    // From memory a broadcast is free; GCC would keep the register instead and permute it, on the port that has most to do.
    const float* stored = buffer;
    asm volatile("" : "+r"(stored) : : "memory");
    return stored;
  }
}

// What an output's group has for the codes first .. first + 15.
template <WeightType type>
[[gnu::always_inline]] inline __m512 values_of(int first, float scale, float offset) {
  constexpr BlockFormat f = block_format(type);
  const __m512 codes = _mm512_add_ps(
      _mm512_set1_ps(static_cast<float>(first - f.centre)),
      _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  // a code times a scale is exact in float32: fused or not is the same
  if constexpr (f.offset == Offset::kStored) return _mm512_fmadd_ps(_mm512_set1_ps(scale), codes, _mm512_set1_ps(offset));
  return _mm512_mul_ps(_mm512_set1_ps(scale), codes);
}

[[gnu::always_inline]] inline __m512i load_512(const char* at) { return _mm512_loadu_si512(at); }

// Codes of 8 bits: 32 of one output, with a scale for each half.
[[gnu::always_inline]] inline __m512i row_of_bytes(const char* codes, float first, float second) {
  const auto half = [codes](int at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at))));
  };
  return bf16_of(_mm512_mul_ps(half(0), _mm512_set1_ps(first)), _mm512_mul_ps(half(16), _mm512_set1_ps(second)));
}

// Output 15's codes of 5 bits: a bit in each register, its highest.
[[gnu::always_inline]] inline __m512i last_codes(const char* codes) {
  __m512i found = _mm512_srli_epi16(load_512(codes), 15);
#pragma GCC unroll 8
  for (int v = 1; v < 5; ++v) {
    const __m512i bit = _mm512_and_si512(load_512(codes + 64 * v), _mm512_set1_epi16(static_cast<short>(0x8000)));
    found = _mm512_or_si512(found, _mm512_srli_epi16(bit, 15 - v));
  }
  return found;
}

// Codes of 4 bits: a register has what two outputs have for each code, and the fifth bit of an index says which of them.
// Rounding to bfloat16 costs most here, so it is done for two at once.
template <WeightType type, typename Take>
[[gnu::always_inline]] inline void widen_4_bits(const char* codes, const float* scale, const float* offset, const Take& take) {
  const __m512i halves = _mm512_set1_epi16(0x0f0f), second = _mm512_set1_epi16(0x1010);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto table = [&](int at) {
      return bf16_of(values_of<type>(0, scale[at], offset[at]), values_of<type>(0, scale[at + 1], offset[at + 1]));
    };
    const __m512i word = load_512(codes + 16 * i), first_pair = table(i), second_pair = table(i + 2);
    const __m512i even = _mm512_and_si512(word, halves);
    const __m512i odd = _mm512_ternarylogic_epi32(_mm512_srli_epi16(word, 4), halves, second, 0xea);  // (a & b) | c
    take(i, _mm512_permutexvar_epi16(even, first_pair));
    take(i + 1, _mm512_permutexvar_epi16(odd, first_pair));
    take(i + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), second_pair));
    take(i + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(odd, 8), second_pair));
  }
}

// Codes of 5 bits: a register has what an output has for each.
template <WeightType type, typename Take>
[[gnu::always_inline]] inline void widen_5_bits(const char* codes, const float* scale, const float* offset, const Take& take) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512i table = bf16_of(values_of<type>(0, scale[i], offset[i]), values_of<type>(16, scale[i], offset[i]));
    const __m512i code = i == 15 ? last_codes(codes)
                                 : _mm512_srli_epi16(load_512(codes + 64 * (i / 3)), static_cast<unsigned>(5 * (i % 3)));
    take(i, _mm512_permutexvar_epi16(code, table));
  }
}

// Calls take(output, row) for the 16 outputs of the unit at `unit`.
template <WeightType type, typename Take>
[[gnu::always_inline]] inline void widen_unit(const char* unit, const Take& take) {
  if constexpr (type == kRowsBFloat16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) take(i, load_512(unit + 64 * i));
  } else {
    constexpr BlockFormat f = block_format(type);
    constexpr int kLine = static_cast<int>(kPanel) * f.scale_bytes;
    alignas(64) float buffer[2 * kPanel];
    const float* scale = scales_at<f.scale_bytes>(unit, buffer);
    if constexpr (f.bits == 8) {
      const float* second = f.group == 16 ? scales_at<f.scale_bytes>(unit + kLine, buffer + kPanel) : scale;
      const char* codes = unit + kLine * (kUnit / f.group);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) take(i, row_of_bytes(codes + 32 * i, scale[i], second[i]));
    } else {
      constexpr bool kStored = f.offset == Offset::kStored;
      const float* offset = kStored ? scales_at<f.scale_bytes>(unit + kLine, buffer + kPanel) : scale;
      const char* codes = unit + kLine * (kStored ? 2 : 1);
      if constexpr (f.bits == 4)
        widen_4_bits<type>(codes, scale, offset, take);
      else
        widen_5_bits<type>(codes, scale, offset, take);
    }
  }
}

// The unit into 16 x 64 bytes at `rows`, aligned to 64.
template <WeightType type>
[[gnu::always_inline]] inline void store_unit(const char* unit, char* rows) {
  widen_unit<type>(unit, [rows](int i, __m512i row) { _mm512_store_si512(rows + 64 * i, row); });
}

// work(a compile-time number equal to `type`).
template <class Work>
void at_type(WeightType type, const Work& work) {
  switch (type) {
    case kRowsBFloat16: return work(std::integral_constant<WeightType, kRowsBFloat16>{});
    case kRows4Centred: return work(std::integral_constant<WeightType, kRows4Centred>{});
    case kRows4Offset: return work(std::integral_constant<WeightType, kRows4Offset>{});
    case kRows5Centred: return work(std::integral_constant<WeightType, kRows5Centred>{});
    case kRows5Offset: return work(std::integral_constant<WeightType, kRows5Offset>{});
    case kRows8: return work(std::integral_constant<WeightType, kRows8>{});
    case kRows4FloatOffset: return work(std::integral_constant<WeightType, kRows4FloatOffset>{});
    case kRows5FloatOffset: return work(std::integral_constant<WeightType, kRows5FloatOffset>{});
    default: return work(std::integral_constant<WeightType, kRows8By16>{});
  }
}

}  // namespace
}  // namespace paceline
