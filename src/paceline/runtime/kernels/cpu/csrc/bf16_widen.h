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

// Codes of 8 bits, byte `at` of each four, as floats beside kPlaces; a scale takes both away again: the fused d (kPlaces + q)
// - d kPlaces is what d q is, rounded once, for d kPlaces is exact (scales have at most 19 bits).
constexpr float kPlaces = 12582912.0f;  // 1.5 x 2^23: its last place is 1

[[gnu::always_inline]] inline __m512 floats_of_bytes(__m512i codes, int at, float scale, float less) {
  const __m512i beside = _mm512_dpbusd_epi32(_mm512_castps_si512(_mm512_set1_ps(kPlaces)), _mm512_set1_epi32(1 << 8 * at), codes);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(beside), _mm512_set1_ps(scale), _mm512_set1_ps(less));
}

// Those of a unit, with a scale for each half of an output's.
template <typename Take>
[[gnu::always_inline]] inline void widen_8_bits(const char* codes, const float* scale, const float* second, const float* less,
                                                const float* second_less, const Take& take) {
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512i four = load_512(codes + 32 * i);
#pragma GCC unroll 2
    for (int j = i; j < i + 2; ++j)
      take(j, bf16_of(floats_of_bytes(four, 2 * (j - i), scale[j], less[j]),
                      floats_of_bytes(four, 2 * (j - i) + 1, second[j], second_less[j])));
  }
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
// tables(i) are those of outputs i, i + 1; rounding to bfloat16 costs most there, so it is done for two or more at once.
template <typename Tables, typename Take>
[[gnu::always_inline]] inline void look_up_4_bits(const char* codes, const Tables& tables, const Take& take) {
  const __m512i halves = _mm512_set1_epi16(0x0f0f), second = _mm512_set1_epi16(0x1010);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i word = load_512(codes + 16 * i), first_pair = tables(i), second_pair = tables(i + 2);
    const __m512i even = _mm512_and_si512(word, halves);
    const __m512i odd = _mm512_ternarylogic_epi32(_mm512_srli_epi16(word, 4), halves, second, 0xea);  // (a & b) | c
    take(i, _mm512_permutexvar_epi16(even, first_pair));
    take(i + 1, _mm512_permutexvar_epi16(odd, first_pair));
    take(i + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), second_pair));
    take(i + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(odd, 8), second_pair));
  }
}

template <WeightType type, typename Take>
[[gnu::always_inline]] inline void widen_4_bits(const char* codes, const float* scale, const float* offset, const Take& take) {
  const auto tables = [&](int at) {
    return bf16_of(values_of<type>(0, scale[at], offset[at]), values_of<type>(0, scale[at + 1], offset[at + 1]));
  };
  look_up_4_bits(codes, tables, take);
}

// d (q - 8) is 0 or d times 1, 3, 5 or 7, times a power of two, with a sign: four products to round instead of sixteen, and
// powers and signs are added to their bits. For scales that are finite and not 0.
struct OddMultiples {
  alignas(64) std::int16_t place[4][32] = {};  // of outputs 2 j, 2 j + 1 of eight: for each code where its product stands
  alignas(64) std::int16_t added[32] = {};
  std::uint32_t some = 0;  // codes that are not 0

  constexpr OddMultiples() {
    for (int word = 0; word < 32; ++word) {
      const int value = word % 16 - 8;
      int odd = value < 0 ? -value : value, power = 0;
      for (; odd != 0 && odd % 2 == 0; odd /= 2) ++power;
      if (value != 0) some |= 1u << word;
      added[word] = static_cast<std::int16_t>((value < 0 ? -0x8000 : 0) + (power << 7));
      for (int j = 0; j < 4; ++j) {  // products: [half of the eight][odd number][output of four]
        const int output = 2 * j + word / 16;
        place[j][word] = static_cast<std::int16_t>(16 * (output / 4) + 4 * (odd / 2) + output % 4);
      }
    }
  }
};

template <typename Take>
[[gnu::always_inline]] inline void widen_4_bits_centred(const char* codes, const float* scale, const Take& take) {
  static constexpr OddMultiples kOdd;
  const __m512 odd = _mm512_setr_ps(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
  __m512i products[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto four = [&](int at) { return _mm512_mul_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(scale + at)), odd); };
    products[i] = bf16_of(four(8 * i), four(8 * i + 4));
  }
  const auto tables = [&](int at) {
    const __m512i place = _mm512_load_si512(kOdd.place[at % 8 / 2]);
    return _mm512_add_epi16(_mm512_maskz_permutexvar_epi16(kOdd.some, place, products[at / 8]), _mm512_load_si512(kOdd.added));
  };
  look_up_4_bits(codes, tables, take);
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
      constexpr bool kTwo = f.group == 16;
      const float* second = kTwo ? scales_at<f.scale_bytes>(unit + kLine, buffer + kPanel) : scale;
      alignas(64) float less[2 * kPanel];
      const auto less_of = [&](const float* numbers, float* at) {
        _mm512_store_ps(at, _mm512_mul_ps(_mm512_loadu_ps(numbers), _mm512_set1_ps(-kPlaces)));
        return at;
      };
      const float* first_less = less_of(scale, less);
      const float* second_less = kTwo ? less_of(second, less + kPanel) : first_less;
      widen_8_bits(unit + kLine * (kTwo ? 2 : 1), scale, second, first_less, second_less, take);
    } else {
      constexpr bool kStored = f.offset == Offset::kStored;
      const float* offset = kStored ? scales_at<f.scale_bytes>(unit + kLine, buffer + kPanel) : scale;
      const char* codes = unit + kLine * (kStored ? 2 : 1);
      if constexpr (type == kRows4Centred) {
        const auto special = _mm512_fpclass_ps_mask(_mm512_loadu_ps(scale), 0x9f);  // zeros, infinite, not numbers
        if (__builtin_expect(special == 0, 1)) return widen_4_bits_centred(codes, scale, take);
      }
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
