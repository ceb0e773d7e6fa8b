#include "decoder.h"

#include <algorithm>

namespace paceline {
namespace {

// What a block writes on its way, one region after another.
struct Scratch {
  char* rounded;  // rows of the product at hand, where its weight meets activations of 8 bits
  float *normed, *qkv, *attended, *added, *gate_up, *active;
};

std::int64_t qkv_size(const Decoder& d) { return (d.num_heads + 2 * d.num_kv_heads) * d.head_dim; }

// Floats that the largest of all products needs for rounded rows; a multiple of a cache line.
std::int64_t rounded_size(const Decoder& d, std::int64_t tokens) {
  std::int64_t most = 0;
  for (const Block* block = d.blocks; block != d.blocks + d.num_blocks; ++block)
    for (const Product* product : {&block->qkv, &block->out, &block->gate_up, &block->down})
      for (std::int64_t i = 0; i < product->num_segments; ++i)
        most = std::max(most, linear_scratch(static_cast<WeightType>(product->segments[i].type), tokens,
                                             product->num_inputs));
  return most / static_cast<std::int64_t>(sizeof(float));
}

Scratch divide(const Decoder& d, float* at, std::int64_t tokens) {
  const auto take = [&](std::int64_t size) {
    float* here = at;
    at += size * tokens;
    return here;
  };
  Scratch found{};
  found.rounded = reinterpret_cast<char*>(at);
  at += rounded_size(d, tokens);
  found.normed = take(d.hidden);
  found.qkv = take(qkv_size(d));
  found.attended = take(d.num_heads * d.head_dim);
  found.added = take(d.hidden);
  found.gate_up = take(2 * d.intermediate);
  found.active = take(d.intermediate);
  return found;
}

struct Run {
  const Decoder& d;
  const Pass& pass;
  const Scratch s;
  const int threads;

  void multiply(const Product& product, const float* x, float* out) const {
    for (std::int64_t i = 0, at = 0; i < product.num_segments; at += product.segments[i].num_outputs, ++i) {
      const Segment& segment = product.segments[i];
      linear({x, segment.weight, segment.bias, out + at, pass.num_tokens, product.num_inputs, segment.num_outputs,
              product.num_inputs, product.num_outputs, static_cast<WeightType>(segment.type)},
             s.rounded, threads);
    }
  }

  void norm(const float* x, const float* weight, float* out) const {
    rms_norm({x, weight, out, 1, 1, d.hidden, d.hidden, 0, d.hidden, 0, d.eps}, pass.num_tokens, threads);
  }

  // x += y, or the norm of y.
  void join(float* y, const float* after) const {
    if (after != nullptr) norm(y, after, y);
    add(pass.x, y, pass.num_tokens * d.hidden, threads);
  }

  // This step's K and V into the cache.
  void write(const Block& block) const {
    const float* kv = s.qkv + d.num_heads * d.head_dim;
    const std::int64_t size = qkv_size(d), heads = 2 * d.num_kv_heads, bytes = sizeof(float);
    const AttentionStep& step = *pass.steps[block.group];
    const std::int64_t* slots = pass.slots[block.group];
    if (step.kv_type == kKVInt8)
      write_kv_int8({kv, static_cast<char*>(block.kv), slots, heads, d.head_dim, size, step.block_size, block.places}, pass.num_tokens,
                    threads);
    else if (step.kv_type == kKVBFloat16)
      write_kv_bf16(kv, static_cast<std::uint16_t*>(block.kv), slots, pass.num_tokens, heads, d.head_dim, size, step.block_size,
                    block.places);
    else
      write_kv(reinterpret_cast<const char*>(kv), static_cast<char*>(block.kv), slots, pass.num_tokens, heads,
               d.head_dim * bytes, size * bytes, step.block_size,
               {block.places.head_stride * bytes, block.places.chunk_stride * bytes});
  }

  void attend(const Block& block) const {
    const std::int64_t size = qkv_size(d), turned = d.num_heads + d.num_kv_heads;
    if (block.head_norm != nullptr)
      rms_norm({s.qkv, block.head_norm, s.qkv, turned, turned, d.head_dim, size, d.head_dim, size, d.head_dim, d.eps},
               pass.num_tokens, threads);
    rope({s.qkv, pass.cos[block.rope], pass.sin[block.rope], turned, d.head_dim, size, d.head_dim, pass.table_stride},
         pass.num_tokens, threads);
    write(block);
    attention(*pass.steps[block.group], {s.qkv, size, block.kv, block.places, s.attended});
  }

  void block(const Block& b) const {
    norm(pass.x, b.before_attention, s.normed);
    multiply(b.qkv, s.normed, s.qkv);
    attend(b);
    multiply(b.out, s.attended, s.added);
    join(s.added, b.after_attention);
    norm(pass.x, b.before_mlp, s.normed);
    multiply(b.gate_up, s.normed, s.gate_up);
    gated({s.gate_up, s.active, d.intermediate, 2 * d.intermediate, static_cast<Activation>(b.activation)},
          pass.num_tokens, threads);
    multiply(b.down, s.active, s.added);
    join(s.added, b.after_mlp);
  }
};

}  // namespace

std::int64_t scratch_size(const Decoder& d, std::int64_t num_tokens) {
  return rounded_size(d, num_tokens) +
         num_tokens * (2 * d.hidden + qkv_size(d) + d.num_heads * d.head_dim + 3 * d.intermediate);
}

void run_blocks(const Decoder& decoder, const Pass& pass) {
  const Run run{decoder, pass, divide(decoder, pass.scratch, pass.num_tokens), static_cast<int>(pass.num_threads)};
  for (std::int64_t i = 0; i < decoder.num_blocks; ++i) run.block(decoder.blocks[i]);
}

}  // namespace paceline
