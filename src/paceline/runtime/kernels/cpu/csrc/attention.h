// Attention of a step's queries over the paged cache.
//
// Queries are taken in tiles of up to kTileRows rows of one KV head: the query heads that share it, times a run of a
// prompt's tokens, or times decoding sequences that begin with the same blocks, whose keys are then read once for all. A
// tile walks the keys in groups of kKeys at fixed places of the sequence, with the running maximum and sum of online
// softmax (Milakov and Gimelshein 2018). Every row of a tile does the same arithmetic in the same order as it would alone,
// so its bits do not depend on the rows beside it, on how its prompt was cut, or on what came from the prefix cache.
#pragma once

#include <cstdint>

#include "kv_places.h"

namespace paceline {

constexpr int kTileRows = 48;
constexpr int kKeys = 16;
constexpr int kMaxHeadDim = 256;
constexpr int kAmxTileRows = 192;  // and of attention_tile_amx
constexpr int kAmxKeys = 64;

enum KVType : std::int32_t { kKVFloat32 = 0, kKVBFloat16 = 1, kKVFloat16 = 2, kKVInt8 = 3 };  // kKVInt8: kv_int8.h

// One sequence of the step. Python fills it: the order of the fields is known there.
struct AttentionRow {
  std::int64_t first_token;  // place of its first query among the step's tokens
  std::int64_t context;      // position of that query: tokens that came before
};

// Queries [first_query, first_query + num_queries) of a row.
struct AttentionMember {
  std::int32_t row, first_query, num_queries;
};

// Members [first_member, first_member + num_members) together. With several, each has one query, and keys [0, shared) lie
// in the same blocks for all of them; `shared` is above zero then, and a multiple of kKeys (kAmxKeys).
struct AttentionTile {
  std::int32_t first_member, num_members, shared;
};

// What all layers of a KV group have in common in a step.
struct AttentionStep {
  const AttentionRow* rows;
  const AttentionMember* members;
  const AttentionTile* tiles;  // the most work first
  const std::int32_t* tables;  // block ids of a row: tables[row * table_stride + index]
  std::int64_t table_stride;
  std::int64_t num_tiles;
  std::int32_t num_heads, num_kv_heads, head_dim, block_size;
  std::int32_t window;  // 0: none
  std::int32_t kv_type;
  std::int32_t num_threads;
  std::int32_t amx;  // 1: tiles are those of attention_tile_amx, which has to take them
  float scale;
  float softcap;  // 0: none
};

// One layer: q [tokens, num_heads, head_dim] with tokens q_stride floats apart, out [tokens, num_heads * head_dim];
// kv: the layer's blocks of block_size * head_dim numbers for each head. Of 8 bits: records of bytes in place of head_dim
// numbers, and strides in bytes.
struct AttentionLayer {
  const float* q;
  std::int64_t q_stride;
  const void* kv;
  KVPlaces places;
  float* out;
};

// Tile `tile` of KV head `head`. By level of instructions (isa.h), with the same bits.
namespace avx2 {
void attention_tile(const AttentionStep& step, const AttentionLayer& layer, std::int64_t tile, int head);
}
namespace avx512 {
void attention_tile(const AttentionStep& step, const AttentionLayer& layer, std::int64_t tile, int head);
}

// With AMX, in other bits: a cache of bfloat16 and heads of a multiple of 32 numbers (attention_amx.cpp).
void attention_tile_amx(const AttentionStep& step, const AttentionLayer& layer, std::int64_t tile, int head);

// Whether that is the one for such heads in this process.
bool attention_has_amx(std::int32_t kv_type, std::int32_t head_dim);

}  // namespace paceline
