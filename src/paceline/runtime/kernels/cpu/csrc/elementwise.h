// Normalisation, rotation, gated activation and the largest number of float32 rows. A row's bits depend on that row alone.
#pragma once

#include <cstdint>

namespace paceline {

// out = x / sqrt(mean(x^2) + eps) * weight for rows [first, last) of num_rows = tokens * heads. out may be x.
struct NormTask {
  const float* x;
  const float* weight;  // [num_weights, size]: row r takes r % num_weights
  float* out;
  std::int64_t num_heads, num_weights, size;
  std::int64_t token_stride, head_stride;          // of x, in floats
  std::int64_t out_token_stride, out_head_stride;  // of out
  float eps;
};

// Pairs (i, i + size / 2) of heads, in place: x * cos + (the other half) * sin. cos and sin are [tokens, size]; the first
// half of sin carries the minus sign.
struct RopeTask {
  float* x;
  const float* cos;
  const float* sin;
  std::int64_t num_heads, size;  // size: a multiple of 16
  std::int64_t token_stride, head_stride, table_stride;
};

// out = activation(gate) * up for tokens whose rows are [gate, up]; out is dense.
enum Activation : std::int32_t { kSilu = 0, kGeluTanh = 1 };
struct GatedTask {
  const float* gate_up;
  float* out;
  std::int64_t size, token_stride;  // size: a multiple of 8
  Activation activation;
};

// The largest number of each row and where it first stands. A row with a NaN has the value NaN, and a place that says nothing.
struct LargestTask {
  const float* x;
  float* value;         // [rows]
  std::int64_t* place;  // [rows]
  std::int64_t size, stride;
};

// By level of instructions (isa.h), with the same bits.
#define PACELINE_ELEMENTWISE                                                       \
  void rms_norm(const NormTask& task, std::int64_t first, std::int64_t last);      \
  void rope(const RopeTask& task, std::int64_t first, std::int64_t last);          \
  void gated(const GatedTask& task, std::int64_t first, std::int64_t last);        \
  void largest(const LargestTask& task, std::int64_t first, std::int64_t last);    \
  /* x += y for numbers [first, last) */                                           \
  void add(float* x, const float* y, std::int64_t first, std::int64_t last);
namespace avx2 {
PACELINE_ELEMENTWISE
}
namespace avx512 {
PACELINE_ELEMENTWISE
}
#undef PACELINE_ELEMENTWISE

}  // namespace paceline
