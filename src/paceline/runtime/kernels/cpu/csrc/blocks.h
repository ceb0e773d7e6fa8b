// Quantised weights in panels. A row of K weights is cut into groups of 32 (or 16) that share a scale d and perhaps an
// offset m; a weight is d q + m, computed as a rounded product and a rounded sum, as the definition of the GGUF types does.
//
//   panel:  for each group   d[16]   m[16] if there are offsets   then for each k of the group the codes of 16 outputs:
//           4 bits:   8 bytes, output i in the low and output i + 8 in the high half of byte i
//           8 bits:  16 bytes, output i in byte i
//
// So the 16 weights of one k come from one short load, and scales from one per group. Padding outputs have d = m = 0.
// Types for activations of 8 bits (int8.h) have four k of an output beside each other, in the same heads:
//
//           4 bits:  32 bytes for four k: k = j of output i in the low and of output i + 8 in the high half of byte 4 i + j
//           8 bits:  64 bytes for four k: k = j of output i in byte 4 i + j
//
// Types for activations of bfloat16 have 32 k of an output beside each other: bf16.h says how.
#pragma once

#include "linear.h"

namespace paceline {

enum class Offset { kNone, kStored, kCentred };  // centred: m = -centre d, which is exact

struct BlockFormat {
  int bits;         // that a code takes: 4 or 8, in rows 5 too
  int group;        // weights that share a scale
  int scale_bytes;  // 2: half, 4: float
  Offset offset;
  int centre = 0;
  int together = 1;  // k of an output that are beside each other
  int width = 8;     // bits that a code has
};

constexpr BlockFormat block_format(WeightType type) {
  switch (type) {
    case kHalf4Centred: return {4, 32, 2, Offset::kCentred, 8};
    case kHalf4Offset: return {4, 32, 2, Offset::kStored};
    case kHalf8: return {8, 32, 2, Offset::kNone};
    case kHalf8Offset: return {8, 32, 2, Offset::kStored};
    case kFloat4Offset: return {4, 32, 4, Offset::kStored};
    case kFloat8Offset: return {8, 32, 4, Offset::kStored};
    case kInt4Centred: return {4, 32, 2, Offset::kCentred, 8, 4, 4};
    case kInt4Offset: return {4, 32, 2, Offset::kStored, 0, 4, 4};
    case kInt5Centred: return {8, 32, 2, Offset::kCentred, 16, 4, 5};
    case kInt5Offset: return {8, 32, 2, Offset::kStored, 0, 4, 5};
    case kInt8Signed: return {8, 32, 2, Offset::kNone, 0, 4, 8};
    case kInt4FloatOffset: return {4, 32, 4, Offset::kStored, 0, 4, 4};
    case kInt5FloatOffset: return {8, 32, 4, Offset::kStored, 0, 4, 5};
    case kInt6By16: return {8, 16, 4, Offset::kCentred, 32, 4, 6};
    case kRows4Centred: return {4, 32, 2, Offset::kCentred, 8};
    case kRows4Offset: return {4, 32, 2, Offset::kStored};
    case kRows5Centred: return {5, 32, 2, Offset::kCentred, 16};
    case kRows5Offset: return {5, 32, 2, Offset::kStored};
    case kRows8: return {8, 32, 2, Offset::kNone};
    case kRows4FloatOffset: return {4, 32, 4, Offset::kStored};
    case kRows5FloatOffset: return {5, 32, 4, Offset::kStored};
    default: return {8, 16, 4, Offset::kNone};  // kFloat8By16, kRows8By16
  }
}

constexpr std::size_t head_bytes(BlockFormat f) {  // scales and offsets of a group
  return static_cast<std::size_t>(kPanel * f.scale_bytes * (f.offset == Offset::kStored ? 2 : 1));
}
constexpr std::size_t step_bytes(BlockFormat f) {  // codes of `together` k
  return static_cast<std::size_t>(kPanel * f.bits / 8 * f.together);
}
constexpr std::size_t group_bytes(BlockFormat f) {
  return head_bytes(f) + static_cast<std::size_t>(f.group / f.together) * step_bytes(f);
}

// The GGUF types that can be packed, by their number there.
enum GgmlType : std::int32_t { kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14 };

// What weights meet. The numbers are known to Python.
enum Activations : std::int32_t { kFloatActivations = 0, kInt8Activations = 1, kBFloat16Activations = 2 };

// The type a GGUF type is packed as; -1: none.
std::int32_t packed_type(std::int32_t ggml, Activations activations);

// Rows [first, first + num_rows) of a weight from their GGUF blocks, as `type`: one of those of packed_type. `packed`
// starts zeroed.
void pack_blocks(const std::uint8_t* blocks, std::uint8_t* packed, std::int64_t first, std::int64_t num_rows,
                 std::int64_t num_inputs, std::int32_t ggml, WeightType type);

// One row as floats.
void unpack_blocks(const std::uint8_t* packed, float* row, std::int64_t n, std::int64_t num_inputs, WeightType type);

}  // namespace paceline
