// What CPUID says of the processor and XGETBV of the system, which must save the registers that a level uses.
// Intel Software Developer's Manual, volume 1, chapters 13 (XSAVE), 14, 15 and 18 (AMX); volume 2, CPUID.
#include "isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

namespace paceline {
namespace {

constexpr const char* kNames[] = {"none", "avx2", "avxvnni", "avx512", "vnni512", "amx"};
constexpr std::int32_t kNumLevels = sizeof(kNames) / sizeof(kNames[0]);

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers found;
  if (__get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d) == 0) return {};
  return found;
}

bool all_of(unsigned word, std::initializer_list<int> bits) {
  for (const int bit : bits)
    if ((word >> bit & 1u) == 0) return false;
  return true;
}

// Registers that the system saves: bits of XCR0.
std::uint64_t saved_registers() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

// Linux gives a process the tiles when it asks (5.16 and later); it may refuse, and other systems' calls fail.
bool tiles_granted() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

struct Machine {
  bool has[kNumLevels] = {true};  // by level
  bool bf16 = false;
};

Machine examine() {
  Machine found;
  const Registers basic = cpuid(1, 0), more = cpuid(7, 0), last = cpuid(7, 1);
  if (!all_of(basic.c, {12, 27, 28, 29})) return found;  // FMA, OSXSAVE, AVX, F16C
  const std::uint64_t saved = saved_registers();
  const auto saves = [&](std::uint64_t bits) { return (saved & bits) == bits; };
  constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  found.has[kAvx2] = saves(kYmm) && all_of(more.b, {5});
  found.has[kAvxVnni] = found.has[kAvx2] && all_of(last.a, {4});
  found.has[kAvx512] = found.has[kAvx2] && saves(kZmm) && all_of(more.b, {16, 17, 30, 31});  // F, DQ, BW, VL
  found.has[kVnni512] = found.has[kAvx512] && all_of(more.c, {11});
  found.bf16 = found.has[kVnni512] && all_of(last.a, {5});
  found.has[kAmx] = found.bf16 && saves(kZmm | kTiles) && all_of(more.d, {22, 24, 25}) && tiles_granted();
  return found;
}

const Machine& machine() {
  static const Machine found = examine();
  return found;
}

Isa highest(std::int32_t cap) {
  for (std::int32_t level = cap < kNumLevels ? cap : kNumLevels - 1; level > 0; --level)
    if (machine_has(level)) return static_cast<Isa>(level);
  return kNone;
}

std::atomic<std::int32_t> current{-1};  // the level in use; -1: not yet asked for

}  // namespace

Isa isa() {
  std::int32_t level = current.load(std::memory_order_relaxed);
  if (level < 0) current.store(level = highest(kNumLevels - 1), std::memory_order_relaxed);
  return static_cast<Isa>(level);
}

bool machine_has(std::int32_t level) { return level >= 0 && level < kNumLevels && machine().has[level]; }

void set_isa(Isa cap) { current.store(highest(cap), std::memory_order_relaxed); }

bool has_bf16_products() { return machine().bf16 && isa() >= kVnni512; }

const char* isa_name(std::int32_t level) { return level >= 0 && level < kNumLevels ? kNames[level] : nullptr; }

}  // namespace paceline

using namespace paceline;

extern "C" {

std::int32_t paceline_cpu_isa() { return isa(); }
std::int32_t paceline_cpu_has_isa(std::int32_t level) { return machine_has(level) ? 1 : 0; }
std::int32_t paceline_cpu_bf16_products() { return has_bf16_products() ? 1 : 0; }
const char* paceline_cpu_isa_name(std::int32_t level) { return isa_name(level); }

// Returns the level that is in use from now on.
std::int32_t paceline_cpu_set_isa(std::int32_t cap) {
  set_isa(static_cast<Isa>(cap));
  return isa();
}

}  // extern "C"
