// Each operation of a layer over a whole step, its work shared between threads.
#pragma once

#include "attention.h"
#include "draws.h"
#include "elementwise.h"
#include "kv_int8.h"
#include "kv_places.h"
#include "linear.h"

namespace paceline {

// Bytes of scratch memory that a product needs: rows rounded to 8 bits or to bfloat16, for weights that meet those; else 0.
std::int64_t linear_scratch(WeightType type, std::int64_t num_rows, std::int64_t num_inputs);

// `scratch` holds linear_scratch(...) bytes.
void linear(const LinearTask& task, char* scratch, int num_threads);
void rms_norm(const NormTask& task, std::int64_t num_tokens, int num_threads);
void rope(const RopeTask& task, std::int64_t num_tokens, int num_threads);
void gated(const GatedTask& task, std::int64_t num_tokens, int num_threads);
void add(float* x, const float* y, std::int64_t count, int num_threads);
void largest(const LargestTask& task, std::int64_t num_rows, int num_threads);
void draw_bounds(const DrawBounds& task, std::int64_t num_draws, int num_threads);
void draw_scale(const DrawScale& task, std::int64_t num_rows, int num_threads);

// Numbers of x whose bit in `words` is not set become -inf.
void keep_allowed(const KeepAllowed& task, std::int64_t num_masks, int num_threads);

void attention(const AttentionStep& step, const AttentionLayer& layer);

// Copies token t's `num_heads` runs of `head_bytes` to slot slots[t], one to each head's run. Tokens lie `token_stride`
// bytes apart, and places are of bytes. Slots are the engine's own: not checked.
void write_kv(const char* kv, char* cache, const std::int64_t* slots, std::int64_t num_tokens, std::int64_t num_heads,
              std::int64_t head_bytes, std::int64_t token_stride, std::int64_t block_size, const KVPlaces& places);

// The same with rounding to bfloat16; strides in numbers.
void write_kv_bf16(const float* kv, std::uint16_t* cache, const std::int64_t* slots, std::int64_t num_tokens,
                   std::int64_t num_heads, std::int64_t head_dim, std::int64_t token_stride, std::int64_t block_size,
                   const KVPlaces& places);

// The same with rounding to 8 bits.
void write_kv_int8(const KVInt8Write& task, std::int64_t num_tokens, int num_threads);

}  // namespace paceline
