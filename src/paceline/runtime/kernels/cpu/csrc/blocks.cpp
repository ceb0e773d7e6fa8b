// GGUF blocks into panels, and a row of a panel back into floats. Runs once for each weight (and once for each token of an
// embedding), so it is plain code that any processor runs.
#include "bf16.h"

#include <cstring>

namespace paceline {
namespace {

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  std::uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu, bits;
  if (exponent == 0 && mantissa != 0) {  // subnormal: shift until the leading one stands
    exponent = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    bits = sign | (exponent << 23) | ((mantissa & 0x3ffu) << 13);
  } else if (exponent == 0) {
    bits = sign;
  } else {
    bits = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13);
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::uint16_t read_half(const std::uint8_t* at) { return static_cast<std::uint16_t>(at[0] | (at[1] << 8)); }

// Where a code stands behind the head of its group.
struct CodePlace {
  std::int64_t byte;
  int shift;
};

CodePlace place_of(const BlockFormat& f, std::int64_t lane, int j) {
  const std::int64_t step = j / f.together * static_cast<std::int64_t>(step_bytes(f)), within = j % f.together;
  if (f.bits == 8) return {step + lane * f.together + within, 0};
  return {step + lane % 8 * f.together + within, lane < 8 ? 0 : 4};
}

// A group of a panel: its scales, its codes, and which k of those codes is its first.
struct Group {
  std::int64_t head, codes, first;  // bytes from the panel's begin; k
};

Group group_at(WeightType type, const BlockFormat& f, std::int64_t k) {
  const std::int64_t bytes = static_cast<std::int64_t>(group_bytes(f)), head = static_cast<std::int64_t>(head_bytes(f));
  if (type < kFirstRows) return {k / f.group * bytes, k / f.group * bytes + head, 0};
  const std::int64_t together = kUnit / f.group, unit = k / kUnit * together * bytes, within = k % kUnit;
  return {unit + within / f.group * head, unit + together * head, within};
}

void put_code(WeightType type, const BlockFormat& f, std::uint8_t* codes, std::int64_t lane, std::int64_t k,
              std::uint8_t code) {
  if (type >= kFirstRows) return put_row_code(codes, f.bits, lane, k, code);
  const CodePlace place = place_of(f, lane, static_cast<int>(k));
  codes[place.byte] = static_cast<std::uint8_t>(codes[place.byte] | code << place.shift);
}

int code_at(WeightType type, const BlockFormat& f, const std::uint8_t* codes, std::int64_t lane, std::int64_t k) {
  if (type >= kFirstRows) return row_code(codes, f.bits, lane, k);
  const CodePlace place = place_of(f, lane, static_cast<int>(k));
  const int byte = codes[place.byte];
  return f.bits == 4 ? (byte >> place.shift) & 15 : byte;
}

// Where the panels of a weight are, and how to write one group of one output.
struct Writer {
  std::uint8_t* packed;
  WeightType type;
  BlockFormat format;
  std::int64_t num_inputs;

  // `scale` and `offset` point to scale_bytes each. `codes` around zero come signed.
  void write(std::int64_t n, std::int64_t k, const void* scale, const void* offset, const std::int8_t* codes) const {
    const std::int64_t lane = n % kPanel;
    const std::size_t size = static_cast<std::size_t>(format.scale_bytes);
    std::uint8_t* panel = packed + static_cast<std::size_t>(n / kPanel) * panel_bytes(type, num_inputs);
    const Group group = group_at(type, format, k);
    std::uint8_t* head = panel + group.head;
    std::memcpy(head + size * static_cast<std::size_t>(lane), scale, size);
    if (format.offset == Offset::kStored) std::memcpy(head + size * static_cast<std::size_t>(kPanel + lane), offset, size);
    for (int j = 0; j < format.group; ++j)
      put_code(type, format, panel + group.codes, lane, group.first + j,
               static_cast<std::uint8_t>(codes[j] + format.centre));
  }
};

// 32 codes of 4 bits: the low halves of 16 bytes, then the high ones.
void nibbles(const std::uint8_t* at, int count, std::int8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = static_cast<std::int8_t>(at[i] & 15);
    codes[i + count] = static_cast<std::int8_t>(at[i] >> 4);
  }
}

void pack_32(const Writer& to, const std::uint8_t* block, std::int64_t n, std::int64_t k, std::int32_t ggml) {
  std::int8_t codes[32];
  const bool offset = ggml == kQ4_1 || ggml == kQ5_1;
  const std::uint8_t* at = block + (offset ? 4 : 2);
  if (ggml == kQ8_0) {
    std::memcpy(codes, at, 32);
  } else if (ggml == kQ4_0 || ggml == kQ4_1) {
    nibbles(at, 16, codes);
    if (ggml == kQ4_0)
      for (std::int8_t& code : codes) code = static_cast<std::int8_t>(code - 8);
  } else {
    const std::uint32_t high = at[0] | (at[1] << 8) | (at[2] << 16) | (static_cast<std::uint32_t>(at[3]) << 24);
    nibbles(at + 4, 16, codes);
    for (int i = 0; i < 32; ++i) {
      const int code = codes[i] | static_cast<int>((high >> i) & 1u) << 4;
      codes[i] = static_cast<std::int8_t>(ggml == kQ5_0 ? code - 16 : code);
    }
  }
  to.write(n, k, block, block + 2, codes);
}

// Scales and minimums of the eight groups of a K block: 6 bits each, in 12 bytes.
void scales_and_mins(const std::uint8_t* at, int* scale, int* min) {
  for (int i = 0; i < 4; ++i) {
    scale[i] = at[i] & 63;
    min[i] = at[4 + i] & 63;
    scale[4 + i] = (at[8 + i] & 15) | ((at[i] >> 2) & 48);
    min[4 + i] = (at[8 + i] >> 4) | ((at[4 + i] >> 2) & 48);
  }
}

void pack_k45(const Writer& to, const std::uint8_t* block, std::int64_t n, std::int64_t k, bool five) {
  const float d = half_to_float(read_half(block)), dmin = half_to_float(read_half(block + 2));
  int scale[8], min[8];
  scales_and_mins(block + 4, scale, min);
  const std::uint8_t* high = block + 16;
  const std::uint8_t* low = block + (five ? 48 : 16);
  for (int pair = 0; pair < 4; ++pair) {
    std::int8_t codes[64];
    nibbles(low + 32 * pair, 32, codes);
    for (int half = 0; half < 2; ++half) {
      const int group = 2 * pair + half;
      if (five)
        for (int i = 0; i < 32; ++i)
          codes[32 * half + i] = static_cast<std::int8_t>(codes[32 * half + i] | ((high[i] >> group) & 1) << 4);
      const float step = d * static_cast<float>(scale[group]);
      const float offset = -(dmin * static_cast<float>(min[group]));
      to.write(n, k + 32 * group, &step, &offset, codes + 32 * half);
    }
  }
}

void pack_k6(const Writer& to, const std::uint8_t* block, std::int64_t n, std::int64_t k) {
  const std::uint8_t *low = block, *high = block + 128;
  const float d = half_to_float(read_half(block + 208));
  std::int8_t codes[256];
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i)
      for (int part = 0; part < 4; ++part) {
        const std::uint8_t byte = low[64 * half + 32 * (part % 2) + i];
        const int four = part < 2 ? byte & 15 : byte >> 4;
        const int two = (high[32 * half + i] >> (2 * part)) & 3;
        codes[128 * half + 32 * part + i] = static_cast<std::int8_t>((four | two << 4) - 32);
      }
  for (int group = 0; group < 16; ++group) {
    const float step = d * static_cast<float>(static_cast<std::int8_t>(block[192 + group]));
    to.write(n, k + 16 * group, &step, &step, codes + 16 * group);  // there is no offset: it is not read
  }
}

struct Source {
  std::int32_t ggml;
  WeightType types[3];  // by Activations
  int weights, bytes;  // of a block
};
constexpr Source kSources[] = {
    {kQ4_0, {kHalf4Centred, kInt4Centred, kRows4Centred}, 32, 18},
    {kQ4_1, {kHalf4Offset, kInt4Offset, kRows4Offset}, 32, 20},
    {kQ5_0, {kHalf8, kInt5Centred, kRows5Centred}, 32, 22},
    {kQ5_1, {kHalf8Offset, kInt5Offset, kRows5Offset}, 32, 24},
    {kQ8_0, {kHalf8, kInt8Signed, kRows8}, 32, 34},
    {kQ4_K, {kFloat4Offset, kInt4FloatOffset, kRows4FloatOffset}, 256, 144},
    {kQ5_K, {kFloat8Offset, kInt5FloatOffset, kRows5FloatOffset}, 256, 176},
    {kQ6_K, {kFloat8By16, kInt6By16, kRows8By16}, 256, 210},
};

const Source* source_of(std::int32_t ggml) {
  for (const Source& source : kSources)
    if (source.ggml == ggml) return &source;
  return nullptr;
}

}  // namespace

std::size_t panel_bytes(WeightType type, std::int64_t num_inputs) {
  if (type < kFirstBlocks) return static_cast<std::size_t>(kPanel * num_inputs * (type == kFloat32 ? 4 : 2));
  if (type >= kFirstRows) return static_cast<std::size_t>(num_units(num_inputs)) * unit_bytes(type);
  const BlockFormat format = block_format(type);
  return static_cast<std::size_t>(num_inputs / format.group) * group_bytes(format);
}

std::int32_t packed_type(std::int32_t ggml, Activations activations) {
  const Source* source = source_of(ggml);
  return source == nullptr ? -1 : source->types[activations];
}

void pack_blocks(const std::uint8_t* blocks, std::uint8_t* packed, std::int64_t first, std::int64_t num_rows,
                 std::int64_t num_inputs, std::int32_t ggml, WeightType type) {
  const Source& source = *source_of(ggml);
  const Writer to{packed, type, block_format(type), num_inputs};
  for (std::int64_t n = first; n < first + num_rows; ++n)
    for (std::int64_t k = 0; k < num_inputs; k += source.weights, blocks += source.bytes) {
      if (ggml == kQ6_K)
        pack_k6(to, blocks, n, k);
      else if (ggml == kQ4_K || ggml == kQ5_K)
        pack_k45(to, blocks, n, k, ggml == kQ5_K);
      else
        pack_32(to, blocks, n, k, ggml);
    }
}

void unpack_blocks(const std::uint8_t* packed, float* row, std::int64_t n, std::int64_t num_inputs, WeightType type) {
  const std::int64_t lane = n % kPanel;
  const std::uint8_t* panel = packed + static_cast<std::size_t>(n / kPanel) * panel_bytes(type, num_inputs);
  if (type == kRowsBFloat16) {
    for (std::int64_t k = 0; k < num_inputs; ++k) {
      const std::uint32_t bits =
          static_cast<std::uint32_t>(read_half(panel + 2 * ((k / kUnit * kPanel + lane) * kUnit + k % kUnit))) << 16;
      std::memcpy(row + k, &bits, 4);
    }
    return;
  }
  const BlockFormat f = block_format(type);
  for (std::int64_t k = 0; k < num_inputs; k += f.group) {
    const Group group = group_at(type, f, k);
    const auto number = [&](std::int64_t index) {
      if (f.scale_bytes == 2) return half_to_float(read_half(panel + group.head + 2 * index));
      float value;
      std::memcpy(&value, panel + group.head + 4 * index, 4);
      return value;
    };
    const float scale = number(lane), offset = f.offset == Offset::kStored ? number(kPanel + lane) : 0.0f;
    for (int j = 0; j < f.group; ++j) {
      const int byte = code_at(type, f, panel + group.codes, lane, group.first + j);
      const int code = f.offset == Offset::kNone ? static_cast<std::int8_t>(byte) : byte;
      // rounded before an offset is added: this file is compiled without contraction
      const float product = scale * static_cast<float>(code - f.centre);
      row[k + j] = f.offset == Offset::kStored ? product + offset : product;
    }
  }
}

}  // namespace paceline
