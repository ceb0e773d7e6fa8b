// The integer product on AVX-512 VNNI: 64 products of bytes and their sums in one instruction.
#include "int8_vnni.h"

namespace paceline {

void int8_panels_vnni512(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first,
                         std::int64_t last) {
  vnni_panels<kMostRowsVnni512>(task, rows, at, first, last);
}

}  // namespace paceline
