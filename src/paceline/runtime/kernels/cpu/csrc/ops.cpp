#include "ops.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bf16.h"
#include "int8.h"
#include "isa.h"
#include "parallel.h"

namespace paceline {
namespace {

constexpr std::int64_t kProductsAlone = 1 << 16;   // multiply-adds that are not worth waking a thread
constexpr std::int64_t kNumbersAlone = 1 << 15;    // numbers of anything else
constexpr std::int64_t kPortionNumbers = 1 << 13;  // taken by a thread at once

// The one of two functions with the same bits that suits the processor.
template <typename Function>
Function* at_level(Function* avx2, Function* avx512) {
  return isa() >= kAvx512 ? avx512 : avx2;
}

// Rows of `size` numbers each.
template <typename Work>
void share_rows(std::int64_t num_rows, std::int64_t size, int num_threads, const Work& work) {
  const int threads = num_rows * size < kNumbersAlone ? 1 : num_threads;
  share(num_rows, std::max<std::int64_t>(1, kPortionNumbers / size), threads, work);
}

// Threads that a product is worth.
int threads_of(const LinearTask& task, int num_threads) {
  return task.num_rows * task.num_inputs * task.num_outputs < kProductsAlone ? 1 : num_threads;
}

// Panels of a product.
template <typename Work>
void share_panels(const LinearTask& task, int num_threads, const Work& work) {
  const std::int64_t num_panels = (task.num_outputs + kPanel - 1) / kPanel;
  const int threads = threads_of(task, num_threads);
  // Four portions per thread even out a core that is slowed down; a multiple of four panels suits the few-rows tiles.
  std::int64_t grain = std::max<std::int64_t>(1, (num_panels + 4 * threads - 1) / (4 * threads));
  if (grain > 4) grain = (grain + 3) / 4 * 4;
  share(num_panels, grain, threads, work);
}

// Rows are quantised once for all panels. Their memory is the caller's, who counts it and knows what to do when there is
// none: nothing is allocated here.
void linear_int8(const LinearTask& task, char* scratch, int num_threads) {
  if (task.num_rows == 0) return;
  const Int8Kernel& kernel = int8_kernel(task.type, task.num_rows);
  const Int8Rows rows = int8_rows(kernel, task.type, task.num_rows, task.num_inputs);
  share_rows(rows.num_blocks, rows.height * task.num_inputs, num_threads, [&](std::int64_t first, std::int64_t last) {
    kernel.quantise(task, rows, scratch, first, last);
  });
  share_panels(task, num_threads, [&](std::int64_t first, std::int64_t last) {
    kernel.panels(task, rows, scratch, first, last);
  });
}

// So with rows rounded to bfloat16.
void linear_bf16(const LinearTask& task, char* rows, int num_threads) {
  if (task.num_rows == 0) return;
  const bool tiles = isa() >= kAmx;
  const auto round = tiles ? round_blocks_amx : round_blocks_avx512bf16;
  share_rows((task.num_rows + kBlockRows - 1) / kBlockRows, kBlockRows * task.num_inputs, num_threads,
             [&](std::int64_t first, std::int64_t last) { round(task, rows, first, last); });
  if (tiles)
    share_items(bf16_items_amx(task), threads_of(task, num_threads), [&](Items& items) { bf16_products_amx(task, rows, items); });
  else
    share_panels(task, num_threads,
                 [&](std::int64_t first, std::int64_t last) { bf16_panels_avx512bf16(task, rows, first, last); });
}

}  // namespace

std::int64_t linear_scratch(WeightType type, std::int64_t num_rows, std::int64_t num_inputs) {
  if (type >= kFirstRows) return static_cast<std::int64_t>(bf16_rows_bytes(num_rows, num_inputs));
  if (type < kFirstInt8 || num_rows == 0) return 0;
  const Int8Rows rows = int8_rows(int8_kernel(type, num_rows), type, num_rows, num_inputs);
  return rows.num_blocks * static_cast<std::int64_t>(rows.block_bytes);
}

void linear(const LinearTask& task, char* scratch, int num_threads) {
  if (task.type >= kFirstRows) return linear_bf16(task, scratch, num_threads);
  if (task.type >= kFirstInt8) return linear_int8(task, scratch, num_threads);
  const auto run = at_level(avx2::linear_panels, avx512::linear_panels);
  share_panels(task, num_threads, [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void rms_norm(const NormTask& task, std::int64_t num_tokens, int num_threads) {
  const auto run = at_level(avx2::rms_norm, avx512::rms_norm);
  share_rows(num_tokens * task.num_heads, task.size, num_threads,
             [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void rope(const RopeTask& task, std::int64_t num_tokens, int num_threads) {
  const auto run = at_level(avx2::rope, avx512::rope);
  share_rows(num_tokens, task.num_heads * task.size, num_threads,
             [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void gated(const GatedTask& task, std::int64_t num_tokens, int num_threads) {
  const auto run = at_level(avx2::gated, avx512::gated);
  share_rows(num_tokens, 4 * task.size, num_threads,  // an exponential costs a few times what a product does
             [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void add(float* x, const float* y, std::int64_t count, int num_threads) {
  const auto run = at_level(avx2::add, avx512::add);
  share_rows(count, 1, num_threads, [&](std::int64_t first, std::int64_t last) { run(x, y, first, last); });
}

void largest(const LargestTask& task, std::int64_t num_rows, int num_threads) {
  const auto run = at_level(avx2::largest, avx512::largest);
  share_rows(num_rows, task.size, num_threads, [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void draw_bounds(const DrawBounds& task, std::int64_t num_draws, int num_threads) {
  const auto run = at_level(avx2::draw_bounds, avx512::draw_bounds);
  share_rows(num_draws, 4 * task.size, num_threads,  // a hash costs a few times what a product does
             [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void draw_scale(const DrawScale& task, std::int64_t num_rows, int num_threads) {
  const auto run = at_level(avx2::draw_scale, avx512::draw_scale);
  share_rows(num_rows, task.size, num_threads, [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

void keep_allowed(const KeepAllowed& task, std::int64_t num_masks, int num_threads) {
  const auto run = at_level(avx2::keep_allowed, avx512::keep_allowed);
  share_rows(num_masks, task.size, num_threads, [&](std::int64_t first, std::int64_t last) { run(task, first, last); });
}

bool attention_has_amx(std::int32_t kv_type, std::int32_t head_dim) {
  return isa() >= kAmx && kv_type == kKVBFloat16 && head_dim % 32 == 0 && head_dim <= kMaxHeadDim;
}

void attention(const AttentionStep& step, const AttentionLayer& layer) {
  const std::int64_t heads = step.num_kv_heads;
  const auto run = step.amx != 0 ? attention_tile_amx : at_level(avx2::attention_tile, avx512::attention_tile);
  // Tiles come with the most work first, so that threads end together.
  share(step.num_tiles * heads, 1, step.num_threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item)
      run(step, layer, item / heads, static_cast<int>(item % heads));
  });
}

void write_kv(const char* kv, char* cache, const std::int64_t* slots, std::int64_t num_tokens, std::int64_t num_heads,
              std::int64_t head_bytes, std::int64_t token_stride, std::int64_t block_size, const KVPlaces& places) {
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    char* to = cache + places.slot(slots[t], block_size, head_bytes);
    for (std::int64_t h = 0; h < num_heads; ++h)
      std::memcpy(to + h * places.head_stride, kv + t * token_stride + h * head_bytes, static_cast<std::size_t>(head_bytes));
  }
}

void write_kv_bf16(const float* kv, std::uint16_t* cache, const std::int64_t* slots, std::int64_t num_tokens,
                   std::int64_t num_heads, std::int64_t head_dim, std::int64_t token_stride, std::int64_t block_size,
                   const KVPlaces& places) {
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::uint16_t* token = cache + places.slot(slots[t], block_size, head_dim);
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const float* x = kv + t * token_stride + h * head_dim;
      std::uint16_t* to = token + h * places.head_stride;
      for (std::int64_t i = 0; i < head_dim; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        const std::uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // ties to even
        to[i] = static_cast<std::uint16_t>(x[i] == x[i] ? nearest : 0x7fc0);     // NaN must not become infinite
      }
    }
  }
}

void write_kv_int8(const KVInt8Write& task, std::int64_t num_tokens, int num_threads) {
  share_rows(num_tokens, task.num_heads * task.head_dim, num_threads,
             [&](std::int64_t first, std::int64_t last) { write_kv_int8_avx2(task, first, last); });
}

}  // namespace paceline
