// The integer product on AMX. A tile of 16 rows and one of 16 outputs give 256 sums of 32 products in one instruction; a
// group's sums then leave the tile for memory, from where sixteen at a time become floats and meet their scales.
//
//   tile 2, 3   codes of rows        [height][group]
//   tile 4, 5   codes of a panel     [group / 4][16 outputs][4 k]
//   tile 0, 1   sums                 [height][16]              of even groups, of odd groups
//
// Sums of a group are two groups old when they are read: meanwhile the tiles work on the next ones.
#include "int8_panel.h"

namespace paceline {
namespace {

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
    for (int i = 0; i < 2; ++i) {
      set(i, height, 64);
      set(2 + i, height, group);
      set(4 + i, group / 4, 64);
    }
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The sums of one group, to `sums` [height][16].
template <class Group, int odd>
PACELINE_INLINE void multiply(const char* x, const char* weight, std::int32_t* sums) {
  constexpr long kRow = Group::kGroup, kLine = 64;
  asm volatile("tilezero %%tmm%c0" : : "i"(odd));
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(x), "r"(kRow), "i"(2 + odd) : "memory");
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(weight + Group::kHead), "r"(kLine), "i"(4 + odd) : "memory");
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(odd), "i"(2 + odd), "i"(4 + odd));
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(sums), "r"(kLine), "i"(odd) : "memory");
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
  alignas(64) std::int32_t sums[2][16 * height];
  Sixteen sum[height];
  begin_sums(run, sum);
  const char *x = run.x, *weight = run.ready;
  multiply<Group, 0>(x, weight, sums[0]);
  if (run.num_groups > 1) multiply<Group, 1>(x + kRecord, weight + Group::kBytes, sums[1]);
  for (std::int64_t g = 0; g < run.num_groups; g += 2, x += 2 * kRecord, weight += 2 * Group::kBytes) {
    add_scaled<Group>(x, weight, sums[0], sum);
    if (g + 2 < run.num_groups) multiply<Group, 0>(x + 2 * kRecord, weight + 2 * Group::kBytes, sums[0]);
    if (g + 1 == run.num_groups) break;
    add_scaled<Group>(x + kRecord, weight + Group::kBytes, sums[1], sum);
    if (g + 3 < run.num_groups) multiply<Group, 1>(x + 3 * kRecord, weight + 3 * Group::kBytes, sums[1]);
  }
  end_sums(run, sum);
}

}  // namespace

void int8_panels_amx(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first,
                     std::int64_t last) {
  const Tiles tiles(rows.height, block_format(task.type).group);
  at_type(task.type, [&](auto type) {
    const RunKernel kernel = at_height<kLeastRowsAmx, kMostRowsAmx>(rows.height, [](auto height) -> RunKernel {
      return run_of_tiles<Ready<decltype(type)::value>, decltype(height)::value>;
    });
    all_runs<type.value, true>(task, rows, at, first, last, kernel);
  });
}

}  // namespace paceline
