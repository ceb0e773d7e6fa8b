// Compiled once for AVX2 and once for AVX-512, with the same bits; call it only where the processor has the instructions.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "exp.h"
#include "kv_int8.h"
#include "turn.h"

namespace paceline {
namespace PACELINE_LEVEL {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// Rows of a register tile, and vectors of sixteen values beside each other in it: 6 x 16 sums fill 12 of 16 registers of AVX2,
// 12 x 32 fill 24 of 32 of AVX-512. Values that are not floats are widened once where more than kDirectRows rows read them.
#ifdef __AVX512F__
constexpr int kRows = 12, kVectors = 2, kDirectRows = 4;
#else
constexpr int kRows = 6, kVectors = 1, kDirectRows = 6;
#endif

// What a tile knows of its rows. Row r is query head r % per_kv of query r / per_kv.
struct State {
  // Rows of head_dim numbers one after another: with a fixed stride of 1 KiB they would share a few sets of the cache.
  alignas(64) float q[kTileRows * kMaxHeadDim];    // times the scale
  alignas(64) float sum[kTileRows * kMaxHeadDim];  // weighted values
  alignas(64) float keys[kMaxHeadDim][kKeys];     // of the group at work, turned
  alignas(64) float values[kKeys * kMaxHeadDim];  // and widened, where many rows read them
  alignas(64) float weight[kTileRows][kKeys];     // scores, then weights
  alignas(64) float key_scale[kKeys], value_scale[kKeys];  // of the group at work, where codes have one
  float peak[kTileRows], total[kTileRows], keep[kTileRows];
  std::int64_t position[kTileRows], lowest[kTileRows];  // the last and the first key that a row sees
};

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
struct Int8 {
  std::int8_t code;  // times its record's scale
};

// Eight or sixteen numbers as floats.
template <typename V>
PACELINE_INLINE V widened(const float* at) {
  return load<V>(at);
}
template <typename V>
PACELINE_INLINE V widened(const BFloat16* at) {
#ifdef __AVX512F__
  if constexpr (kWidth<V> == 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
#endif
  if constexpr (kWidth<V> == 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
  } else {
    return join(widened<Eight>(at), widened<Eight>(at + 8));
  }
}
template <typename V>
PACELINE_INLINE V widened(const Float16* at) {
  if constexpr (kWidth<V> == 8)
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))};
  else
    return join(widened<Eight>(at), widened<Eight>(at + 8));
}
template <typename V>
PACELINE_INLINE V widened(const Int8* at) {
#ifdef __AVX512F__
  if constexpr (kWidth<V> == 16)
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))))};
#endif
  if constexpr (kWidth<V> == 8)
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))))};
  else
    return join(widened<Eight>(at), widened<Eight>(at + 8));
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
    for (; begin + kTurnedBytes <= dim; begin += kTurnedBytes) turn_bytes(key, begin, state.keys[begin]);
  for (; begin + 16 <= dim; begin += 16)
    turn_sixteen([&](int j, auto width, int d) {
      using V = decltype(width);
      return key[j] == nullptr ? all<V>(0.0f) : widened<V>(key[j] + begin + d);
    }, state.keys[begin]);
  if (begin < dim)
    turn_eight([&](int j) { return key[j] == nullptr ? all<Eight>(0.0f) : widened<Eight>(key[j] + begin); },
               state.keys[begin]);
}

// Scores of `rows` rows from `first` on.
template <int rows>
void score(State& state, int first, int dim) {
  Sixteen sum[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) sum[r] = all<Sixteen>(0.0f);
  const float* q = state.q + first * dim;
  for (int d = 0; d < dim; ++d) {
    const Sixteen keys = load<Sixteen>(state.keys[d]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) sum[r] = fma(all<Sixteen>(q[r * dim + d]), keys, sum[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) store(state.weight[first + r], sum[r]);
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
  Sixteen score = load<Sixteen>(at);
  if constexpr (kScaled<T>) score = score * load<Sixteen>(state.key_scale);
  if (softcap != 0.0f) score = all<Sixteen>(softcap) * tanh_of(score * all<Sixteen>(1.0f / softcap));
  score = between(static_cast<int>(lowest), static_cast<int>(past), score, all<Sixteen>(kNothing));
  const float most = largest_of(score), before = state.peak[row];
  const float peak = most > before ? most : before;
  Sixteen weight = exp_of(score - all<Sixteen>(peak));
  const float sum = sum_of(weight);
  if constexpr (kScaled<T>) weight = weight * load<Sixteen>(state.value_scale);
  store(at, weight);
  if (peak != before) state.keep[row] = before == kNothing ? 0.0f : std::exp(before - peak);
  state.peak[row] = peak;
  state.total[row] = state.total[row] * state.keep[row] + sum;
}

// sum = sum * keep + weights * values for `rows` rows from `first` on, `vectors` of V from `d` on.
template <typename V, int rows, int vectors, typename T>
PACELINE_INLINE void mix(State& state, const T* const (&value)[kKeys], int first, int dim, int d, int begin, int end) {
  constexpr int kStep = kWidth<V>;
  float* at = state.sum + first * dim + d;
  V sum[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    const V keep = all<V>(state.keep[first + r]);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sum[r][v] = keep * load<V>(at + r * dim + kStep * v);
  }
  for (int j = begin; j < end; ++j) {
    V part[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) part[v] = widened<V>(value[j] + d + kStep * v);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const V weight = all<V>(state.weight[first + r][j]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sum[r][v] = fma(weight, part[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) store(at + r * dim + kStep * v, sum[r][v]);
}

template <int rows, typename T>
void mix_rows(State& state, const T* const (&value)[kKeys], int first, int dim, int begin, int end) {
  int d = 0;
  for (; d + 16 * kVectors <= dim; d += 16 * kVectors)
    mix<Sixteen, rows, kVectors>(state, value, first, dim, d, begin, end);
  if (kVectors > 1 && d + 16 <= dim) mix<Sixteen, rows, 1>(state, value, first, dim, d, begin, end), d += 16;
  if (d < dim) mix<Eight, rows, 1>(state, value, first, dim, d, begin, end);
}

// `call(std::integral_constant<int, n>, row)` for rows [first, last) in register tiles of n.
template <int most, typename Call>
void in_tiles(int first, int last, const Call& call) {
  for (; first + most <= last; first += most) call(std::integral_constant<int, most>{}, first);
  if constexpr (most > 1)
    if (first < last) in_tiles<most - 1>(first, last, call);
}

// Where one head's keys and values of a sequence lie: blocks in the order of its table.
template <typename T>
struct Blocks {
  const T *k, *v;
  KVPlaces places;
  const std::int32_t* table;
};

// Where the keys and values of one group lie. Null: outside [from, to).
template <typename T>
struct Group {
  const T *key[kKeys], *value[kKeys];
  int from, to;
};

// The group that starts at key `base`, as far as it is within [begin, end).
template <typename T>
Group<T> find_group(const AttentionStep& step, const Blocks<T>& blocks, std::int64_t base, std::int64_t begin,
                    std::int64_t end) {
  Group<T> found{};
  found.from = static_cast<int>(std::max<std::int64_t>(begin - base, 0));
  found.to = static_cast<int>(std::min<std::int64_t>(end - base, kKeys));
  std::int64_t block = (base + found.from) / step.block_size, offset = (base + found.from) % step.block_size;
  for (int j = found.from; j < found.to; ++j) {
    const std::int64_t at = blocks.places.block(blocks.table[block]) + offset * record_size<T>(step.head_dim);
    found.key[j] = blocks.k + at;
    found.value[j] = blocks.v + at;
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
  if constexpr (!std::is_same_v<T, float>) {
    if (last - first > kDirectRows) {
      Group<float> wide{};
      wide.from = group.from, wide.to = group.to;
      for (int j = group.from; j < group.to; ++j) {
        float* at = state.values + j * dim;
        by_register(dim, [&](auto width, std::int64_t d) { store(at + d, widened<decltype(width)>(group.value[j] + d)); });
        wide.value[j] = at;
      }
      return mix_group(wide, first, last, dim, state);
    }
  }
  in_tiles<std::is_same_v<T, float> ? kRows : kDirectRows>(first, last, [&](auto rows, int row) {
    mix_rows<rows>(state, group.value, row, dim, group.from, group.to);
  });
}

// Rows [first, last) past keys [begin, end) of a sequence.
template <typename T>
void walk(const AttentionStep& step, State& state, const Blocks<T>& blocks, int first, int last, std::int64_t begin,
          std::int64_t end) {
  const int dim = step.head_dim;
  std::int64_t base = begin / kKeys * kKeys;
  if (base >= end) return;
  Group<T> next = find_group(step, blocks, base, begin, end);
  for (; base < end; base += kKeys) {
    const Group<T> group = next;
    if (base + kKeys < end) {
      next = find_group(step, blocks, base + kKeys, begin, end);
      fetch(next, dim);
    }
    if constexpr (kScaled<T>) read_scales(group, dim, state);
    turn_keys<T>(group.key, dim, state);
    in_tiles<kRows>(first, last, [&](auto rows, int row) { score<rows>(state, row, dim); });
    for (int row = first; row < last; ++row) weigh<T>(state, row, base, group.from, group.to, step.softcap);
    mix_group(group, first, last, dim, state);
  }
}

template <typename T>
void one_tile(const AttentionStep& step, const AttentionLayer& layer, const AttentionTile& tile, int head) {
  static thread_local State state;
  const int per_kv = step.num_heads / step.num_kv_heads, dim = step.head_dim;
  const T* k = static_cast<const T*>(layer.kv) + layer.places.head_stride * head;
  const T* v = static_cast<const T*>(layer.kv) + layer.places.head_stride * (step.num_kv_heads + head);
  const AttentionMember* members = step.members + tile.first_member;

  int count = 0;
  for (int m = 0; m < tile.num_members; ++m)
    for (int i = 0; i < members[m].num_queries; ++i) {
      const AttentionRow& row = step.rows[members[m].row];
      const std::int64_t query = members[m].first_query + i, position = row.context + query;
      for (int g = 0; g < per_kv; ++g, ++count) {
        const float* q = layer.q + (row.first_token + query) * layer.q_stride + (head * per_kv + g) * dim;
        by_register(dim, [&](auto width, std::int64_t d) {
          using V = decltype(width);
          store(&state.q[count * dim + d], all<V>(step.scale) * load<V>(q + d));
        });
        std::memset(state.sum + count * dim, 0, sizeof(float) * static_cast<std::size_t>(dim));
        state.peak[count] = kNothing;
        state.total[count] = 0.0f;
        state.position[count] = position;
        state.lowest[count] = step.window > 0 ? std::max<std::int64_t>(position - step.window + 1, 0) : 0;
      }
    }

  const auto of = [&](const AttentionMember& member) {
    return Blocks<T>{k, v, layer.places, step.tables + member.row * step.table_stride};
  };
  if (tile.shared > 0) walk<T>(step, state, of(members[0]), 0, count, 0, tile.shared);
  for (int m = 0, row = 0; m < tile.num_members; ++m) {
    const int past = row + members[m].num_queries * per_kv;
    const std::int64_t begin = std::max<std::int64_t>(tile.shared, state.lowest[row]);
    walk<T>(step, state, of(members[m]), row, past, begin, state.position[past - 1] + 1);
    row = past;
  }

  int at = 0;
  for (int m = 0; m < tile.num_members; ++m)
    for (int i = 0; i < members[m].num_queries; ++i)
      for (int g = 0; g < per_kv; ++g, ++at) {
        const std::int64_t token = step.rows[members[m].row].first_token + members[m].first_query + i;
        float* out = layer.out + (token * step.num_heads + head * per_kv + g) * dim;
        const float part = 1.0f / state.total[at];
        by_register(dim, [&](auto width, std::int64_t d) {
          using V = decltype(width);
          store(out + d, all<V>(part) * load<V>(&state.sum[at * dim + d]));
        });
      }
}

}  // namespace

void attention_tile(const AttentionStep& step, const AttentionLayer& layer, std::int64_t tile, int head) {
  switch (step.kv_type) {
    case kKVFloat32: return one_tile<float>(step, layer, step.tiles[tile], head);
    case kKVBFloat16: return one_tile<BFloat16>(step, layer, step.tiles[tile], head);
    case kKVInt8: return one_tile<Int8>(step, layer, step.tiles[tile], head);
    default: return one_tile<Float16>(step, layer, step.tiles[tile], head);
  }
}

}  // namespace PACELINE_LEVEL
}  // namespace paceline
