// The integer product on AMX. A tile of 16 rows and one of 16 outputs give 256 sums of 32 products in one instruction; a
// group's sums then leave the tile for memory, from where sixteen at a time become floats and meet their scales.
//
//   tiles 0 to 3   sums                 [height][16]              of four groups in turn: one takes some 50 cycles
//   tiles 4, 5     codes of rows        [height][group]
//   tiles 6, 7     codes of a panel     [group / 4][16 outputs][4 k]
//
// All groups of a run pass the tiles before the first sums are read. Taking turns would be slower: a sum that has just been
// stored cannot be read at once, and while a tile is at work a core has one unit of two for floats of 512 bits.
#include "int8_panel.h"

namespace paceline {
namespace {

constexpr std::int64_t kMostGroups = 18;  // of a run: 18 KiB of sums beside 24 KiB of codes, in a first-level cache of 48

// Tiles belong to a thread: they are set before use and given back, which spares the system from saving them.
struct Tiles {
  struct alignas(64) Shape {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };

  Tiles(int height, int group) {
    Shape shape;
    const auto set = [&](int tile, int rows, int bytes) {
      shape.rows[tile] = static_cast<std::uint8_t>(rows);
      shape.row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    };
    for (int i = 0; i < 4; ++i) set(i, height, 64);
    for (int i = 4; i < 6; ++i) {
      set(i, height, group);
      set(2 + i, group / 4, 64);
    }
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The sums of one group, in tile `turn`.
template <class Group, int turn>
PACELINE_INLINE void multiply(const char* x, const char* weight) {
  constexpr int rows = 4 + turn % 2, codes = 6 + turn % 2;
  constexpr long kRow = Group::kGroup, kLine = 64;
  asm volatile("tilezero %%tmm%c0" : : "i"(turn));
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(x), "r"(kRow), "i"(rows) : "memory");
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(weight + Group::kHead), "r"(kLine), "i"(codes) : "memory");
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(turn), "i"(rows), "i"(codes));
}

template <int turn>
PACELINE_INLINE void put_sums(std::int32_t* sums) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(sums), "r"(64L), "i"(turn) : "memory");
}

// Their scales.
template <class Group, int height>
PACELINE_INLINE void add_scaled(const char* x, const char* weight, const std::int32_t* sums, Sixteen (&sum)[height]) {
  const float* d = reinterpret_cast<const float*>(x + height * Group::kGroup);
  const Sixteen scale = Group::scale(weight);
#pragma GCC unroll 16
  for (int r = 0; r < height; ++r)
    sum[r] = fma(scale * all<Sixteen>(d[r]), as_floats(Ints{_mm512_load_si512(sums + 16 * r)}), sum[r]);
  if constexpr (Group::kStored) {
    const Sixteen offset = Group::offset(weight);
#pragma GCC unroll 16
    for (int r = 0; r < height; ++r) sum[r] = fma(offset, all<Sixteen>(d[height + r]), sum[r]);
  }
}

template <class Group, int height>
void run_of_tiles(const Run& run) {
  constexpr std::size_t kRecord = height * (Group::kGroup + kRecordTail);
  alignas(64) std::int32_t sums[kMostGroups][16 * height];
  const std::int64_t n = run.num_groups;
  const auto step = [&](auto turn, std::int64_t g) {
    if (g < n) multiply<Group, turn>(run.x + kRecord * g, run.ready + Group::kBytes * g);
    if (g >= 3 && g < n + 3) put_sums<(turn + 1) % 4>(sums[g - 3]);
  };
  for (std::int64_t g = 0; g < n + 3; g += 4) {
    step(std::integral_constant<int, 0>{}, g);
    step(std::integral_constant<int, 1>{}, g + 1);
    step(std::integral_constant<int, 2>{}, g + 2);
    step(std::integral_constant<int, 3>{}, g + 3);
  }
  Sixteen sum[height];
  begin_sums(run, sum);
  for (std::int64_t g = 0; g < n; ++g) {
    fetch_next(run, g);
    add_scaled<Group>(run.x + kRecord * g, run.ready + Group::kBytes * g, sums[g], sum);
  }
  end_sums(run, sum);
}

}  // namespace

void int8_panels_amx(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first,
                     std::int64_t last) {
  const Tiles tiles(rows.height, block_format(task.type).group);
  at_type(task.type, [&](auto type) {
    const RunKernel kernel = at_height<kLeastRowsAmx, kMostRowsAmx>(rows.height, [](auto height) -> RunKernel {
      return run_of_tiles<Ready<decltype(type)::value, true>, decltype(height)::value>;
    });
    all_runs<type.value, true>(task, rows, at, first, last, kMostGroups, kernel);
  });
}

}  // namespace paceline
