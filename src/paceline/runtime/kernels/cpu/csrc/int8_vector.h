// Integers of sixteen outputs: one register of AVX-512 or two of AVX2, with VNNI. Included by units of either width.
#pragma once

#include <cstring>

#include "vector.h"

namespace paceline {
namespace {

PACELINE_INLINE const __m128i* at_128(const char* at) { return reinterpret_cast<const __m128i*>(at); }
PACELINE_INLINE const __m256i* at_256(const char* at) { return reinterpret_cast<const __m256i*>(at); }

#ifdef __AVX512F__

struct Ints {
  __m512i v;
};

PACELINE_INLINE Ints in_all(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
PACELINE_INLINE Ints four_bytes_of(const char* at) {  // everywhere the same
  std::int32_t four;
  std::memcpy(&four, at, 4);
  return in_all(four);
}
PACELINE_INLINE Sixteen as_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }

// 64 bytes, and 32 bytes whose low halves come before their high ones.
PACELINE_INLINE Ints bytes_at(const char* at) { return {_mm512_loadu_si512(at)}; }
PACELINE_INLINE Ints halves_at(const char* at) {
  const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(at_256(at)));
  const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
  return {_mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15))};
}
PACELINE_INLINE Ints with_sign_turned(Ints x) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(-128))}; }
PACELINE_INLINE Ints minus_bytes(Ints x, char y) { return {_mm512_sub_epi8(x.v, _mm512_set1_epi8(y))}; }
PACELINE_INLINE void put(char* at, Ints x) { _mm512_storeu_si512(at, x.v); }

// sum + products of four unsigned codes with the four signed ones at `four`. The memory operand goes to all sixteen.
PACELINE_INLINE Ints dot(Ints sum, Ints codes, const char* four) {
  struct Four {
    char bytes[4];
  };
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(codes.v), "m"(*reinterpret_cast<const Four*>(four)));
  return sum;
}

PACELINE_INLINE Sixteen half_floats_at(const char* at) { return {_mm512_cvtph_ps(_mm256_loadu_si256(at_256(at)))}; }

// `count` of sixteen floats, of 1 to 16.
PACELINE_INLINE Sixteen load_some(const float* at, std::int64_t count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), at)};
}
PACELINE_INLINE void store_some(float* at, Sixteen x, std::int64_t count) {
  _mm512_mask_storeu_ps(at, static_cast<__mmask16>((1u << count) - 1), x.v);
}

#else

struct Ints {
  __m256i low, high;
};

PACELINE_INLINE Ints in_all(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PACELINE_INLINE Ints four_bytes_of(const char* at) {
  std::int32_t four;
  std::memcpy(&four, at, 4);
  return in_all(four);
}
PACELINE_INLINE Sixteen as_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }

PACELINE_INLINE Ints bytes_at(const char* at) {
  return {_mm256_loadu_si256(at_256(at)), _mm256_loadu_si256(at_256(at + 32))};
}
PACELINE_INLINE Ints halves_at(const char* at) {
  const __m256i both = _mm256_loadu_si256(at_256(at)), mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16(both, 4), mask)};
}
PACELINE_INLINE Ints with_sign_turned(Ints x) {
  const __m256i sign = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(x.low, sign), _mm256_xor_si256(x.high, sign)};
}
PACELINE_INLINE Ints minus_bytes(Ints x, char y) {
  return {_mm256_sub_epi8(x.low, _mm256_set1_epi8(y)), _mm256_sub_epi8(x.high, _mm256_set1_epi8(y))};
}
PACELINE_INLINE void put(char* at, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 32), x.high);
}

PACELINE_INLINE Ints dot(Ints sum, Ints codes, const char* four) {
  const __m256i a = four_bytes_of(four).low;
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.low) : "x"(codes.low), "x"(a));
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.high) : "x"(codes.high), "x"(a));
  return sum;
}

PACELINE_INLINE Sixteen half_floats_at(const char* at) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(at_128(at))), _mm256_cvtph_ps(_mm_loadu_si128(at_128(at + 16)))};
}

PACELINE_INLINE Sixteen load_some(const float* at, std::int64_t count) {
  if (count == 16) return load<Sixteen>(at);
  float all[16] = {};
  std::memcpy(all, at, static_cast<std::size_t>(count) * 4);
  return load<Sixteen>(all);
}
PACELINE_INLINE void store_some(float* at, Sixteen x, std::int64_t count) {
  if (count == 16) return store(at, x);
  float all[16];
  store(all, x);
  std::memcpy(at, all, static_cast<std::size_t>(count) * 4);
}

#endif

}  // namespace
}  // namespace paceline
