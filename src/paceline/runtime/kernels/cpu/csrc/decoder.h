// All blocks of a decoder in one call: from a library call to the next, Python takes longer than most operations at one row.
//
// A block is that of runtime/models/blocks.py: x += attention(norm(x)); x += mlp(norm(x)), with norms on heads and on what is
// added where a family has them. The operations are those of ops.h in the same order, so results have the same bits.
#pragma once

#include "ops.h"

namespace paceline {

// Outputs of a product that are stored alike.
struct Segment {
  const void* weight;
  const float* bias;  // null: none
  std::int64_t num_outputs;
  std::int64_t type;  // WeightType
};

struct Product {
  const Segment* segments;  // one after another along the outputs
  std::int64_t num_segments, num_inputs, num_outputs;
};

struct Block {
  const float *before_attention, *after_attention, *before_mlp, *after_mlp;  // norms; the second and the fourth may be null
  const float* head_norm;  // [heads + KV heads, head_dim], or null
  Product qkv, out, gate_up, down;
  void* kv;                                  // see AttentionLayer: floats or bfloat16, or records of 8 bits
  KVPlaces places;
  std::int64_t group, rope, activation;      // KV group, which of the rotations, Activation
};

struct Decoder {
  const Block* blocks;
  std::int64_t num_blocks, hidden, intermediate, num_heads, num_kv_heads, head_dim;
  float eps;
};

// One step. `scratch` holds scratch_size(...) floats.
struct Pass {
  float* x;  // [tokens, hidden]: the residual stream, updated
  float* scratch;
  const AttentionStep* const* steps;  // by KV group
  const std::int64_t* const* slots;   // by KV group: [tokens]
  const float* const* cos;            // by rotation: [tokens, head_dim]
  const float* const* sin;
  std::int64_t num_tokens, table_stride, num_threads;
};

std::int64_t scratch_size(const Decoder& decoder, std::int64_t num_tokens);
void run_blocks(const Decoder& decoder, const Pass& pass);

}  // namespace paceline
