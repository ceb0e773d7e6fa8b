// Instruction sets: which of them kernels may use in this process.
#pragma once

#include <cstdint>

namespace paceline {

// Each level has the instructions of those below it, but for kAvxVnni: the wider levels have an encoding of their own for
// the same products, and processors exist with the one and not the other. The numbers are known to Python.
enum Isa : std::int32_t {
  kNone = 0,
  kAvx2 = 1,     // AVX2, FMA, F16C
  kAvxVnni = 2,  // kAvx2 + AVX-VNNI: products of bytes added into 32 bits, in registers of 256 bits
  kAvx512 = 3,   // kAvx2 + AVX-512 F, BW, DQ, VL
  kVnni512 = 4,  // kAvx512 + AVX-512 VNNI
  kAmx = 5,      // kVnni512 + AVX-512 BF16, AMX TILE, INT8 and BF16, with Linux' permission to use the tiles
};

// The highest level that the processor and the system have and that is not above the cap.
Isa isa();

// Whether products of pairs of bfloat16 (AVX-512 BF16) may be used: at kVnni512 and above, where the processor has them.
bool has_bf16_products();

// Whether the processor and the system have this level, whatever the cap.
bool machine_has(std::int32_t level);

// Caps the level for the whole process from now on; a level above the machine's is no cap. Not while kernels run.
void set_isa(Isa cap);

// "avx2", "avx512", ...; null for what is no level.
const char* isa_name(std::int32_t level);

}  // namespace paceline
