// Which kernel computes an integer product, and how its quantised rows lie.
#include "int8.h"

#include "isa.h"

namespace paceline {
namespace {

constexpr Int8Kernel kAvx2Kernel = {1, quantise_rows_avx2, int8_panels_avx2};
constexpr Int8Kernel kAvxVnniKernel = {kMostRowsAvxVnni, quantise_rows_avx2, int8_panels_avxvnni};
constexpr Int8Kernel kVnni512Kernel = {kMostRowsVnni512, quantise_rows_avx512, int8_panels_vnni512};
constexpr Int8Kernel kAmxKernel = {kMostRowsAmx, quantise_rows_avx512, int8_panels_amx};

// From so many rows on tiles are faster than VNNI, as measured. Up to twelve rows VNNI reads codes where they lie, and
// codes of 5 and 6 bits without a change.
std::int64_t least_rows_of_tiles(WeightType type) {
  const BlockFormat f = block_format(type);
  const bool as_they_lie = f.offset == Offset::kNone;
  return f.bits == 4 || as_they_lie ? kLeastRowsAmx + 1 : kMostRowsVnni512 + 1;
}

}  // namespace

const Int8Kernel& int8_kernel(WeightType type, std::int64_t num_rows) {
  const Isa level = isa();
  if (level >= kAmx && num_rows >= least_rows_of_tiles(type)) return kAmxKernel;
  if (level >= kVnni512) return kVnni512Kernel;
  return level == kAvxVnni ? kAvxVnniKernel : kAvx2Kernel;
}

// Blocks of nearly equal height, so that as few rows as can be are filled up.
Int8Rows int8_rows(const Int8Kernel& kernel, WeightType type, std::int64_t num_rows, std::int64_t num_inputs) {
  Int8Rows found{};
  found.num_blocks = (num_rows + kernel.most_rows - 1) / kernel.most_rows;
  found.height = static_cast<int>((num_rows + found.num_blocks - 1) / found.num_blocks);
  const std::int64_t group = block_format(type).group;
  found.group_bytes = static_cast<std::size_t>(found.height) * (static_cast<std::size_t>(group) + kRecordTail);
  found.block_bytes = (found.group_bytes * static_cast<std::size_t>(num_inputs / group) + 63) / 64 * 64;
  return found;
}

}  // namespace paceline
