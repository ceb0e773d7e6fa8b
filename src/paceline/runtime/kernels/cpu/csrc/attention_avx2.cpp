// Attention on AVX2 with FMA and F16C. Compiled with those instructions on; call it only where the processor has them.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "exp_avx2.h"
#include "kv_int8.h"
#include "turn_avx2.h"

namespace paceline {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int kRows = 6;  // of a register tile: 6 x 16 sums fill 12 of 16 vector registers

// What a tile knows of its rows. Row r is query head r % per_kv of query r / per_kv.
struct State {
  // Rows of head_dim numbers one after another: with a fixed stride of 1 KiB they would share a few sets of the cache.
  alignas(32) float q[kTileRows * kMaxHeadDim];    // times the scale
  alignas(32) float sum[kTileRows * kMaxHeadDim];  // weighted values
  alignas(32) float keys[kMaxHeadDim][kKeys];     // of the group at work, turned
  alignas(32) float values[kKeys * kMaxHeadDim];  // and widened, where many rows read them
  alignas(32) float weight[kTileRows][kKeys];     // scores, then weights
  alignas(32) float key_scale[kKeys], value_scale[kKeys];  // of the group at work, where codes have one
  float peak[kTileRows], total[kTileRows], keep[kTileRows];
  std::int64_t position[kTileRows], lowest[kTileRows];  // the last and the first key that a row sees
};

template <typename T>
[[gnu::always_inline]] inline __m256 load8(const T* at);
template <>
inline __m256 load8<float>(const float* at) {
  return _mm256_loadu_ps(at);
}
struct BFloat16 {
  std::uint16_t bits;
};
template <>
inline __m256 load8<BFloat16>(const BFloat16* at) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
struct Float16 {
  std::uint16_t bits;
};
template <>
inline __m256 load8<Float16>(const Float16* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
struct Int8 {
  std::int8_t code;  // times its record's scale
};
template <>
inline __m256 load8<Int8>(const Int8* at) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}

// Whether a head's numbers have a scale behind them, and how many elements that makes of them.
template <typename T>
constexpr bool kScaled = std::is_same_v<T, Int8>;
template <typename T>
constexpr std::int64_t record_size(std::int64_t dim) {
  return kScaled<T> ? kv_record_bytes(dim) : dim;
}

// The keys of a group side by side: keys[d][j] = key j at d. Null: a key that is not there.
template <typename T>
void turn_keys(const T* const (&key)[kKeys], int dim, State& state) {
  int begin = 0;
  if constexpr (kScaled<T>)
    for (; begin + 32 <= dim; begin += 32) {
      __m256i codes[kKeys];
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j)
        codes[j] = key[j] == nullptr ? _mm256_setzero_si256()
                                     : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key[j] + begin));
      turn_bytes(codes, state.keys[begin]);
    }
  for (int half = 0; half < kKeys; half += 8)
    for (int d = begin; d < dim; d += 8) {
      __m256 eight[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
        eight[j] = key[half + j] == nullptr ? _mm256_setzero_ps() : load8<T>(key[half + j] + d);
      turn8<kKeys>(eight, &state.keys[d][half]);
    }
}

// Scores of `rows` rows from `first` on.
template <int rows>
void score(State& state, int first, int dim) {
  __m256 low[rows], high[rows];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) low[r] = high[r] = _mm256_setzero_ps();
  const float* q = state.q + first * dim;
  for (int d = 0; d < dim; ++d) {
    const __m256 k_low = _mm256_load_ps(state.keys[d]), k_high = _mm256_load_ps(state.keys[d] + 8);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m256 value = _mm256_broadcast_ss(q + r * dim + d);
      low[r] = _mm256_fmadd_ps(value, k_low, low[r]);
      high[r] = _mm256_fmadd_ps(value, k_high, high[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    _mm256_store_ps(state.weight[first + r], low[r]);
    _mm256_store_ps(state.weight[first + r] + 8, high[r]);
  }
}

// Scores become weights; the running maximum and sum follow. Keys [begin, end) of the group that starts at `base` exist.
// Where codes have scales, those of keys join here before anything else, and those of values after all: in a product with
// codes, a weight is then what its value counts for.
template <typename T>
void weigh(State& state, int row, std::int64_t base, int begin, int end, float softcap) {
  const std::int64_t lowest = std::max<std::int64_t>(begin, state.lowest[row] - base);
  const std::int64_t past = std::min<std::int64_t>(end, state.position[row] + 1 - base);
  float* at = state.weight[row];
  state.keep[row] = 1.0f;
  if (lowest >= past) {  // sees none of them
    std::memset(at, 0, sizeof(state.weight[row]));
    return;
  }
  __m256 low = _mm256_load_ps(at), high = _mm256_load_ps(at + 8);
  if constexpr (kScaled<T>) {
    low = _mm256_mul_ps(low, _mm256_load_ps(state.key_scale));
    high = _mm256_mul_ps(high, _mm256_load_ps(state.key_scale + 8));
  }
  if (softcap != 0.0f) {
    const __m256 cap = _mm256_set1_ps(softcap), part = _mm256_set1_ps(1.0f / softcap);
    low = _mm256_mul_ps(cap, tanh8(_mm256_mul_ps(low, part)));
    high = _mm256_mul_ps(cap, tanh8(_mm256_mul_ps(high, part)));
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
  const __m256i from = _mm256_set1_epi32(static_cast<int>(lowest) - 1), to = _mm256_set1_epi32(static_cast<int>(past));
  const auto seen = [&](__m256i lane) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane)));
  };
  const __m256 none = _mm256_set1_ps(kNothing);
  low = _mm256_blendv_ps(none, low, seen(lanes));
  high = _mm256_blendv_ps(none, high, seen(_mm256_add_epi32(lanes, eight)));
  const float most = max8(_mm256_max_ps(low, high)), before = state.peak[row];
  const float peak = most > before ? most : before;
  const __m256 top = _mm256_set1_ps(peak);
  low = exp8(_mm256_sub_ps(low, top));
  high = exp8(_mm256_sub_ps(high, top));
  const __m256 sum = _mm256_add_ps(low, high);
  if constexpr (kScaled<T>) {
    low = _mm256_mul_ps(low, _mm256_load_ps(state.value_scale));
    high = _mm256_mul_ps(high, _mm256_load_ps(state.value_scale + 8));
  }
  _mm256_store_ps(at, low);
  _mm256_store_ps(at + 8, high);
  if (peak != before) state.keep[row] = before == kNothing ? 0.0f : std::exp(before - peak);
  state.peak[row] = peak;
  state.total[row] = state.total[row] * state.keep[row] + sum8(sum);
}

// sum = sum * keep + weights * values for `rows` rows from `first` on, 8 * vectors numbers from `d` on.
template <typename T, int rows, int vectors>
[[gnu::always_inline]] inline void mix(State& state, const T* const (&value)[kKeys], int first, int dim, int d, int begin,
                                       int end) {
  float* at = state.sum + first * dim + d;
  __m256 sum[rows][vectors];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    const __m256 keep = _mm256_broadcast_ss(&state.keep[first + r]);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sum[r][v] = _mm256_mul_ps(keep, _mm256_load_ps(at + r * dim + 8 * v));
  }
  for (int j = begin; j < end; ++j) {
    __m256 part[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) part[v] = load8<T>(value[j] + d + 8 * v);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m256 weight = _mm256_broadcast_ss(&state.weight[first + r][j]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sum[r][v] = _mm256_fmadd_ps(weight, part[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) _mm256_store_ps(at + r * dim + 8 * v, sum[r][v]);
}

template <int rows, typename T>
void mix_rows(State& state, const T* const (&value)[kKeys], int first, int dim, int begin, int end) {
  int d = 0;
  for (; d + 16 <= dim; d += 16) mix<T, rows, 2>(state, value, first, dim, d, begin, end);
  if (d < dim) mix<T, rows, 1>(state, value, first, dim, d, begin, end);
}

// `call(std::integral_constant<int, n>, row)` for rows [first, last) in register tiles of n.
template <typename Call>
void in_tiles(int first, int last, const Call& call) {
  int row = first;
  for (; row + kRows <= last; row += kRows) call(std::integral_constant<int, kRows>{}, row);
  switch (last - row) {
    case 1: return call(std::integral_constant<int, 1>{}, row);
    case 2: return call(std::integral_constant<int, 2>{}, row);
    case 3: return call(std::integral_constant<int, 3>{}, row);
    case 4: return call(std::integral_constant<int, 4>{}, row);
    case 5: return call(std::integral_constant<int, 5>{}, row);
    default: return;
  }
}

// Where the keys and values of one group lie. Null: outside [from, to).
template <typename T>
struct Group {
  const T *key[kKeys], *value[kKeys];
  int from, to;
};

// The group that starts at key `base`, as far as it is within [begin, end).
template <typename T>
Group<T> find_group(const AttentionStep& step, const T* k, const T* v, const std::int32_t* table, std::int64_t base,
                    std::int64_t begin, std::int64_t end) {
  Group<T> found{};
  found.from = static_cast<int>(std::max<std::int64_t>(begin - base, 0));
  found.to = static_cast<int>(std::min<std::int64_t>(end - base, kKeys));
  std::int64_t block = (base + found.from) / step.block_size, offset = (base + found.from) % step.block_size;
  for (int j = found.from; j < found.to; ++j) {
    const std::int64_t slot = std::int64_t{table[block]} * step.block_size + offset;
    found.key[j] = k + slot * record_size<T>(step.head_dim);
    found.value[j] = v + slot * record_size<T>(step.head_dim);
    if (++offset == step.block_size) offset = 0, ++block;
  }
  return found;
}

// Blocks lie anywhere, so the processor cannot guess what comes next.
template <typename T>
void fetch(const Group<T>& group, int dim) {
  for (int j = group.from; j < group.to; ++j)
    for (std::size_t byte = 0; byte < sizeof(T) * static_cast<std::size_t>(record_size<T>(dim)); byte += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(group.key[j]) + byte, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(group.value[j]) + byte, _MM_HINT_T0);
    }
}

// The scales behind the codes of a group; 0 for what is not there.
template <typename T>
void read_scales(const Group<T>& group, int dim, State& state) {
  for (int j = 0; j < kKeys; ++j) {
    state.key_scale[j] = state.value_scale[j] = 0.0f;
    if (group.key[j] == nullptr) continue;
    std::memcpy(&state.key_scale[j], group.key[j] + dim, sizeof(float));
    std::memcpy(&state.value_scale[j], group.value[j] + dim, sizeof(float));
  }
}

// The values of a group into the sums of rows [first, last). Many rows read what is widened once.
template <typename T>
void mix_group(const Group<T>& group, int first, int last, int dim, State& state) {
  const auto mix_all = [&](const auto& value) {
    in_tiles(first, last, [&](auto rows, int row) { mix_rows<rows>(state, value, row, dim, group.from, group.to); });
  };
  if constexpr (!std::is_same_v<T, float>) {
    if (last - first > kRows) {
      const float* wide[kKeys] = {};
      for (int j = group.from; j < group.to; ++j) {
        float* at = state.values + j * dim;
        for (int d = 0; d < dim; d += 8) _mm256_store_ps(at + d, load8<T>(group.value[j] + d));
        wide[j] = at;
      }
      return mix_all(wide);
    }
  }
  mix_all(group.value);
}

// Rows [first, last) past keys [begin, end) of the sequence whose blocks are `table`.
template <typename T>
void walk(const AttentionStep& step, State& state, const T* k, const T* v, const std::int32_t* table, int first, int last,
          std::int64_t begin, std::int64_t end) {
  const int dim = step.head_dim;
  std::int64_t base = begin / kKeys * kKeys;
  if (base >= end) return;
  Group<T> next = find_group(step, k, v, table, base, begin, end);
  for (; base < end; base += kKeys) {
    const Group<T> group = next;
    if (base + kKeys < end) {
      next = find_group(step, k, v, table, base + kKeys, begin, end);
      fetch(next, dim);
    }
    if constexpr (kScaled<T>) read_scales(group, dim, state);
    turn_keys<T>(group.key, dim, state);
    in_tiles(first, last, [&](auto rows, int row) { score<rows>(state, row, dim); });
    for (int row = first; row < last; ++row) weigh<T>(state, row, base, group.from, group.to, step.softcap);
    mix_group(group, first, last, dim, state);
  }
}

template <typename T>
void one_tile(const AttentionStep& step, const AttentionLayer& layer, const AttentionTile& tile, int head) {
  static thread_local State state;
  const int per_kv = step.num_heads / step.num_kv_heads, dim = step.head_dim;
  const T* k = static_cast<const T*>(layer.kv) + layer.region * head;
  const T* v = static_cast<const T*>(layer.kv) + layer.region * (step.num_kv_heads + head);
  const AttentionMember* members = step.members + tile.first_member;
  const __m256 scale = _mm256_set1_ps(step.scale);

  int count = 0;
  for (int m = 0; m < tile.num_members; ++m)
    for (int i = 0; i < members[m].num_queries; ++i) {
      const AttentionRow& row = step.rows[members[m].row];
      const std::int64_t query = members[m].first_query + i, position = row.context + query;
      for (int g = 0; g < per_kv; ++g, ++count) {
        const float* q = layer.q + (row.first_token + query) * layer.q_stride + (head * per_kv + g) * dim;
        for (int d = 0; d < dim; d += 8)
          _mm256_store_ps(&state.q[count * dim + d], _mm256_mul_ps(scale, _mm256_loadu_ps(q + d)));
        std::memset(state.sum + count * dim, 0, sizeof(float) * static_cast<std::size_t>(dim));
        state.peak[count] = kNothing;
        state.total[count] = 0.0f;
        state.position[count] = position;
        state.lowest[count] = step.window > 0 ? std::max<std::int64_t>(position - step.window + 1, 0) : 0;
      }
    }

  const auto table = [&](const AttentionMember& member) { return step.tables + member.row * step.table_stride; };
  if (tile.shared > 0) walk<T>(step, state, k, v, table(members[0]), 0, count, 0, tile.shared);
  for (int m = 0, row = 0; m < tile.num_members; ++m) {
    const int past = row + members[m].num_queries * per_kv;
    const std::int64_t begin = std::max<std::int64_t>(tile.shared, state.lowest[row]);
    walk<T>(step, state, k, v, table(members[m]), row, past, begin, state.position[past - 1] + 1);
    row = past;
  }

  int at = 0;
  for (int m = 0; m < tile.num_members; ++m)
    for (int i = 0; i < members[m].num_queries; ++i)
      for (int g = 0; g < per_kv; ++g, ++at) {
        const std::int64_t token = step.rows[members[m].row].first_token + members[m].first_query + i;
        float* out = layer.out + (token * step.num_heads + head * per_kv + g) * dim;
        const __m256 part = _mm256_set1_ps(1.0f / state.total[at]);
        for (int d = 0; d < dim; d += 8)
          _mm256_storeu_ps(out + d, _mm256_mul_ps(part, _mm256_load_ps(&state.sum[at * dim + d])));
      }
}

}  // namespace

void attention_tile_avx2(const AttentionStep& step, const AttentionLayer& layer, std::int64_t tile, int head) {
  switch (step.kv_type) {
    case kKVFloat32: return one_tile<float>(step, layer, step.tiles[tile], head);
    case kKVBFloat16: return one_tile<BFloat16>(step, layer, step.tiles[tile], head);
    case kKVInt8: return one_tile<Int8>(step, layer, step.tiles[tile], head);
    default: return one_tile<Float16>(step, layer, step.tiles[tile], head);
  }
}

}  // namespace paceline
