// Where K and V of a layer lie in the paged cache (runtime/kv_cache.py): blocks in chunks of kChunkBlocks, and within a chunk a
// run for each head, K heads first, that holds the head's numbers of all its blocks one after another.
#pragma once

#include <cstdint>

namespace paceline {

constexpr std::int64_t kChunkBlocks = 8;

struct KVPlaces {
  std::int64_t head_stride, chunk_stride;  // from run to run and from chunk to chunk: numbers, or bytes of records

  // Of one head's block, from the head's run in the first chunk on.
  std::int64_t block(std::int64_t id) const {
    return id / kChunkBlocks * chunk_stride + id % kChunkBlocks * (head_stride / kChunkBlocks);
  }

  // Of slot block * block_size + offset, whose record has so many numbers or bytes.
  std::int64_t slot(std::int64_t at, std::int64_t block_size, std::int64_t record) const {
    return block(at / block_size) + at % block_size * record;
  }
};

}  // namespace paceline
