// The product of bfloat16 weights and activations, in tiles of AMX.
//
// Activations are rounded to bfloat16 (nearest, ties to even), once for all outputs, and laid out as tiles:
//
//   rows:   for each 16 rows, for each 32 k:  [16 rows][32 k]            1 KiB, zeros behind the last k
//   panel:  for each 32 k:                    [16 pairs of k][16 outputs][2]   1 KiB, zeros behind the last k
//
// Weights in blocks are widened and rounded, a few panels at a time, into a buffer of that form.
//
// An instruction multiplies one with the other and adds to 16 x 16 sums in float32, pair of k after pair of k. It treats
// every row alike, and every number of rows goes through it, so a row's bits are its own. Numbers whose magnitude is below
// 2^-126 count as zero.
#pragma once

#include "linear.h"

namespace paceline {

constexpr bool meets_bfloat16(WeightType type) { return type == kBFloat16Pairs || type >= kFirstRounded; }

constexpr std::int64_t kTileRows16 = 16, kTileK = 32;
constexpr std::size_t kTileBytes = 1024;

constexpr std::int64_t bf16_steps(std::int64_t num_inputs) { return (num_inputs + kTileK - 1) / kTileK; }

// Bytes of `num_rows` rounded rows.
constexpr std::size_t bf16_rows_bytes(std::int64_t num_rows, std::int64_t num_inputs) {
  return static_cast<std::size_t>((num_rows + kTileRows16 - 1) / kTileRows16 * bf16_steps(num_inputs)) * kTileBytes;
}

// Rounds rows [first, last) of the task into `rows`.
void bf16_round_rows_amx(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last);

// Panels [first, last) of the product, all rows, once all are rounded. Needs level kAmx (isa.h).
void bf16_panels_amx(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last);

}  // namespace paceline
