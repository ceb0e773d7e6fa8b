// The product of weight codes and activations of 8 bits: integers within a group, floats from group to group.
//
// Activations. A row is cut into the weight's groups of 32 (or 16). A group has d = max|x| / 127 and codes
// a = x * (127 / max|x|), rounded to the nearest with ties to even: -127..127, of that row alone. Groups whose largest
// number is below kLeastMagnitude count as zero. One that is not finite makes d so, and with it every output of the row.
//
//   row:  for each group   codes[group]   d   d * sum(a) as a float if offsets are stored, else -centre * sum(a) as an integer
//
// Weights: blocks.h. An unsigned code meets a signed one in a multiplication of bytes that adds two products in 16 bits,
// and runs of those are added in 16 bits before they are widened. Nothing saturates: see kRun in int8_tile_avx2.h.
//
//   S   = sum(code a) - centre sum(a)                          exact
//   out = fma(d_w d_a, S, out), then fma(m_w, d_a sum(a), out) if offsets are stored      for group 0, 1, ... in turn
//
// So an output's bits depend on its row and its weights alone.
#pragma once

#include "blocks.h"

namespace paceline {

constexpr float kLeastMagnitude = 1e-36f;  // 127 / max|x| must be finite
constexpr std::size_t kRecordTail = 8;     // bytes behind the codes of a group

// Bytes of a quantised row, a multiple of a cache line.
constexpr std::size_t int8_row_bytes(WeightType type, std::int64_t num_inputs) {
  const std::size_t group = static_cast<std::size_t>(block_format(type).group);
  return (static_cast<std::size_t>(num_inputs) / group * (group + kRecordTail) + 63) / 64 * 64;
}

// Quantises rows [first, last) of the task into `rows`, int8_row_bytes apart.
void quantise_rows_avx2(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last);

// Panels [first, last) of the product, all rows, once all are quantised. Needs AVX2, FMA and F16C.
void int8_panels_avx2(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last);

}  // namespace paceline
