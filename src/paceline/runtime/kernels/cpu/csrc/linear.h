// y = x W^T + b for weights packed once at load. Plain C++ behind a C interface; no header of Python or torch.
//
// Packed weight: panels of kPanel outputs. A panel holds its outputs' weights for k = 0, then for k = 1, and so on, so a
// product reads memory in one straight line whatever the number of rows. Outputs past the last one are zero.
//
//   float32:   panel[k][n], n = 0..15
//   bfloat16:  panel[k][2 i + h] = weight of output i + 8 h, i = 0..7, h = 0..1: one 32-byte load, a shift and a mask give
//              two vectors of eight floats
//   blocks:    quantised weights, see blocks.h; those that meet activations of 8 bits, see int8.h, or of bfloat16, see bf16.h
//
// Every output is one chain of fused multiply-adds over k = 0..K-1, in that order, in one accumulator. So its bits depend
// neither on the number of rows nor on how work is divided between threads, and a quantised weight gives the bits of the
// float32 weight it stands for. (int8.h and bf16.h have orders of their own, with the same independence.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

constexpr std::int64_t kPanel = 16;  // outputs of a panel

// How packed weights are stored. The numbers are known to Python.
enum WeightType : std::int32_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFirstBlocks = 2,
  kHalf4Centred = 2,  // w = d (q - 8)          d half; q 4 bits       Q4_0
  kHalf4Offset = 3,   // w = d q + m            d, m half; q 4 bits    Q4_1
  kHalf8 = 4,         // w = d q                d half; q signed byte  Q5_0, Q8_0
  kHalf8Offset = 5,   // w = d q + m                                   Q5_1
  kFloat4Offset = 6,  // w = d q + m            d, m float; q 4 bits   Q4_K
  kFloat8Offset = 7,  // w = d q + m            d, m float; q a byte   Q5_K
  kFloat8By16 = 8,    // w = d q, groups of 16  d float; q signed byte Q6_K
  // For activations of 8 bits. The same numbers, four k of an output beside each other.
  kFirstInt8 = 9,
  kInt4Centred = 9,       // w = d (q - 8)                d half        Q4_0
  kInt4Offset = 10,       // w = d q + m                  d, m half     Q4_1
  kInt5Centred = 11,      // w = d (q - 16)               d half        Q5_0
  kInt5Offset = 12,       // w = d q + m                  d, m half     Q5_1
  kInt8Signed = 13,       // w = d q                      d half        Q8_0
  kInt4FloatOffset = 14,  // w = d q + m                  d, m float    Q4_K
  kInt5FloatOffset = 15,  // w = d q + m                  d, m float    Q5_K
  kInt6By16 = 16,         // w = d (q - 32), groups of 16 d float       Q6_K
  // For activations of bfloat16. The same numbers again, 32 k of an output beside each other.
  kFirstRows = 17,
  kRowsBFloat16 = 17,       // w bfloat16                                 weights that come as floats
  kRows4Centred = 18,       // w = d (q - 8)                d half        Q4_0
  kRows4Offset = 19,        // w = d q + m                  d, m half     Q4_1
  kRows5Centred = 20,       // w = d (q - 16)               d half        Q5_0
  kRows5Offset = 21,        // w = d q + m                  d, m half     Q5_1
  kRows8 = 22,              // w = d q                      d half        Q8_0
  kRows4FloatOffset = 23,   // w = d q + m                  d, m float    Q4_K
  kRows5FloatOffset = 24,   // w = d q + m                  d, m float    Q5_K
  kRows8By16 = 25,          // w = d q, groups of 16        d float       Q6_K
};

struct LinearTask {
  const float* x;        // [num_rows, num_inputs], rows x_stride floats apart
  const void* weight;    // [num_panels] panels
  const float* bias;     // [num_outputs] or null
  float* out;            // [num_rows, num_outputs], rows out_stride floats apart
  std::int64_t num_rows;
  std::int64_t num_inputs;  // blocks: a multiple of the group
  std::int64_t num_outputs;
  std::int64_t x_stride;
  std::int64_t out_stride;
  WeightType type;
};

// Bytes of one panel.
std::size_t panel_bytes(WeightType type, std::int64_t num_inputs);

// Panels [first, last) of the product, all rows. By level of instructions (isa.h), with the same bits.
namespace avx2 {
void linear_panels(const LinearTask& task, std::int64_t first, std::int64_t last);
}
namespace avx512 {
void linear_panels(const LinearTask& task, std::int64_t first, std::int64_t last);
}

}  // namespace paceline
