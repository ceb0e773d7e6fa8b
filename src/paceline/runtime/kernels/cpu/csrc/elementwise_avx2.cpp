// Compiled with AVX2 and FMA on; call it only where the processor has them.
#include "elementwise.h"

#include <cmath>

#include "exp_avx2.h"

namespace paceline {

void rms_norm_avx2(const NormTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t size = task.size, whole = size / 8 * 8;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t token = row / task.num_heads, head = row % task.num_heads;
    const float* x = task.x + token * task.token_stride + head * task.head_stride;
    const float* weight = task.weight + row % task.num_weights * size;
    float* out = task.out + token * task.out_token_stride + head * task.out_head_stride;
    __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};  // two chains: one waits for its own additions
    for (std::int64_t i = 0, chain = 0; i < whole; i += 8, chain ^= 1) {
      const __m256 value = _mm256_loadu_ps(x + i);
      squares[chain] = _mm256_fmadd_ps(value, value, squares[chain]);
    }
    float sum = sum8(_mm256_add_ps(squares[0], squares[1]));
    for (std::int64_t i = whole; i < size; ++i) sum += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + task.eps);
    const __m256 all = _mm256_set1_ps(factor);
    for (std::int64_t i = 0; i < whole; i += 8)
      _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), all), _mm256_loadu_ps(weight + i)));
    for (std::int64_t i = whole; i < size; ++i) out[i] = x[i] * factor * weight[i];
  }
}

void rope_avx2(const RopeTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t half = task.size / 2;
  for (std::int64_t token = first; token < last; ++token) {
    const float *cos = task.cos + token * task.table_stride, *sin = task.sin + token * task.table_stride;
    for (std::int64_t head = 0; head < task.num_heads; ++head) {
      float* x = task.x + token * task.token_stride + head * task.head_stride;
      for (std::int64_t i = 0; i < half; i += 8) {
        const __m256 low = _mm256_loadu_ps(x + i), high = _mm256_loadu_ps(x + half + i);
        const __m256 turned = _mm256_mul_ps(low, _mm256_loadu_ps(cos + i));
        _mm256_storeu_ps(x + i, _mm256_fmadd_ps(high, _mm256_loadu_ps(sin + i), turned));
        const __m256 other = _mm256_mul_ps(high, _mm256_loadu_ps(cos + half + i));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(low, _mm256_loadu_ps(sin + half + i), other));
      }
    }
  }
}

namespace {

// x / (1 + e^-x)
[[gnu::always_inline]] inline __m256 silu8(__m256 x) {
  const __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), x));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

// x / 2 (1 + tanh z) = x / (1 + e^-2z) with z = sqrt(2 / pi) (x + 0.044715 x^3)
[[gnu::always_inline]] inline __m256 gelu_tanh8(__m256 x) {
  const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
  const __m256 inner = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, x);
  const __m256 e = exp8(_mm256_mul_ps(_mm256_set1_ps(-1.5957691216f), inner));  // -2 sqrt(2 / pi)
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

template <Activation activation>
void gated_rows(const GatedTask& task, std::int64_t first, std::int64_t last) {
  for (std::int64_t token = first; token < last; ++token) {
    const float *gate = task.gate_up + token * task.token_stride, *up = gate + task.size;
    float* out = task.out + token * task.size;
    for (std::int64_t i = 0; i < task.size; i += 8) {
      const __m256 x = _mm256_loadu_ps(gate + i);
      const __m256 active = activation == kSilu ? silu8(x) : gelu_tanh8(x);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(active, _mm256_loadu_ps(up + i)));
    }
  }
}

}  // namespace

void add_avx2(float* x, const float* y, std::int64_t first, std::int64_t last) {
  std::int64_t i = first;
  for (; i + 8 <= last; i += 8) _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  for (; i < last; ++i) x[i] += y[i];
}

void gated_avx2(const GatedTask& task, std::int64_t first, std::int64_t last) {
  if (task.activation == kSilu)
    gated_rows<kSilu>(task, first, last);
  else
    gated_rows<kGeluTanh>(task, first, last);
}

}  // namespace paceline
