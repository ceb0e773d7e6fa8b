// The product of weight codes and activations of 8 bits: integers within a group, floats from group to group.
//
// Activations. A row is cut into the weight's groups of 32 (or 16). A group has d = max|x| / 127 and codes
// a = x * (127 / max|x|), rounded to the nearest with ties to even: -127..127, of that row alone. Groups whose largest
// number is below kLeastMagnitude count as zero. One that is not finite makes d so, and with it every output of the row.
//
// Quantised rows lie in blocks of some rows each, as many as a register tile has; the last block is filled up with rows of
// zeros:
//
//   block:  for each group   codes[rows][group]   d[rows]   tail[rows]
//
//   tail    d * sum(a) as a float if offsets are stored, else -shift * sum(a) as an integer (shift: code_shift)
//
// Weights: blocks.h. Codes that meet activations in the multiplication of an unsigned byte with a signed one are as they are
// stored, and the tail takes their centre away: sum((code + shift) a) - shift sum(a). AVX2 adds two such products in 16 bits
// and runs of those before they are widened; nothing saturates: see kRun in int8_tile_avx2.h. VNNI adds four in 32 bits.
// AMX multiplies signed bytes, from which the centre is taken before.
//
//   S   = sum(q a), q = code - centre                          exact
//   out = fma(d_w d_a, S, out), then fma(m_w, d_a sum(a), out) if offsets are stored      for group 0, 1, ... in turn
//
// So an output's bits depend on its row and its weights alone: not on the level of instructions either.
#pragma once

#include <type_traits>

#include "blocks.h"

namespace paceline {

constexpr float kLeastMagnitude = 1e-36f;  // 127 / max|x| must be finite
constexpr std::size_t kRecordTail = 8;     // bytes that a row has in a group beside its codes

// What makes a code an unsigned byte when added to q.
constexpr int code_shift(BlockFormat f) { return f.offset == Offset::kNone ? 128 : f.centre; }

// The rows of a product once quantised.
struct Int8Rows {
  int height;               // rows of a block
  std::int64_t num_blocks;
  std::size_t group_bytes;  // of a block
  std::size_t block_bytes;  // a multiple of a cache line
};

// What computes a product. Functions need the instructions of their level; `last` is one past the last.
struct Int8Kernel {
  int most_rows;  // of a block
  void (*quantise)(const LinearTask& task, const Int8Rows& rows, char* at, std::int64_t first_block, std::int64_t last);
  void (*panels)(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first_panel,
                 std::int64_t last);  // once all rows are quantised
};

// The kernel for so many rows of a type at the level of instructions in use.
const Int8Kernel& int8_kernel(WeightType type, std::int64_t num_rows);

Int8Rows int8_rows(const Int8Kernel& kernel, WeightType type, std::int64_t num_rows, std::int64_t num_inputs);

void quantise_rows_avx2(const LinearTask&, const Int8Rows&, char*, std::int64_t, std::int64_t);
void quantise_rows_avx512(const LinearTask&, const Int8Rows&, char*, std::int64_t, std::int64_t);
void int8_panels_avx2(const LinearTask&, const Int8Rows&, const char*, std::int64_t, std::int64_t);  // blocks of one row
void int8_panels_avxvnni(const LinearTask&, const Int8Rows&, const char*, std::int64_t, std::int64_t);
void int8_panels_vnni512(const LinearTask&, const Int8Rows&, const char*, std::int64_t, std::int64_t);
void int8_panels_amx(const LinearTask&, const Int8Rows&, const char*, std::int64_t, std::int64_t);
constexpr int kMostRowsAvxVnni = 6, kMostRowsVnni512 = 12, kMostRowsAmx = 16;
constexpr int kLeastRowsAmx = 8;  // of a block; int8.cpp says from how many rows on tiles are used

namespace {  // a copy for each unit: they are compiled for different processors

// work(a compile-time number equal to `type`).
template <class Work>
auto at_type(WeightType type, const Work& work) {
  switch (type) {
    case kInt4Centred: return work(std::integral_constant<WeightType, kInt4Centred>{});
    case kInt4Offset: return work(std::integral_constant<WeightType, kInt4Offset>{});
    case kInt5Centred: return work(std::integral_constant<WeightType, kInt5Centred>{});
    case kInt5Offset: return work(std::integral_constant<WeightType, kInt5Offset>{});
    case kInt8Signed: return work(std::integral_constant<WeightType, kInt8Signed>{});
    case kInt4FloatOffset: return work(std::integral_constant<WeightType, kInt4FloatOffset>{});
    case kInt5FloatOffset: return work(std::integral_constant<WeightType, kInt5FloatOffset>{});
    default: return work(std::integral_constant<WeightType, kInt6By16>{});
  }
}

}  // namespace

}  // namespace paceline
