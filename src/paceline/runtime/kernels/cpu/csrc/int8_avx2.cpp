// The integer product on AVX2. Compiled with AVX2, FMA and F16C on; call it only where the processor has them.
#include <algorithm>

#include "int8_tile_avx2.h"
#include "magnitude_avx2.h"

namespace paceline {
namespace {

constexpr std::size_t kBlockBytes = 192 << 10;  // of quantised rows, beside two panels in a second-level cache of 512 KiB
constexpr std::int64_t kBlockTiles = 8;         // at least: each block reads the weights anew

// Sixteen numbers as codes in their order, and the sum of those added to `sum`.
__m128i sixteen_codes(const float* x, __m256 factor, __m256i& sum) {
  const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
  const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
  sum = _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

template <int group>
void quantise_group(const float* x, char* codes, char* scale, char* tail, BlockFormat f) {
  __m256i most = magnitudes(_mm256_loadu_ps(x));
  for (int i = 8; i < group; i += 8) most = _mm256_max_epi32(most, magnitudes(_mm256_loadu_ps(x + i)));
  float magnitude = largest(most);
  const bool zero = magnitude < kLeastMagnitude;  // not so for NaN
  if (zero) magnitude = 0.0f;
  const __m256 factor = _mm256_set1_ps(zero ? 0.0f : 127.0f / magnitude);
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < group; i += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), sixteen_codes(x + i, factor, sum));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const int all = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  const float d = magnitude / 127.0f, offset_factor = d * static_cast<float>(all);
  // unsigned: where numbers are not finite the sum may be anything
  const std::uint32_t shifted = static_cast<std::uint32_t>(all) * static_cast<std::uint32_t>(-code_shift(f));
  std::memcpy(scale, &d, 4);
  if (f.offset == Offset::kStored)
    std::memcpy(tail, &offset_factor, 4);
  else
    std::memcpy(tail, &shifted, 4);
}

template <WeightType type, int height>
void tile_of(std::int64_t rows, const LinearTask& task, const char* x, std::size_t stride, std::int64_t row,
             std::int64_t panel, const char* weight, const char* ahead) {
  if constexpr (height > 1)
    if (rows < height) return tile_of<type, height - 1>(rows, task, x, stride, row, panel, weight, ahead);
  int8_tile<type, height>(task, x, stride, row, panel, weight, ahead);
}

// A panel stays in the cache while rows pass it, in tiles of nearly equal height, and the last tile fetches the next
// panel: with few rows that is what reads memory at its rate. Rows stay in the second-level cache while panels pass
// them, unless inputs are so many that kBlockTiles tiles of rows do not fit (48 rows of 4 bits: some 8,700 inputs); those
// are read from the next level.
template <WeightType type>
void panels_of(const LinearTask& task, std::size_t stride, const char* rows, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kRows = Codes<type>::kRows;
  const std::size_t panel_size = panel_bytes(type, task.num_inputs);
  const std::int64_t most = std::max<std::int64_t>(kBlockTiles * kRows, static_cast<std::int64_t>(kBlockBytes / stride));
  const std::int64_t num_blocks = (task.num_rows + most - 1) / most;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t begin = task.num_rows * block / num_blocks, end = task.num_rows * (block + 1) / num_blocks;
    const std::int64_t num_tiles = (end - begin + kRows - 1) / kRows;
    for (std::int64_t panel = first; panel < last; ++panel) {
      const char* weight = static_cast<const char*>(task.weight) + panel_size * static_cast<std::size_t>(panel);
      const char* next = panel + 1 < last ? weight + panel_size : nullptr;
      for (std::int64_t t = 0; t < num_tiles; ++t) {
        const std::int64_t row = begin + (end - begin) * t / num_tiles;
        const std::int64_t height = begin + (end - begin) * (t + 1) / num_tiles - row;
        tile_of<type, kRows>(height, task, rows + stride * static_cast<std::size_t>(row), stride, row, panel,
                             weight, t + 1 == num_tiles ? next : nullptr);
      }
    }
  }
}

}  // namespace

void quantise_rows_avx2(const LinearTask& task, const Int8Rows& rows, char* at, std::int64_t first, std::int64_t last) {
  const BlockFormat f = block_format(task.type);
  for (std::int64_t block = first; block < last; ++block) {
    char* record = at + rows.block_bytes * static_cast<std::size_t>(block);
    for (std::int64_t k = 0; k < task.num_inputs; k += f.group, record += rows.group_bytes)
      for (int r = 0; r < rows.height; ++r) {
        char *codes = record + r * f.group, *scale = record + rows.height * f.group + 4 * r;
        char* tail = scale + 4 * rows.height;
        const std::int64_t row = block * rows.height + r;
        if (row >= task.num_rows) {
          std::memset(codes, 0, static_cast<std::size_t>(f.group));
          std::memset(scale, 0, 4);
          std::memset(tail, 0, 4);
        } else if (f.group == 32) {
          quantise_group<32>(task.x + row * task.x_stride + k, codes, scale, tail, f);
        } else {
          quantise_group<16>(task.x + row * task.x_stride + k, codes, scale, tail, f);
        }
      }
  }
}

void int8_panels_avx2(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first,
                      std::int64_t last) {
  const std::size_t stride = rows.block_bytes;
  at_type(task.type, [&](auto type) { panels_of<type()>(task, stride, at, first, last); });
}

}  // namespace paceline
