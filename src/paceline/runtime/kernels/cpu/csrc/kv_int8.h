// K and V of 8 bits in the cache: what is stored for a token, and how it is written.
//
// A token's K (or V) of one head is a record: head_dim codes and, behind them, the scale d of them all as a float.
//
//   d = max|x| / 127        code = x * (127 / max|x|), rounded to the nearest with ties to even: -127..127
//
// So a record depends on its own token and head alone. Records whose largest number is below kLeastMagnitude (int8.h) are
// zero. One that is not finite gets d = NaN and codes of 0: whoever reads it sees that it is none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_places.h"

namespace paceline {

constexpr int kKVScaleBytes = 4;  // behind the codes of a record

constexpr std::int64_t kv_record_bytes(std::int64_t head_dim) { return head_dim + kKVScaleBytes; }

// K and V of a step's tokens: token t's `num_heads` runs of `head_dim` (a multiple of 8) floats, K heads first, become the
// records of slot slots[t], one of each head's run. Slots are the engine's own: not checked.
struct KVInt8Write {
  const float* kv;
  char* cache;
  const std::int64_t* slots;
  std::int64_t num_heads, head_dim;
  std::int64_t token_stride;  // floats from token to token
  std::int64_t block_size;
  KVPlaces places;            // of bytes
};

// Tokens [first, last). Needs AVX2.
void write_kv_int8_avx2(const KVInt8Write& task, std::int64_t first, std::int64_t last);

}  // namespace paceline
