// y = x W^T + b for weights packed once at load. Plain C++ behind a C interface; no header of Python or torch.
//
// Packed weight: panels of kPanel outputs. A panel holds its outputs' weights for k = 0, then for k = 1, and so on, so a
// product reads memory in one straight line whatever the number of rows. Outputs past the last one are zero.
//
//   float32:   panel[k][n], n = 0..15
//   bfloat16:  panel[k][2 i + h] = weight of output i + 8 h, i = 0..7, h = 0..1: one 32-byte load, a shift and a mask give
//              two vectors of eight floats
//
// Every output is one chain of fused multiply-adds over k = 0..K-1, in that order, in one accumulator. So its bits depend
// neither on the number of rows nor on how work is divided between threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

constexpr std::int64_t kPanel = 16;  // outputs of a panel
constexpr int kMaxRows = 6;          // rows of a register tile: 6 x 16 sums fill 12 of 16 vector registers

enum WeightType : std::int32_t { kFloat32 = 0, kBFloat16 = 1 };

struct LinearTask {
  const float* x;        // [num_rows, num_inputs], rows x_stride floats apart
  const void* weight;    // [num_panels][num_inputs][kPanel]
  const float* bias;     // [num_outputs] or null
  float* out;            // [num_rows, num_outputs], contiguous
  std::int64_t num_rows;
  std::int64_t num_inputs;
  std::int64_t num_outputs;
  std::int64_t x_stride;
  WeightType type;
};

// Panels [first, last) of the product, all rows. Needs AVX2 and FMA.
void linear_panels_avx2(const LinearTask& task, std::int64_t first, std::int64_t last);

}  // namespace paceline
