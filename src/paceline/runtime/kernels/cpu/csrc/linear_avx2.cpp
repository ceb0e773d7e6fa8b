// The product on AVX2 with FMA. Compiled with those instructions on; call it only where the processor has them.
#include "linear.h"

#include <immintrin.h>

#include <algorithm>

namespace paceline {
namespace {

constexpr std::int64_t kBlockBytes = 256 << 10;  // of activations: half of a second-level cache of 512 KiB

struct Pair {
  __m256 low, high;  // outputs 0..7 and 8..15 of a panel
};

template <WeightType type>
constexpr std::size_t kWeightBytes = type == kFloat32 ? 4 : 2;

template <WeightType type>
[[gnu::always_inline]] inline Pair load_weights(const char* at) {
  if constexpr (type == kFloat32) {
    const float* values = reinterpret_cast<const float*>(at);
    return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
  } else {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(halves, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
}

[[gnu::always_inline]] inline void store(float* out, const float* bias, Pair sum, std::int64_t count) {
  if (bias != nullptr && count == kPanel) {
    sum.low = _mm256_add_ps(sum.low, _mm256_loadu_ps(bias));
    sum.high = _mm256_add_ps(sum.high, _mm256_loadu_ps(bias + 8));
  }
  if (count == kPanel) {
    _mm256_storeu_ps(out, sum.low);
    _mm256_storeu_ps(out + 8, sum.high);
    return;
  }
  alignas(32) float all[kPanel];
  _mm256_store_ps(all, sum.low);
  _mm256_store_ps(all + 8, sum.high);
  for (std::int64_t i = 0; i < count; ++i) out[i] = all[i] + (bias != nullptr ? bias[i] : 0.0f);
}

// One register tile: `rows` rows times `panels` panels. `ahead`, if not null, is the next panel, fetched on the way.
template <WeightType type, int rows, int panels>
inline void tile(const LinearTask& task, std::int64_t row, std::int64_t panel, const char* ahead) {
  const std::int64_t num_inputs = task.num_inputs;
  constexpr std::size_t step = kPanel * kWeightBytes<type>;  // bytes of one k
  const std::size_t panel_bytes = step * static_cast<std::size_t>(num_inputs);
  const char* weight = static_cast<const char*>(task.weight) + panel_bytes * static_cast<std::size_t>(panel);
  const std::int64_t x_stride = task.x_stride;
  const float* x = task.x + row * x_stride;

  // Every loop over the sums is unrolled: only constant indices let the compiler keep them in registers.
  Pair sum[rows][panels];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) sum[r][p] = {_mm256_setzero_ps(), _mm256_setzero_ps()};

  for (std::int64_t k = 0; k < num_inputs; ++k) {
    Pair w[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) w[p] = load_weights<type>(weight + panel_bytes * p);
    if (ahead != nullptr) {
      _mm_prefetch(ahead, _MM_HINT_T1);
      ahead += step;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * x_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        sum[r][p].low = _mm256_fmadd_ps(value, w[p].low, sum[r][p].low);
        sum[r][p].high = _mm256_fmadd_ps(value, w[p].high, sum[r][p].high);
      }
    }
    weight += step;
  }

#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
    const std::int64_t output = (panel + p) * kPanel;
    const std::int64_t left = task.num_outputs - output;
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
      store(task.out + (row + r) * task.num_outputs + output, task.bias == nullptr ? nullptr : task.bias + output,
            sum[r][p], left < kPanel ? left : kPanel);
  }
}

// Few rows: several panels at once, so that enough sums are under way to hide the latency of an addition.
template <WeightType type, int rows, int panels>
void few_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  std::int64_t panel = first;
  for (; panel + panels <= last; panel += panels) tile<type, rows, panels>(task, 0, panel, nullptr);
  for (; panel < last; ++panel) tile<type, rows, 1>(task, 0, panel, nullptr);
}

template <WeightType type>
void one_tile(const LinearTask& task, int rows, std::int64_t row, std::int64_t panel, const char* ahead) {
  switch (rows) {
    case 1: return tile<type, 1, 1>(task, row, panel, ahead);
    case 2: return tile<type, 2, 1>(task, row, panel, ahead);
    case 3: return tile<type, 3, 1>(task, row, panel, ahead);
    case 4: return tile<type, 4, 1>(task, row, panel, ahead);
    case 5: return tile<type, 5, 1>(task, row, panel, ahead);
    default: return tile<type, 6, 1>(task, row, panel, ahead);
  }
}

// Many rows: a panel stays in the cache while rows pass it, and the next one is fetched during the last tile. Rows pass in
// blocks whose activations stay in the second-level cache too; each block reads the weights anew.
template <WeightType type>
void many_rows(const LinearTask& task, std::int64_t first, std::int64_t last) {
  const std::size_t panel_bytes = kPanel * kWeightBytes<type> * static_cast<std::size_t>(task.num_inputs);
  const char* weight = static_cast<const char*>(task.weight);
  const std::int64_t most = std::max<std::int64_t>(8 * kMaxRows, kBlockBytes / 4 / task.num_inputs);
  const std::int64_t num_blocks = (task.num_rows + most - 1) / most;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t begin = task.num_rows * block / num_blocks;
    const std::int64_t num_rows = task.num_rows * (block + 1) / num_blocks - begin;
    const std::int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    const std::int64_t least = num_rows / num_tiles, larger = num_rows % num_tiles;
    for (std::int64_t panel = first; panel < last; ++panel) {
      const char* next = panel + 1 < last ? weight + panel_bytes * static_cast<std::size_t>(panel + 1) : nullptr;
      std::int64_t row = begin;
      for (std::int64_t t = 0; t < num_tiles; ++t) {
        const int rows = static_cast<int>(least + (t < larger ? 1 : 0));
        one_tile<type>(task, rows, row, panel, t + 1 == num_tiles ? next : nullptr);
        row += rows;
      }
    }
  }
}

template <WeightType type>
void panels_of(const LinearTask& task, std::int64_t first, std::int64_t last) {
  switch (task.num_rows) {
    case 0: return;
    case 1: return few_rows<type, 1, 4>(task, first, last);
    case 2: return few_rows<type, 2, 3>(task, first, last);
    case 3: return few_rows<type, 3, 2>(task, first, last);
    default: return many_rows<type>(task, first, last);
  }
}

}  // namespace

void linear_panels_avx2(const LinearTask& task, std::int64_t first, std::int64_t last) {
  if (task.type == kFloat32)
    panels_of<kFloat32>(task, first, last);
  else
    panels_of<kBFloat16>(task, first, last);
}

}  // namespace paceline
