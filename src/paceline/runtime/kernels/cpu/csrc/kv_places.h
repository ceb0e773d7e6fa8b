// Where a token's K and V lie in a layer of the paged cache: blocks far apart, and within one a run for each head, K heads first.
#pragma once

#include <cstdint>

namespace paceline {

struct KVPlaces {
  std::int64_t head_stride, block_stride;  // from run to run and from block to block, in the unit of `record`
  std::int64_t block_size;                 // tokens of a block

  // Of the first head's record of slot `slot`, which is block * block_size + offset.
  std::int64_t of(std::int64_t slot, std::int64_t record) const {
    return slot / block_size * block_stride + slot % block_size * record;
  }
};

}  // namespace paceline
