#include "engine/cpu/simd/make_table.h"
#include "engine/cpu/simd/vec_scalar.h"

namespace ark::simd {

extern const Table kScalarTable = make_table<Scalar>(Isa::kScalar, "scalar");

}  // namespace ark::simd
