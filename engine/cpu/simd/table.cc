#include "engine/cpu/simd/table.h"

namespace ark {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx512 && avx2) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

namespace simd {

const Table& table_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512Table;
    case Isa::kAvx2:
      return kAvx2Table;
    case Isa::kScalar:
      break;
  }
  return kScalarTable;
}

}  // namespace simd
}  // namespace ark
