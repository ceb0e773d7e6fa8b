// The integer product on AVX-VNNI: what processors without AVX-512 have of it, in half the width.
#include "int8_vnni.h"

namespace paceline {

void int8_panels_avxvnni(const LinearTask& task, const Int8Rows& rows, const char* at, std::int64_t first,
                         std::int64_t last) {
  vnni_panels<kMostRowsAvxVnni>(task, rows, at, first, last);
}

}  // namespace paceline
