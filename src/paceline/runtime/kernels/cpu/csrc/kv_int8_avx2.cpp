// Compiled with AVX2 on; call it only where the processor has it.
#include "kv_int8.h"

#include <cstring>
#include <limits>

#include "int8.h"
#include "magnitude_avx2.h"

namespace paceline {
namespace {

void write_record(const float* x, std::int64_t head_dim, char* record) {
  __m256i most = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < head_dim; i += 8) most = _mm256_max_epi32(most, magnitudes(_mm256_loadu_ps(x + i)));
  const float magnitude = largest(most);
  const bool finite = magnitude <= std::numeric_limits<float>::max();
  float d = finite ? magnitude / 127.0f : std::numeric_limits<float>::quiet_NaN();
  if (!finite || magnitude < kLeastMagnitude) {
    if (finite) d = 0.0f;
    std::memset(record, 0, static_cast<std::size_t>(head_dim));
  } else {
    const __m256 factor = _mm256_set1_ps(127.0f / magnitude);
    for (std::int64_t i = 0; i < head_dim; i += 8) {
      const __m256i eight = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
      const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(record + i), _mm_packs_epi16(words, words));
    }
  }
  std::memcpy(record + head_dim, &d, sizeof(d));
}

}  // namespace

void write_kv_int8_avx2(const KVInt8Write& task, std::int64_t first, std::int64_t last) {
  const std::int64_t record = kv_record_bytes(task.head_dim);
  for (std::int64_t t = first; t < last; ++t) {
    char* to = task.cache + task.places.slot(task.slots[t], task.block_size, record);
    for (std::int64_t h = 0; h < task.num_heads; ++h)
      write_record(task.kv + t * task.token_stride + h * task.head_dim, task.head_dim, to + h * task.places.head_stride);
  }
}

}  // namespace paceline
