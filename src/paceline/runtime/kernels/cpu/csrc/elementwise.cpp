// Compiled once for AVX2 and once for AVX-512, with the same bits; call it only where the processor has the instructions.
#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exp.h"

namespace paceline {
namespace PACELINE_LEVEL {

void rms_norm(const NormTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t size = task.size, whole = size / 8 * 8;
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t token = row / task.num_heads, head = row % task.num_heads;
    const float* x = task.x + token * task.token_stride + head * task.head_stride;
    const float* weight = task.weight + row % task.num_weights * size;
    float* out = task.out + token * task.out_token_stride + head * task.out_head_stride;
    // two chains of eight, which take turns: a register of AVX-512 holds both
    Sixteen squares = all<Sixteen>(0.0f);
    std::int64_t i = 0;
    for (; i + 16 <= whole; i += 16) {
      const Sixteen value = load<Sixteen>(x + i);
      squares = fma(value, value, squares);
    }
    if (i < whole) {
      const Eight value = load<Eight>(x + i);
      squares = join(fma(value, value, low_of(squares)), high_of(squares));
    }
    float sum = sum_of(squares);
    for (i = whole; i < size; ++i) sum += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + task.eps);
    by_register(whole, [&](auto width, std::int64_t at) {
      using V = decltype(width);
      store(out + at, load<V>(x + at) * all<V>(factor) * load<V>(weight + at));
    });
    for (i = whole; i < size; ++i) out[i] = x[i] * factor * weight[i];
  }
}

void rope(const RopeTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t half = task.size / 2;
  for (std::int64_t token = first; token < last; ++token) {
    const float *cos = task.cos + token * task.table_stride, *sin = task.sin + token * task.table_stride;
    for (std::int64_t head = 0; head < task.num_heads; ++head) {
      float* x = task.x + token * task.token_stride + head * task.head_stride;
      by_register(half, [&](auto width, std::int64_t i) {
        using V = decltype(width);
        const V low = load<V>(x + i), high = load<V>(x + half + i);
        store(x + i, fma(high, load<V>(sin + i), low * load<V>(cos + i)));
        store(x + half + i, fma(low, load<V>(sin + half + i), high * load<V>(cos + half + i)));
      });
    }
  }
}

namespace {

// x / (1 + e^-x)
template <typename V>
PACELINE_INLINE V silu(V x) {
  return x / (all<V>(1.0f) + exp_of(all<V>(0.0f) - x));
}

// x / 2 (1 + tanh z) = x / (1 + e^-2z) with z = sqrt(2 / pi) (x + 0.044715 x^3)
template <typename V>
PACELINE_INLINE V gelu_tanh(V x) {
  const V inner = fma(all<V>(0.044715f), x * x * x, x);
  return x / (all<V>(1.0f) + exp_of(all<V>(-1.5957691216f) * inner));  // -2 sqrt(2 / pi)
}

template <Activation activation>
void gated_rows(const GatedTask& task, std::int64_t first, std::int64_t last) {
  for (std::int64_t token = first; token < last; ++token) {
    const float *gate = task.gate_up + token * task.token_stride, *up = gate + task.size;
    float* out = task.out + token * task.size;
    by_register(task.size, [&](auto width, std::int64_t i) {
      using V = decltype(width);
      const V x = load<V>(gate + i);
      store(out + i, (activation == kSilu ? silu(x) : gelu_tanh(x)) * load<V>(up + i));
    });
  }
}

}  // namespace

// Row by row in pieces, so that the place is looked for in one of them alone.
void largest(const LargestTask& task, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kPiece = 1024;
  for (std::int64_t row = first; row < last; ++row) {
    const float* x = task.x + row * task.stride;
    float best = -std::numeric_limits<float>::infinity();
    const float* piece = x;
    bool nan = false;
    for (const float *at = x, *end = x + task.size; at < end; at += kPiece) {
      const std::int64_t size = std::min(kPiece, end - at), whole = size / 32 * 32;
      Sixteen one = all<Sixteen>(best), other = one;
      for (std::int64_t i = 0; i < whole; i += 32) {
        const Sixteen a = load<Sixteen>(at + i), b = load<Sixteen>(at + i + 16);
        one = most(a, one);
        other = most(b, other);
        nan |= any_nan(a, b);
      }
      float here = largest_of(most(one, other));
      for (std::int64_t i = whole; i < size; ++i) {
        here = at[i] > here ? at[i] : here;
        nan |= at[i] != at[i];
      }
      if (here > best) {
        best = here;
        piece = at;
      }
    }
    task.value[row] = nan ? std::numeric_limits<float>::quiet_NaN() : best;
    task.place[row] = nan ? 0 : std::find(piece, std::min(piece + kPiece, x + task.size), best) - x;
  }
}

void add(float* x, const float* y, std::int64_t first, std::int64_t last) {
  const std::int64_t whole = (last - first) / 8 * 8;
  by_register(whole, [&](auto width, std::int64_t i) {
    using V = decltype(width);
    store(x + first + i, load<V>(x + first + i) + load<V>(y + first + i));
  });
  for (std::int64_t i = first + whole; i < last; ++i) x[i] += y[i];
}

void gated(const GatedTask& task, std::int64_t first, std::int64_t last) {
  if (task.activation == kSilu)
    gated_rows<kSilu>(task, first, last);
  else
    gated_rows<kGeluTanh>(task, first, last);
}

}  // namespace PACELINE_LEVEL
}  // namespace paceline
