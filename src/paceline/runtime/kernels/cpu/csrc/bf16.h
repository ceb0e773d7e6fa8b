// The product of weights and activations of bfloat16, summed in float32: 16 x 16 outputs x 32 k in one instruction (AMX), or
// 16 sums of two products (AVX-512 BF16).
//
// Weights, "rows": a panel of kPanel outputs is cut into units of kUnit k, and a unit becomes 16 rows of 32 bfloat16, the
// left side of a matrix instruction. Stored are those rows (kRowsBFloat16, zeros behind the last input) or what a unit's
// blocks have, scales first as in blocks.h, then codes so that one register has 32 k of an output without moving any:
//
//   4 bits:  4 registers; word k of register v has the codes of outputs 4 v .. 4 v + 3, the first in the lowest bits
//   5 bits:  5 registers; word k of register v has those of outputs 3 v .. 3 v + 2, and in its highest bit that bit v of
//            output 15's code
//   8 bits:  8 registers; four bytes i of register v have codes i and 16 + i of output 2 v, then those of output 2 v + 1
//   groups of 16: a unit has two, so scales of the first for all outputs, scales of the second, then codes
//
// A code of 4 or 5 bits is looked up in a register of what an output's group has for each code, in bfloat16. A code of 8 bits
// is added to the last places of a float, which costs one instruction for 16 codes wherever in four bytes they stand.
// A weight is what the definition of its type gives in float32, rounded to bfloat16, to nearest with ties to even.
//
// Activations are rounded the same way, once for all outputs, into the caller's memory. With AMX: blocks of up to 16 rows,
// in each of them for each unit [16 pairs of k][rows][2], the right side of a matrix instruction. Else: row by row.
//
// Order of sums. AMX: for each unit in turn, products of even k and of odd k are chained apart, the two added, and that is
// added to the output. AVX-512 BF16: for each unit in turn, products of k = 2 i + 1 and then of k = 2 i are added to sum i of
// 16, which are added at the end: i + 8, i + 4, i + 2, i + 1. Each step is rounded to nearest in float32; numbers
// below 2^-126 count as zero. The same for every number of rows: an output's bits depend on its row and its weights alone.
#pragma once

#include "blocks.h"

namespace paceline {

class Items;  // parallel.h

constexpr std::int64_t kUnit = 32;       // k that a matrix instruction takes at once
constexpr std::int64_t kBlockRows = 16;  // rows of activations that it takes at once
constexpr std::int64_t kFewRows = 3 * kBlockRows;  // that pass panels together on their way, with AMX

constexpr std::int64_t num_units(std::int64_t num_inputs) { return (num_inputs + kUnit - 1) / kUnit; }

// Bytes of a unit of a panel.
constexpr std::size_t unit_bytes(WeightType type) {
  if (type == kRowsBFloat16) return 2 * kPanel * kUnit;
  const BlockFormat f = block_format(type);
  return static_cast<std::size_t>(kUnit / f.group) * group_bytes(f);
}

// Bytes of rounded rows; of those before row `row`, a multiple of kBlockRows.
constexpr std::size_t bf16_rows_bytes(std::int64_t row, std::int64_t num_inputs) {
  return static_cast<std::size_t>(row * num_units(num_inputs) * kUnit * 2);
}

// Codes of a unit, behind its scales: code (lane, k), lane < 16 and k < 32. To be written once, onto zeros.
void put_row_code(std::uint8_t* codes, int bits, std::int64_t lane, std::int64_t k, std::uint8_t code);
std::uint8_t row_code(const std::uint8_t* codes, int bits, std::int64_t lane, std::int64_t k);

// Rows [first, first + num_rows) of a weight from floats as kRowsBFloat16. `packed` starts zeroed.
void pack_bf16_rows(const float* weight, std::uint8_t* packed, std::int64_t first, std::int64_t num_rows,
                    std::int64_t num_inputs);

// Rounds blocks [first, last) of the task's rows into `rows`, which is bf16_rows_bytes(num_rows, ...) long and aligned to 64.
void round_blocks_amx(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last);
void round_blocks_avx512bf16(const LinearTask& task, char* rows, std::int64_t first, std::int64_t last);

// The product, once all rows are rounded. Needs what the name says, as isa.h finds it. With AVX-512 BF16: panels [first, last)
// of it. With AMX: items as they are given, of the number that there are; those of more than kFewRows rows are cut otherwise.
void bf16_panels_avx512bf16(const LinearTask& task, const char* rows, std::int64_t first, std::int64_t last);
std::int64_t bf16_items_amx(const LinearTask& task);
void bf16_products_amx(const LinearTask& task, const char* rows, Items& items);
std::int64_t bf16_items_of_many_amx(const LinearTask& task);
void bf16_many_rows_amx(const LinearTask& task, const char* rows, Items& items);

}  // namespace paceline
