// Compiled once for AVX2 and once for AVX-512; call it only where the processor has the instructions.
#include "draws.h"

#include <algorithm>
#include <limits>

#include "vector.h"

namespace paceline {
namespace PACELINE_LEVEL {
namespace {

#ifdef __AVX512F__
using Floats = Sixteen;
using Words = __m512i;
PACELINE_INLINE Words words(std::int32_t x) { return _mm512_set1_epi32(x); }
PACELINE_INLINE Words places() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
PACELINE_INLINE Words plus(Words a, Words b) { return _mm512_add_epi32(a, b); }
PACELINE_INLINE Words times(Words a, Words b) { return _mm512_mullo_epi32(a, b); }
PACELINE_INLINE Words both(Words a, Words b) { return _mm512_and_si512(a, b); }
PACELINE_INLINE Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
PACELINE_INLINE Words folded(Words x, int shift) { return _mm512_xor_si512(x, _mm512_srli_epi32(x, static_cast<unsigned>(shift))); }
PACELINE_INLINE Words shifted(Words x, int shift) { return _mm512_srli_epi32(x, static_cast<unsigned>(shift)); }
PACELINE_INLINE Floats as_floats(Words x) { return {_mm512_cvtepi32_ps(x)}; }
PACELINE_INLINE Words bits_of(Floats x) { return _mm512_castps_si512(x.v); }
// x in the lanes that have a bit, elsewhere `other`.
PACELINE_INLINE Floats where(std::uint32_t bits, Floats x, Floats other) {
  return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(bits), x.v)};
}
#else
using Floats = Eight;
using Words = __m256i;
PACELINE_INLINE Words words(std::int32_t x) { return _mm256_set1_epi32(x); }
PACELINE_INLINE Words places() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
PACELINE_INLINE Words plus(Words a, Words b) { return _mm256_add_epi32(a, b); }
PACELINE_INLINE Words times(Words a, Words b) { return _mm256_mullo_epi32(a, b); }
PACELINE_INLINE Words both(Words a, Words b) { return _mm256_and_si256(a, b); }
PACELINE_INLINE Words either(Words a, Words b) { return _mm256_or_si256(a, b); }
PACELINE_INLINE Words folded(Words x, int shift) { return _mm256_xor_si256(x, _mm256_srli_epi32(x, shift)); }
PACELINE_INLINE Words shifted(Words x, int shift) { return _mm256_srli_epi32(x, shift); }
PACELINE_INLINE Floats as_floats(Words x) { return {_mm256_cvtepi32_ps(x)}; }
PACELINE_INLINE Words bits_of(Floats x) { return _mm256_castps_si256(x.v); }
PACELINE_INLINE Floats where(std::uint32_t bits, Floats x, Floats other) {
  const Words lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const Words has = _mm256_cmpeq_epi32(both(words(static_cast<std::int32_t>(bits)), lanes), lanes);
  return {_mm256_blendv_ps(other.v, x.v, _mm256_castsi256_ps(has))};
}
#endif

// noise.py: noise <= kAlpha * bits + kConstant, with the bits of a float that stands for the hash.
constexpr float kAlpha = -8.26295829e-8f;        // -ln 2 / 2^23
constexpr float kConstant = 105.35837f + 1e-3f;  // ln 2 * (127 + 25), and slack for roundings
constexpr std::int32_t kFirst = 0x7FEB352D, kSecond = static_cast<std::int32_t>(0x846CA68Bu);  // lowbias32
constexpr std::int32_t kNumerator = (1 << 25) - 2;

PACELINE_INLINE Floats without_constant(Floats z, Words ids, Words multiplier, Words offset) {
  Words x = folded(plus(times(ids, multiplier), offset), 16);
  x = folded(times(x, words(kFirst)), 15);
  x = folded(times(x, words(kSecond)), 16);
  const Floats hash = as_floats(either(both(shifted(x, 7), words(kNumerator)), words(1)));
  return fma(as_floats(bits_of(hash)), all<Floats>(kAlpha), z);
}

}  // namespace

void draw_bounds(const DrawBounds& task, std::int64_t first, std::int64_t last) {
  constexpr int kLanes = kWidth<Floats>;
  const std::int64_t num_pieces = (task.size + kPiece - 1) / kPiece;
  for (std::int64_t draw = first; draw < last; ++draw) {
    const float* z = task.z + task.rows[draw] * task.stride;
    const Words multiplier = words(task.multiplier[draw]), offset = words(task.offset[draw]);
    for (std::int64_t piece = 0; piece < num_pieces; ++piece) {
      const std::int64_t begin = piece * kPiece, end = std::min(begin + kPiece, task.size);
      Floats most_here = all<Floats>(-std::numeric_limits<float>::infinity());
      std::int64_t id = begin;
      for (; id + kLanes <= end; id += kLanes)
        most_here = most(without_constant(load<Floats>(z + id), plus(places(), words(static_cast<std::int32_t>(id))),
                                          multiplier, offset),
                         most_here);
      if (id < end) {
        alignas(64) float rest[kLanes];
        std::fill(std::copy(z + id, z + end, rest), rest + kLanes, -std::numeric_limits<float>::infinity());
        most_here = most(without_constant(load<Floats>(rest), plus(places(), words(static_cast<std::int32_t>(id))),
                                          multiplier, offset),
                         most_here);
      }
      task.out[draw * num_pieces + piece] = largest_of(most_here) + kConstant;
    }
  }
}

// Every number is read anyway: a pass that only looks for the largest beforehand would take as long again.
void keep_allowed(const KeepAllowed& task, std::int64_t first, std::int64_t last) {
  constexpr int kLanes = kWidth<Floats>;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const Floats never = all<Floats>(kNever);
  for (std::int64_t mask = first; mask < last; ++mask) {
    float* x = task.x + task.rows[mask] * task.stride;
    const std::uint32_t* allowed = task.words + mask * task.num_words;
    Floats one = never, other = never;
    bool nan = false;
    std::int64_t id = 0;
    for (; id + 32 <= task.size; id += 32) {
      const std::uint32_t word = allowed[id / 32];
      for (int lane = 0; lane < 32; lane += 2 * kLanes) {
        const Floats a = load<Floats>(x + id + lane), b = load<Floats>(x + id + lane + kLanes);
        one = most(a, one);
        other = most(b, other);
        nan |= any_nan(a, b);
        store(x + id + lane, where(word >> lane, a, never));
        store(x + id + lane + kLanes, where(word >> (lane + kLanes), b, never));
      }
    }
    float here = largest_of(most(one, other));
    for (; id < task.size; ++id) {
      here = x[id] > here ? x[id] : here;
      nan |= x[id] != x[id];
      if (!(allowed[id / 32] >> id % 32 & 1)) x[id] = kNever;
    }
    task.largest[mask] = nan ? std::numeric_limits<float>::quiet_NaN() : here;
  }
}

void draw_scale(const DrawScale& task, std::int64_t first, std::int64_t last) {
  const std::int64_t whole = task.size / 8 * 8;
  for (std::int64_t row = first; row < last; ++row) {
    float* x = task.x + row * task.stride;
    const float largest = task.largest[row], temperature = task.temperature[row];
    by_register(whole, [&](auto width, std::int64_t i) {
      using V = decltype(width);
      store(x + i, (load<V>(x + i) - all<V>(largest)) / all<V>(temperature));
    });
    for (std::int64_t i = whole; i < task.size; ++i) x[i] = (x[i] - largest) / temperature;
  }
}

}  // namespace PACELINE_LEVEL
}  // namespace paceline
