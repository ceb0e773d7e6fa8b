// The C interface of everything in a layer, by operation and whole.
#include "decoder.h"

using namespace paceline;

extern "C" {

std::int64_t paceline_cpu_linear_scratch(std::int32_t type, std::int64_t num_rows, std::int64_t num_inputs) {
  return linear_scratch(static_cast<WeightType>(type), num_rows, num_inputs);
}

// `scratch`: paceline_cpu_linear_scratch(...) bytes; null where that is 0.
void paceline_cpu_linear(const float* x, const void* packed, const float* bias, float* out, void* scratch,
                         std::int64_t num_rows, std::int64_t num_inputs, std::int64_t num_outputs,
                         std::int64_t x_stride, std::int64_t out_stride, std::int32_t type, std::int32_t num_threads) {
  linear({x, packed, bias, out, num_rows, num_inputs, num_outputs, x_stride, out_stride, static_cast<WeightType>(type)},
         static_cast<char*>(scratch), num_threads);
}

void paceline_cpu_rms_norm(const float* x, const float* weight, float* out, std::int64_t num_tokens,
                           std::int64_t num_heads, std::int64_t num_weights, std::int64_t size,
                           std::int64_t token_stride, std::int64_t head_stride, float eps, std::int32_t num_threads) {
  rms_norm({x, weight, out, num_heads, num_weights, size, token_stride, head_stride, num_heads * size, size, eps},
           num_tokens, num_threads);
}

void paceline_cpu_rope(float* x, const float* cos, const float* sin, std::int64_t num_tokens, std::int64_t num_heads,
                       std::int64_t size, std::int64_t token_stride, std::int64_t head_stride, std::int64_t table_stride,
                       std::int32_t num_threads) {
  rope({x, cos, sin, num_heads, size, token_stride, head_stride, table_stride}, num_tokens, num_threads);
}

void paceline_cpu_gated(const float* gate_up, float* out, std::int64_t num_tokens, std::int64_t size,
                        std::int64_t token_stride, std::int32_t activation, std::int32_t num_threads) {
  gated({gate_up, out, size, token_stride, static_cast<Activation>(activation)}, num_tokens, num_threads);
}

void paceline_cpu_largest(const float* x, float* value, std::int64_t* place, std::int64_t num_rows, std::int64_t size,
                          std::int64_t stride, std::int32_t num_threads) {
  largest({x, value, place, size, stride}, num_rows, num_threads);
}

void paceline_cpu_draw_bounds(const float* z, const std::int64_t* rows, const std::int32_t* multiplier,
                              const std::int32_t* offset, float* out, std::int64_t num_draws, std::int64_t size,
                              std::int64_t stride, std::int32_t num_threads) {
  draw_bounds({z, rows, multiplier, offset, out, size, stride}, num_draws, num_threads);
}

void paceline_cpu_draw_scale(float* x, const float* largest, const float* temperature, std::int64_t num_rows,
                             std::int64_t size, std::int64_t stride, std::int32_t num_threads) {
  draw_scale({x, largest, temperature, size, stride}, num_rows, num_threads);
}

void paceline_cpu_keep_allowed(float* x, const std::int64_t* rows, const std::uint32_t* words, float* largest,
                               std::int64_t num_masks, std::int64_t size, std::int64_t stride, std::int64_t num_words,
                               std::int32_t num_threads) {
  keep_allowed({x, rows, words, largest, size, stride, num_words}, num_masks, num_threads);
}

void paceline_cpu_write_kv(const char* kv, char* cache, const std::int64_t* slots, std::int64_t num_tokens,
                           std::int64_t num_heads, std::int64_t head_bytes, std::int64_t token_stride,
                           std::int64_t block_size, std::int64_t head_stride, std::int64_t chunk_stride) {
  write_kv(kv, cache, slots, num_tokens, num_heads, head_bytes, token_stride, block_size,
           {head_stride, chunk_stride});
}

void paceline_cpu_write_kv_int8(const float* kv, char* cache, const std::int64_t* slots, std::int64_t num_tokens,
                                std::int64_t num_heads, std::int64_t head_dim, std::int64_t token_stride,
                                std::int64_t block_size, std::int64_t head_stride, std::int64_t chunk_stride,
                                std::int32_t num_threads) {
  write_kv_int8({kv, cache, slots, num_heads, head_dim, token_stride, block_size, {head_stride, chunk_stride}}, num_tokens,
                num_threads);
}

std::int32_t paceline_cpu_attention_has_amx(std::int32_t kv_type, std::int32_t head_dim) {
  return attention_has_amx(kv_type, head_dim) ? 1 : 0;
}

void paceline_cpu_attention(const AttentionStep* step, const float* q, std::int64_t q_stride, void* kv,
                            std::int64_t head_stride, std::int64_t chunk_stride, float* out) {
  attention(*step, {q, q_stride, kv, {head_stride, chunk_stride}, out});
}

std::int64_t paceline_cpu_scratch_size(const Decoder* decoder, std::int64_t num_tokens) {
  return scratch_size(*decoder, num_tokens);
}

void paceline_cpu_run_blocks(const Decoder* decoder, const Pass* pass) { run_blocks(*decoder, *pass); }

}  // extern "C"
