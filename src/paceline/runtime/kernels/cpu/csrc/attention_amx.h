// Attention over a cache of bfloat16 with tiles. Compiled with AVX-512 BF16 and AMX on; call it only where isa() is kAmx.
//
// Everything is turned: keys and numbers of a head are rows of tiles, and sixteen queries (a block) are their columns.
//
//   scores  [keys, queries]   = K [keys, head_dim]  x  Q turned [head_dim, queries]      K as it lies in the cache
//   weights [keys, queries]   = 2^(score - peak), rounded to bfloat16                    a lane of a register is a query
//   sums    [head_dim, queries] += V turned [head_dim, keys]  x  weights                 V turned once for all blocks
//   totals  [1, queries]        += ones [1, keys]  x  weights
//
// So softmax needs no sum or maximum across a register, and neither K nor weights are turned. Keys come in chunks of
// kAmxKeys at fixed places of the sequence, and a block has one peak for a chunk: first all products of scores, then all float
// work, then all other products, which is what tiles and registers beside each other like best.
//
// A row's bits are its own: a tile instruction adds 32 keys (or numbers of a head) to a sum in an order (bf16.h) that knows
// nothing of the other columns; weights of zero leave a sum as it is, and so does a peak that stays.
//
// Rounded to bfloat16 beside what the cache holds: queries and weights. A weight's total is that of rounded weights.
#pragma once

#include <pmmintrin.h>

#include <algorithm>
#include <limits>

#include "attention.h"
#include "bf16_widen.h"
#include "exp.h"
#include "turn_avx512.h"

namespace paceline {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;                            // queries of a block
constexpr int kGroup = 32;                            // keys or numbers that a tile instruction adds up
constexpr int kGroups = kAmxKeys / kGroup, kParts = kAmxKeys / kKeys;
constexpr int kBlocks = kAmxTileRows / kLanes;        // of a tile
constexpr int kMoreBlocks = kTileRows / kLanes;       // for the queries of one of its members
constexpr int kChains = 8;                            // of maxima under way at once
constexpr int kHalfTile = 512;                        // bfloat16 numbers of a tile

// Tiles 0 .. 3: sums. 4: totals, one row. 5: ones, one row. 6: left, 7: right side of a product.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t num_rows[16] = {16, 16, 16, 16, 1, 1, 16, 16};
};

// While it lives, numbers below 2^-126 count as zero here as they do in tiles. A weight that small would cost 200 ticks.
struct Flushing {
  unsigned before = _mm_getcsr();
  Flushing() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); }
  ~Flushing() { _mm_setcsr(before); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;
};

// Up to sixteen queries. Lanes without one repeat the first, and nobody reads them.
struct Block {
  alignas(64) float peak[kLanes], total[kLanes];   // peak: of scores in powers of two
  std::int64_t position[kLanes], lowest[kLanes];   // the last and the first key that a query sees
  std::int64_t first_end, last_end, first_begin, last_begin;  // of those ranges
  const float* query[kLanes];
  float* out[kLanes];
  int count;
  bool begun;  // it has sums
};

struct State {
  Block block[kBlocks + kMoreBlocks];
  alignas(64) std::uint32_t q[(kBlocks + kMoreBlocks) * kLanes * kMaxHeadDim / 2];  // pairs of numbers [dim / 2][lanes]
  alignas(64) float sum[(kBlocks + kMoreBlocks) * kLanes * kMaxHeadDim];            // [dim, see turn_values][lanes]
  alignas(64) std::uint16_t values[kAmxKeys * kMaxHeadDim];                         // tiles [dim / 16][groups][16][32]
  alignas(64) float scores[kAmxKeys * kLanes];               // of the block at work
  alignas(64) std::uint32_t weights[kAmxKeys / 2 * kLanes];  // pairs of keys
  alignas(64) std::uint16_t copied[2][kAmxKeys * kMaxHeadDim];
  alignas(64) std::uint16_t ones[kGroup];
};

// A chunk of the keys: where rows of kKeys keys and values begin. Those with no key of [from, to): some other of the chunk.
struct Chunk {
  std::int64_t base;
  int from, to;
  const std::uint16_t *key[kParts], *value[kParts];
};

// The groups of a chunk that a block sees something of.
struct Part {
  int block, first, last;
};

// What is the same for all blocks of a walk.
struct Walk {
  const AttentionStep& step;
  State& state;
  const std::uint16_t *k, *v;
  KVPlaces places;
  const std::int32_t* table;
  int dim;

  float* sums(int block) const { return state.sum + block * kLanes * dim; }
  std::uint32_t* queries(int block) const { return state.q + block * kLanes * dim / 2; }
};

// Values of 32 keys as left sides: row i of tile 2 u + h has the 32 values of number 32 u + 8 (i / 4) + 4 h + i % 4 of a head,
// which is the order that interleaving leaves them in. Zeros for keys outside [from, to).
void turn_values(const Walk& w, const Chunk& chunk, int group) {
  const int from = std::max(chunk.from - kGroup * group, 0), to = std::min(chunk.to - kGroup * group, kGroup);
  const auto row = [&](int j, int number) {
    if (j < from || j >= to) return _mm512_setzero_si512();
    return _mm512_loadu_si512(chunk.value[2 * group + j / kKeys] + j % kKeys * w.dim + number);
  };
  for (int number = 0; number < w.dim; number += kGroup)
    for (int half = 0; half < 2; ++half) {
      __m512i turned[16];
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const __m512i even = row(2 * j, number), odd = row(2 * j + 1, number);
        turned[j] = half == 0 ? _mm512_unpacklo_epi16(even, odd) : _mm512_unpackhi_epi16(even, odd);
      }
      turn_16(turned);
      std::uint16_t* to_tile = w.state.values + ((number / 16 + half) * kGroups + group) * kHalfTile;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to_tile + 32 * i, turned[i]);
    }
}

// Scores of one or two groups; queries are loaded once for both. Scores of keys that are not there are anything.
template <bool two>
void score_groups(const Walk& w, const std::uint16_t* const* key, const std::uint32_t* q, float* scores) {
  const int stride = 2 * w.dim;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) _tile_zero(2);
  if constexpr (two) _tile_zero(3);
  for (int number = 0; number < w.dim; number += kGroup) {
    _tile_loadd(7, q + number / 2 * kLanes, 64);
    _tile_loadd(6, key[0] + number, stride);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, key[1] + number, stride);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (two) {
      _tile_loadd(6, key[2] + number, stride);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(6, key[3] + number, stride);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, scores, 64);
  _tile_stored(1, scores + 256, 64);
  if constexpr (two) _tile_stored(2, scores + 512, 64);
  if constexpr (two) _tile_stored(3, scores + 768, 64);
}

void score(const Walk& w, const Chunk& chunk, const Part& part) {
  const std::uint32_t* q = w.queries(part.block);
  const auto at = [&](int group) { return w.state.scores + group * kGroup * kLanes; };
  int group = part.first;
  for (; group + 2 <= part.last; group += 2) score_groups<true>(w, chunk.key + 2 * group, q, at(group));
  if (group < part.last) score_groups<false>(w, chunk.key + 2 * group, q, at(group));
}

// Each lane's largest score among keys [begin, end), once they are what weights are made of.
template <bool masked, bool capped>
__m512 largest_scores(const Walk& w, const Chunk& chunk, const Block& block, int begin, int end) {
  alignas(64) std::int32_t lowest[kLanes], past[kLanes];
  if constexpr (masked)
    for (int lane = 0; lane < kLanes; ++lane) {
      lowest[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(block.lowest[lane] - chunk.base, chunk.from, kAmxKeys));
      past[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(block.position[lane] + 1 - chunk.base, 0, chunk.to));
    }
  float* at = w.state.scores + begin * kLanes;
  __m512 most[kChains];
  for (__m512& each : most) each = _mm512_set1_ps(kNothing);
  for (int first = begin; first < end; first += kChains)
#pragma GCC unroll 8
    for (int i = 0; i < kChains; ++i, at += kLanes) {
      __m512 score = _mm512_load_ps(at);
      if constexpr (capped) {
        const Sixteen cap = all<Sixteen>(w.step.softcap);
        score = (cap * tanh_of(Sixteen{score} * all<Sixteen>(w.step.scale / w.step.softcap))).v;
      }
      if constexpr (masked) {
        const __m512i place = _mm512_set1_epi32(first + i);
        const __mmask16 begun = _mm512_cmple_epi32_mask(_mm512_load_si512(lowest), place);
        const __mmask16 seen = _mm512_mask_cmplt_epi32_mask(begun, place, _mm512_load_si512(past));
        score = _mm512_mask_mov_ps(_mm512_set1_ps(kNothing), seen, score);
      }
      if constexpr (masked || capped) _mm512_store_ps(at, score);
      most[i] = _mm512_max_ps(score, most[i]);  // of a pair with a NaN the second
    }
#pragma GCC unroll 3
  for (int width = kChains / 2; width > 0; width /= 2)
#pragma GCC unroll 4
    for (int i = 0; i < width; ++i) most[i] = _mm512_max_ps(most[i], most[i + width]);
  return most[0];
}

// 2^x to 0.0075 %, with half a unit of bfloat16 on top, so that cutting it there rounds to nearest. The polynomial is the
// minimax one for the fraction of x. 0 for -infinity, NaN for NaN.
[[gnu::always_inline]] inline __m512i weight_of(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 sum = _mm512_set1_ps(0.0780245227f);
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0.226067155f));
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0.695833541f));
  sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(0.999925219f + 1.0f / 256));
  return _mm512_castps_si512(_mm512_scalef_ps(sum, x));  // times 2^floor(x)
}

// Sums and totals so far count `keep` times as much.
void rescale(const Walk& w, int block, __m512 keep) {
  if (_mm512_cmp_ps_mask(keep, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) == 0) return;
  float* sum = w.sums(block);
  for (int number = 0; number < w.dim; ++number, sum += kLanes) _mm512_store_ps(sum, _mm512_mul_ps(keep, _mm512_load_ps(sum)));
  float* total = w.state.block[block].total;
  _mm512_store_ps(total, _mm512_mul_ps(keep, _mm512_load_ps(total)));
}

// Scores become weights, and the peak follows. Returns what sums and totals so far count now.
__m512 weigh(const Walk& w, const Chunk& chunk, const Part& part) {
  constexpr float kLog2E = 1.44269504f;
  const int at = part.block, begin = part.first * kGroup, end = part.last * kGroup;
  Block& block = w.state.block[at];
  const bool masked = chunk.from > begin || chunk.to < end || block.last_begin > chunk.base + begin ||
                      block.first_end < chunk.base + end;
  const bool capped = w.step.softcap != 0.0f;
  const auto largest = masked ? (capped ? largest_scores<true, true> : largest_scores<true, false>)
                              : (capped ? largest_scores<false, true> : largest_scores<false, false>);
  const __m512 unit = _mm512_set1_ps(capped ? kLog2E : w.step.scale * kLog2E);  // a score's in powers of two
  const __m512 before = _mm512_load_ps(block.peak), nothing = _mm512_set1_ps(kNothing);
  __m512 peak = _mm512_max_ps(_mm512_mul_ps(unit, largest(w, chunk, block, begin, end)), before);
  _mm512_store_ps(block.peak, peak);
  const __mmask16 moved = _mm512_cmp_ps_mask(peak, before, _CMP_NEQ_UQ);
  peak = _mm512_mask_mov_ps(peak, _mm512_cmp_ps_mask(peak, nothing, _CMP_EQ_OQ), _mm512_setzero_ps());  // seen nothing yet
  const float* score = w.state.scores + begin * kLanes;
  std::uint32_t* to = w.state.weights + begin / 2 * kLanes;
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 2
  for (int key = begin; key < end; key += 2, score += 2 * kLanes, to += kLanes) {
    const __m512i even = weight_of(_mm512_fmsub_ps(_mm512_load_ps(score), unit, peak));
    const __m512i odd = weight_of(_mm512_fmsub_ps(_mm512_load_ps(score + kLanes), unit, peak));
    _mm512_store_si512(to, _mm512_ternarylogic_epi32(odd, high, _mm512_srli_epi32(even, 16), 0xea));  // (a & b) | c
  }
  const __m512 keep = exp_of(Sixteen{_mm512_mul_ps(_mm512_sub_ps(before, peak), _mm512_set1_ps(0.693147181f))}).v;
  return _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), moved, keep);
}

// Four (or two) tiles of sums from `number` on, and with `counting` the totals: the chunk's values come in.
template <bool four, bool counting>
void mix_tiles(const Walk& w, const Part& part, int number) {
  const int block = part.block;
  float* sum = w.sums(block) + number * kLanes;
  float* total = w.state.block[block].total;
  if (w.state.block[block].begun) {
    _tile_loadd(0, sum, 64);
    _tile_loadd(1, sum + 256, 64);
    if constexpr (four) _tile_loadd(2, sum + 512, 64);
    if constexpr (four) _tile_loadd(3, sum + 768, 64);
    if constexpr (counting) _tile_loadd(4, total, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (four) _tile_zero(2);
    if constexpr (four) _tile_zero(3);
    if constexpr (counting) _tile_zero(4);
  }
  const std::uint16_t* values = w.state.values + number * kAmxKeys;
  for (int group = part.first; group < part.last; ++group) {
    const std::uint16_t* at = values + group * kHalfTile;
    _tile_loadd(7, w.state.weights + group * kGroup / 2 * kLanes, 64);
    _tile_loadd(6, at, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, at + kGroups * kHalfTile, 64);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (four) {
      _tile_loadd(6, at + 2 * kGroups * kHalfTile, 64);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(6, at + 3 * kGroups * kHalfTile, 64);
      _tile_dpbf16ps(3, 6, 7);
    }
    if constexpr (counting) _tile_dpbf16ps(4, 5, 7);
  }
  _tile_stored(0, sum, 64);
  _tile_stored(1, sum + 256, 64);
  if constexpr (four) _tile_stored(2, sum + 512, 64);
  if constexpr (four) _tile_stored(3, sum + 768, 64);
  if constexpr (counting) _tile_stored(4, total, 64);
}

void mix(const Walk& w, const Part& part, __m512 keep) {
  int number = 0;
  if (w.state.block[part.block].begun) rescale(w, part.block, keep);
  for (; number + 64 <= w.dim; number += 64)
    number == 0 ? mix_tiles<true, true>(w, part, 0) : mix_tiles<true, false>(w, part, number);
  if (number < w.dim)
    number == 0 ? mix_tiles<false, true>(w, part, 0) : mix_tiles<false, false>(w, part, number);
  w.state.block[part.block].begun = true;
}

}  // namespace
}  // namespace paceline
