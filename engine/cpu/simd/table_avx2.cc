#include "engine/cpu/simd/make_table.h"
#include "engine/cpu/simd/vec_avx2.h"

namespace ark::simd {

extern const Table kAvx2Table = make_table<Avx2>(Isa::kAvx2, "avx2", matmul_int8_by_words);

}  // namespace ark::simd
