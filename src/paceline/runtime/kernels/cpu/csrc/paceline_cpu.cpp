// The C interface of the library and of weights: packing, unpacking, rows.
#include "bf16.h"

using namespace paceline;

namespace {

// Where output `n` of a panel stands among the kPanel weights of one k.
std::int64_t position(std::int64_t n, std::int32_t type) { return type == kFloat32 ? n : 2 * (n % 8) + n / 8; }

template <typename T>
void pack_rows(const T* weight, T* packed, std::int64_t first, std::int64_t num_rows, std::int64_t num_inputs,
               std::int32_t type) {
  for (std::int64_t n = first; n < first + num_rows; ++n) {
    T* at = packed + (n / kPanel) * num_inputs * kPanel + position(n % kPanel, type);
    const T* row = weight + (n - first) * num_inputs;
    for (std::int64_t k = 0; k < num_inputs; ++k) at[k * kPanel] = row[k];
  }
}

template <typename T>
void unpack_row(const T* packed, T* row, std::int64_t n, std::int64_t num_inputs, std::int32_t type) {
  const T* at = packed + (n / kPanel) * num_inputs * kPanel + position(n % kPanel, type);
  for (std::int64_t k = 0; k < num_inputs; ++k) row[k] = at[k * kPanel];
}

}  // namespace

extern "C" {

// Digest of the sources this library was built from.
const char* paceline_cpu_sources() { return SOURCE_DIGEST; }

// Rows [first, first + num_rows) of a weight, from [num_rows, num_inputs] in the packed type. `packed` starts zeroed.
void paceline_cpu_pack(const void* weight, void* packed, std::int64_t first, std::int64_t num_rows,
                       std::int64_t num_inputs, std::int32_t type) {
  if (type == kFloat32)
    pack_rows(static_cast<const float*>(weight), static_cast<float*>(packed), first, num_rows, num_inputs, type);
  else
    pack_rows(static_cast<const std::uint16_t*>(weight), static_cast<std::uint16_t*>(packed), first, num_rows,
              num_inputs, type);
}

// The type that GGUF blocks of this kind are packed as, to meet `activations` (Activations); -1: they cannot be.
std::int32_t paceline_cpu_packed_type(std::int32_t ggml, std::int32_t activations) {
  return packed_type(ggml, static_cast<Activations>(activations));
}

std::int64_t paceline_cpu_panel_bytes(std::int32_t type, std::int64_t num_inputs) {
  return static_cast<std::int64_t>(panel_bytes(static_cast<WeightType>(type), num_inputs));
}

// Rows [first, first + num_rows) of a weight, from [num_rows, num_inputs] floats, rounded as kRowsBFloat16. `packed` starts
// zeroed.
void paceline_cpu_pack_bf16_rows(const void* weight, void* packed, std::int64_t first, std::int64_t num_rows,
                                 std::int64_t num_inputs) {
  pack_bf16_rows(static_cast<const float*>(weight), static_cast<std::uint8_t*>(packed), first, num_rows, num_inputs);
}

// Rows [first, first + num_rows) of a weight from their GGUF blocks, as `type`. `packed` starts zeroed.
void paceline_cpu_pack_blocks(const void* blocks, void* packed, std::int64_t first, std::int64_t num_rows,
                              std::int64_t num_inputs, std::int32_t ggml, std::int32_t type) {
  pack_blocks(static_cast<const std::uint8_t*>(blocks), static_cast<std::uint8_t*>(packed), first, num_rows, num_inputs,
              ggml, static_cast<WeightType>(type));
}

// rows[i] = row ids[i] of the weight, quantised ones as float32. Stops at the first id that is none; returns how many were copied.
std::int64_t paceline_cpu_gather(const void* packed, const std::int64_t* ids, void* rows, std::int64_t count,
                                 std::int64_t num_outputs, std::int64_t num_inputs, std::int32_t type) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= num_outputs) return i;
    if (type >= kFirstBlocks)
      unpack_blocks(static_cast<const std::uint8_t*>(packed), static_cast<float*>(rows) + i * num_inputs, ids[i],
                    num_inputs, static_cast<WeightType>(type));
    else if (type == kFloat32)
      unpack_row(static_cast<const float*>(packed), static_cast<float*>(rows) + i * num_inputs, ids[i], num_inputs,
                 type);
    else
      unpack_row(static_cast<const std::uint16_t*>(packed), static_cast<std::uint16_t*>(rows) + i * num_inputs, ids[i],
                 num_inputs, type);
  }
  return count;
}

}  // extern "C"
