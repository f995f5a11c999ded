#include "engine/cpu/simd/make_table.h"
#include "engine/cpu/simd/vec_avx512.h"

namespace ark::simd {

extern const Table kAvx512Table = make_table<Avx512>(Isa::kAvx512, "avx512");

}  // namespace ark::simd
