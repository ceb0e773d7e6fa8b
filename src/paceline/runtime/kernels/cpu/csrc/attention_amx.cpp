// Attention over a cache of bfloat16 with tiles: which blocks of queries walk over which keys, by attention_amx.h.
#include "attention_amx.h"

#include <cstring>

namespace paceline {
namespace {

// Blocks whose size is no multiple of kKeys: keys of the chunk gathered to where they lie one after another.
void gather(const Walk& w, Chunk& chunk) {
  for (int j = chunk.from; j < chunk.to; ++j) {
    const std::int64_t at = chunk.base + j, block = w.table[at / w.step.block_size];
    const std::int64_t slot = w.places.block(block) + at % w.step.block_size * w.dim;
    const auto size = static_cast<std::size_t>(w.dim) * sizeof(std::uint16_t);
    std::memcpy(w.state.copied[0] + j * w.dim, w.k + slot, size);
    std::memcpy(w.state.copied[1] + j * w.dim, w.v + slot, size);
  }
}

Chunk find_chunk(const Walk& w, std::int64_t base, std::int64_t begin, std::int64_t end) {
  Chunk found{};
  found.base = base;
  found.from = static_cast<int>(std::max<std::int64_t>(begin - base, 0));
  found.to = static_cast<int>(std::min<std::int64_t>(end - base, kAmxKeys));
  const bool together = w.step.block_size % kKeys == 0;
  const int first = found.from / kKeys, last = (found.to - 1) / kKeys;
  for (int part = 0; part < kParts; ++part) {
    if (part < first || part > last) continue;
    const std::int64_t at = base + part * kKeys;
    if (together) {
      const std::int64_t slot = w.places.block(w.table[at / w.step.block_size]) + at % w.step.block_size * w.dim;
      found.key[part] = w.k + slot;
      found.value[part] = w.v + slot;
    } else {
      found.key[part] = w.state.copied[0] + part * kKeys * w.dim;
      found.value[part] = w.state.copied[1] + part * kKeys * w.dim;
    }
  }
  for (int part = 0; part < kParts; ++part)
    if (part < first || part > last) found.key[part] = found.key[first], found.value[part] = found.value[first];
  return found;
}

// Blocks lie anywhere, so the processor cannot guess what comes next: `part` of it, into the second-level cache.
void fetch(const Chunk& chunk, int part, int dim) {
  for (int line = 0; line < kKeys * dim; line += 32) {
    _mm_prefetch(reinterpret_cast<const char*>(chunk.key[part] + line), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(chunk.value[part] + line), _MM_HINT_T1);
  }
}

// Blocks [first, last) past keys [begin, end) of the sequence.
void walk(const Walk& w, int first, int last, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  Chunk next = find_chunk(w, begin / kAmxKeys * kAmxKeys, begin, end);
  while (next.base < end) {
    Chunk chunk = next;
    next = chunk.base + kAmxKeys < end ? find_chunk(w, chunk.base + kAmxKeys, begin, end) : Chunk{end, 0, 0, {}, {}};
    if (w.step.block_size % kKeys != 0) gather(w, chunk);
    for (int group = chunk.from / kGroup; group * kGroup < chunk.to; ++group) turn_values(w, chunk, group);
    for (int part = next.from / kKeys; part * kKeys < next.to; ++part) fetch(next, part, w.dim);
    for (int b = first; b < last; ++b) {
      const Block& block = w.state.block[b];
      const std::int64_t from = std::max<std::int64_t>(chunk.from, block.first_begin - chunk.base);
      const std::int64_t to = std::min<std::int64_t>(chunk.to, block.last_end - chunk.base);
      if (from >= to) continue;
      const Part part = {b, static_cast<int>(from) / kGroup, (static_cast<int>(to) + kGroup - 1) / kGroup};
      score(w, chunk, part);
      mix(w, part, weigh(w, chunk, part));
    }
  }
}

// Once a block has its queries: what all of them have in common, lanes that are left, and queries turned.
void close(const Walk& w, int at) {
  Block& block = w.state.block[at];
  for (int lane = block.count; lane < kLanes; ++lane) {
    block.position[lane] = block.position[0];
    block.lowest[lane] = block.lowest[0];
    block.peak[lane] = block.peak[0];
  }
  const auto [least, most] = std::minmax_element(block.position, block.position + kLanes);
  block.first_end = *least + 1, block.last_end = *most + 1;
  const auto [first, last] = std::minmax_element(block.lowest, block.lowest + kLanes);
  block.first_begin = *first, block.last_begin = *last;
  for (int number = 0; number < w.dim; number += kGroup) {
    __m512i turned[16];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* q = block.query[lane < block.count ? lane : 0] + number;
      turned[lane] = bf16_of(_mm512_loadu_ps(q), _mm512_loadu_ps(q + 16));
    }
    turn_16(turned);
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) _mm512_store_si512(w.queries(at) + (number / 2 + pair) * kLanes, turned[pair]);
  }
}

void open(Block& block, int count) {
  block.count = count;
  block.begun = false;
  for (int lane = 0; lane < kLanes; ++lane) block.peak[lane] = kNothing, block.total[lane] = 0.0f;
}

// Lane `lane` of `block` goes on as lane `other_lane` of `other`.
void move_lane(const Walk& w, int block, int lane, int other, int other_lane) {
  const Block& from = w.state.block[block];
  Block& to = w.state.block[other];
  to.peak[other_lane] = from.peak[lane];
  to.total[other_lane] = from.total[lane];
  to.position[other_lane] = from.position[lane];
  to.lowest[other_lane] = from.lowest[lane];
  to.query[other_lane] = from.query[lane];
  to.out[other_lane] = from.out[lane];
  to.begun = true;
  const float* sum = w.sums(block) + lane;
  float* moved = w.sums(other) + other_lane;
  for (int number = 0; number < w.dim; ++number) moved[number * kLanes] = sum[number * kLanes];
}

// What a block found, divided by its totals, to its place and in the order of a head.
void write(const Walk& w, int at) {
  const Block& block = w.state.block[at];
  const __m512 part = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(block.total));
  const float* sum = w.sums(at);
  for (int number = 0; number < w.dim; number += kGroup, sum += kGroup * kLanes) {
    __m512i low[16], high[16];
    for (int i = 0; i < 16; ++i) {
      low[i] = _mm512_castps_si512(_mm512_mul_ps(part, _mm512_load_ps(sum + i * kLanes)));
      high[i] = _mm512_castps_si512(_mm512_mul_ps(part, _mm512_load_ps(sum + (16 + i) * kLanes)));
    }
    turn_16(low);
    turn_16(high);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int lane = 0; lane < block.count; ++lane) {
      _mm512_storeu_si512(block.out[lane] + number, _mm512_permutex2var_epi64(low[lane], first, high[lane]));
      _mm512_storeu_si512(block.out[lane] + number + 16, _mm512_permutex2var_epi64(low[lane], second, high[lane]));
    }
  }
}

}  // namespace

void attention_tile_amx(const AttentionStep& step, const AttentionLayer& layer, std::int64_t index, int head) {
  static thread_local State state;
  const AttentionTile& tile = step.tiles[index];
  const AttentionMember* members = step.members + tile.first_member;
  const int per_kv = step.num_heads / step.num_kv_heads, dim = step.head_dim;
  const auto* kv = static_cast<const std::uint16_t*>(layer.kv);
  const auto on = [&](const AttentionMember& member) {
    return Walk{step, state, kv + layer.places.head_stride * head, kv + layer.places.head_stride * (step.num_kv_heads + head),
                layer.places, step.tables + member.row * step.table_stride, dim};
  };

  int rows = 0;
  for (int m = 0; m < tile.num_members; ++m) rows += members[m].num_queries * per_kv;
  const int blocks = (rows + kLanes - 1) / kLanes;
  for (int b = 0; b < blocks; ++b) open(state.block[b], std::min(rows - b * kLanes, kLanes));
  for (int m = 0, at = 0; m < tile.num_members; ++m)
    for (int i = 0; i < members[m].num_queries; ++i) {
      const AttentionRow& row = step.rows[members[m].row];
      const std::int64_t query = members[m].first_query + i, token = row.first_token + query, position = row.context + query;
      for (int g = 0; g < per_kv; ++g, ++at) {
        Block& block = state.block[at / kLanes];
        const int lane = at % kLanes;
        block.query[lane] = layer.q + token * layer.q_stride + (head * per_kv + g) * dim;
        block.out[lane] = layer.out + (token * step.num_heads + head * per_kv + g) * dim;
        block.position[lane] = position;
        block.lowest[lane] = step.window > 0 ? std::max<std::int64_t>(position - step.window + 1, 0) : 0;
      }
    }

  const Flushing flushing;
  const TileConfig config;
  asm volatile("ldtilecfg %0" : : "m"(config));  // the library's own function tells GCC 12 of eight bytes only
  std::fill_n(state.ones, kGroup, std::uint16_t{0x3f80});
  _tile_loadd(5, state.ones, 64);
  const Walk first = on(members[0]);
  for (int b = 0; b < blocks; ++b) close(first, b);
  if (tile.num_members == 1) {
    walk(first, 0, blocks, state.block[0].first_begin, state.block[blocks - 1].last_end);
    for (int b = 0; b < blocks; ++b) write(first, b);
  } else {
    walk(first, 0, blocks, 0, tile.shared);
    const int own = (per_kv + kLanes - 1) / kLanes;
    for (int m = 0; m < tile.num_members; ++m) {
      const Walk w = on(members[m]);
      for (int b = 0; b < own; ++b) open(state.block[kBlocks + b], std::min(per_kv - b * kLanes, kLanes));
      for (int g = 0, at = m * per_kv; g < per_kv; ++g, ++at)
        move_lane(w, at / kLanes, at % kLanes, kBlocks + g / kLanes, g % kLanes);
      for (int b = kBlocks; b < kBlocks + own; ++b) close(w, b);
      walk(w, kBlocks, kBlocks + own, tile.shared, state.block[kBlocks].last_end);
      for (int b = kBlocks; b < kBlocks + own; ++b) write(w, b);
    }
  }
  _tile_release();  // else the system would save and restore the tiles whenever the thread loses its core
}

}  // namespace paceline
