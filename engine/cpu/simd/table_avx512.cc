// GCC 12 warns of its own intrinsics, whose undefined operands are deliberate (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "engine/cpu/simd/make_table.h"
#include "engine/cpu/simd/vec_avx512.h"

namespace ark::simd {

extern const Table kAvx512Table = make_table<Avx512>(Isa::kAvx512, "avx512", matmul_int8_by_words);

}  // namespace ark::simd
