// What drawing a token takes of a pass over the whole vocabulary. runtime/sampler.py and runtime/noise.py say what for.
#pragma once

#include <cstdint>

namespace paceline {

constexpr std::int64_t kPiece = 128;  // ids: PIECE of kernels/reference/largest.py

// For draws [first, last): the largest of z + a bound of the noise over each piece of kPiece ids. Draw i reads row rows[i] of z
// and writes row i of out.
struct DrawBounds {
  const float* z;
  const std::int64_t* rows;
  const std::int32_t *multiplier, *offset;  // of each draw's hash
  float* out;                               // [draws, pieces]
  std::int64_t size, stride;                // numbers of a row of z, and from row to row
};

// x = (x - largest) / temperature for rows [first, last), in place.
struct DrawScale {
  float* x;
  const float *largest, *temperature;  // of each row
  std::int64_t size, stride;
};

// For masks [first, last): row rows[i] of x becomes -inf where words[i] has no bit for an id, the lowest bit first.
// largest[i] is the largest number that was there before, NaN where one of them is.
struct KeepAllowed {
  float* x;
  const std::int64_t* rows;
  const std::uint32_t* words;
  float* largest;
  std::int64_t size, stride, num_words;  // numbers of a row of x, from row to row, and words of a mask
};

// By level of instructions (isa.h).
#define PACELINE_DRAWS                                                                   \
  void keep_allowed(const KeepAllowed& task, std::int64_t first, std::int64_t last);     \
  void draw_bounds(const DrawBounds& task, std::int64_t first, std::int64_t last);       \
  void draw_scale(const DrawScale& task, std::int64_t first, std::int64_t last);
namespace avx2 {
PACELINE_DRAWS
}
namespace avx512 {
PACELINE_DRAWS
}
#undef PACELINE_DRAWS

}  // namespace paceline
