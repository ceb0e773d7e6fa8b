// Weights as rows of bfloat16 or of their codes: where each stands. Runs once for each weight: plain code.
#include "bf16.h"

#include <cstring>

namespace paceline {
namespace {

// Place of a code of 8 bits: see bf16.h.
std::int64_t byte_of(std::int64_t lane, std::int64_t k) { return 64 * (lane / 2) + 4 * (k % 16) + 2 * (lane % 2) + k / 16; }

std::uint16_t word_at(const std::uint8_t* codes, std::int64_t index) {
  std::uint16_t word;
  std::memcpy(&word, codes + 2 * index, 2);
  return word;
}

void set_bits(std::uint8_t* codes, std::int64_t index, int bits) {
  const std::uint16_t word = static_cast<std::uint16_t>(word_at(codes, index) | bits);
  std::memcpy(codes + 2 * index, &word, 2);
}

// To nearest, ties to even; what is not a number stays so.
std::uint16_t bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace

void put_row_code(std::uint8_t* codes, int bits, std::int64_t lane, std::int64_t k, std::uint8_t code) {
  if (bits == 8) {
    codes[byte_of(lane, k)] = code;
  } else if (bits == 4) {
    set_bits(codes, kUnit * (lane / 4) + k, code << 4 * (lane % 4));
  } else if (lane < 15) {
    set_bits(codes, kUnit * (lane / 3) + k, code << 5 * (lane % 3));
  } else {
    for (int v = 0; v < 5; ++v) set_bits(codes, kUnit * v + k, (code >> v & 1) << 15);
  }
}

std::uint8_t row_code(const std::uint8_t* codes, int bits, std::int64_t lane, std::int64_t k) {
  if (bits == 8) return codes[byte_of(lane, k)];
  if (bits == 4) return static_cast<std::uint8_t>(word_at(codes, kUnit * (lane / 4) + k) >> 4 * (lane % 4) & 15);
  if (lane < 15) return static_cast<std::uint8_t>(word_at(codes, kUnit * (lane / 3) + k) >> 5 * (lane % 3) & 31);
  int code = 0;
  for (int v = 0; v < 5; ++v) code |= word_at(codes, kUnit * v + k) >> 15 << v;
  return static_cast<std::uint8_t>(code);
}

void pack_bf16_rows(const float* weight, std::uint8_t* packed, std::int64_t first, std::int64_t num_rows,
                    std::int64_t num_inputs) {
  for (std::int64_t n = first; n < first + num_rows; ++n, weight += num_inputs) {
    std::uint8_t* panel = packed + static_cast<std::size_t>(n / kPanel) * panel_bytes(kRowsBFloat16, num_inputs);
    for (std::int64_t k = 0; k < num_inputs; ++k) {
      const std::uint16_t value = bfloat16(weight[k]);
      std::memcpy(panel + 2 * ((k / kUnit * kPanel + n % kPanel) * kUnit + k % kUnit), &value, 2);
    }
  }
}

}  // namespace paceline
