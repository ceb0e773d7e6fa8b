// The C interface of everything in a layer but its weight products.
#include <algorithm>

#include "attention.h"
#include "elementwise.h"
#include "parallel.h"

using namespace paceline;

namespace {

constexpr std::int64_t kAloneBelow = 1 << 15;    // numbers that are not worth waking a thread
constexpr std::int64_t kPortionNumbers = 1 << 13;  // taken by a thread at once

// Rows of `size` numbers each.
template <typename Work>
void share_rows(std::int64_t num_rows, std::int64_t size, int num_threads, const Work& work) {
  const int threads = num_rows * size < kAloneBelow ? 1 : num_threads;
  share(num_rows, std::max<std::int64_t>(1, kPortionNumbers / size), threads, work);
}

}  // namespace

extern "C" {

void paceline_cpu_rms_norm(const float* x, const float* weight, float* out, std::int64_t num_tokens,
                           std::int64_t num_heads, std::int64_t num_weights, std::int64_t size,
                           std::int64_t token_stride, std::int64_t head_stride, float eps, std::int32_t num_threads) {
  const NormTask task{x, weight, out, num_heads, num_weights, size, token_stride, head_stride, eps};
  share_rows(num_tokens * num_heads, size, num_threads,
             [&](std::int64_t first, std::int64_t last) { rms_norm_avx2(task, first, last); });
}

void paceline_cpu_rope(float* x, const float* cos, const float* sin, std::int64_t num_tokens, std::int64_t num_heads,
                       std::int64_t size, std::int64_t token_stride, std::int64_t head_stride, std::int64_t table_stride,
                       std::int32_t num_threads) {
  const RopeTask task{x, cos, sin, num_heads, size, token_stride, head_stride, table_stride};
  share_rows(num_tokens, num_heads * size, num_threads,
             [&](std::int64_t first, std::int64_t last) { rope_avx2(task, first, last); });
}

void paceline_cpu_gated(const float* gate_up, float* out, std::int64_t num_tokens, std::int64_t size,
                        std::int64_t token_stride, std::int32_t activation, std::int32_t num_threads) {
  const GatedTask task{gate_up, out, size, token_stride, static_cast<Activation>(activation)};
  share_rows(num_tokens, 4 * size, num_threads,  // an exponential costs a few times what a product does
             [&](std::int64_t first, std::int64_t last) { gated_avx2(task, first, last); });
}

void paceline_cpu_attention(const AttentionStep* step, const float* q, std::int64_t q_stride, const void* kv,
                            std::int64_t region, float* out) {
  const AttentionLayer layer{q, q_stride, kv, region, out};
  const std::int64_t heads = step->num_kv_heads;
  // Tiles come with the most work first, so that threads end together.
  share(step->num_tiles * heads, 1, step->num_threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item)
      attention_tile_avx2(*step, layer, item / heads, static_cast<int>(item % heads));
  });
}

}  // extern "C"
