// mma.sync and ldmatrix, with the fragment layouts of the PTX ISA.
#include <cstring>

#include "tests/emulator/collective.h"

namespace ark::emulator {
namespace {

using Row = float __attribute__((vector_size(32)));  // 8 columns

float as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline float half_to_float(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  return as_float(sign) + (sign ? -1.0f : 1.0f) * (as_float(magnitude << 13) * 0x1p112f);
}

template <bool kHalf>
inline float element(uint32_t bits) {
  return kHalf ? half_to_float(bits) : as_float(bits << 16);
}

const MmaOperands& operands(const Warp& warp, int lane) {
  return *static_cast<const MmaOperands*>(warp.arguments[lane]);
}

// Ascending k, in f32: the hardware's order is not specified.
template <bool kHalf>
__attribute__((target_clones("arch=haswell", "default"))) void multiply(Warp& warp) {
  const int rows = operands(warp, 0).rows, columns = operands(warp, 0).columns;
  alignas(32) float b[16][8];
  float a[16][16];
  for (int j = 0; j < columns; j++) {
    for (int lane = 0; lane < 32; lane++) {
      const unsigned* r = operands(warp, lane).b + 2 * j;
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 2; i++) {
        b[2 * t + 8 * i][g] = element<kHalf>(r[i] & 0xffff);
        b[2 * t + 8 * i + 1][g] = element<kHalf>(r[i] >> 16);
      }
    }
    for (int i = 0; i < rows; i++) {
      Row d[16];
      for (int lane = 0; lane < 32; lane++) {
        const unsigned* r = operands(warp, lane).a + 4 * i;
        const float* c = operands(warp, lane).d + 4 * (i * columns + j);
        const int g = lane / 4, t = lane % 4;
        for (int q = 0; q < 4; q++) {
          a[g + 8 * (q % 2)][2 * t + 8 * (q / 2)] = element<kHalf>(r[q] & 0xffff);
          a[g + 8 * (q % 2)][2 * t + 8 * (q / 2) + 1] = element<kHalf>(r[q] >> 16);
          d[g + 8 * (q / 2)][2 * t + q % 2] = c[q];
        }
      }
      for (int m = 0; m < 16; m++) {
        for (int k = 0; k < 16; k++) d[m] += a[m][k] * *reinterpret_cast<const Row*>(b[k]);
      }
      for (int lane = 0; lane < 32; lane++) {
        float* c = operands(warp, lane).d + 4 * (i * columns + j);
        const int g = lane / 4, t = lane % 4;
        for (int q = 0; q < 4; q++) c[q] = d[g + 8 * (q / 2)][2 * t + q % 2];
      }
    }
  }
}

void mma(Warp& warp) {
  Core& core = *Core::current;
  if (warp.count != 32) core.fail(Fault::kDivergence, "mma in a warp of fewer lanes", warp.collective_at);
  const MmaOperands& first = operands(warp, 0);
  core.counts.matrix_products += static_cast<uint64_t>(first.rows) * first.columns;
  first.is_f16 ? multiply<true>(warp) : multiply<false>(warp);
}

struct LdmatrixArgument {
  unsigned* r;
  const void* row;
};

template <bool kTransposed>
void ldmatrix(Warp& warp) {
  if (warp.count != 32) {
    Core::current->fail(Fault::kDivergence, "ldmatrix in a warp of fewer lanes", warp.collective_at);
  }
  const auto* lanes = warp.arguments.data();
  auto at = [&](int matrix, int row, int column) {
    uint16_t v;
    const auto& a = *static_cast<const LdmatrixArgument*>(lanes[8 * matrix + row]);
    std::memcpy(&v, static_cast<const uint16_t*>(a.row) + column, 2);
    return static_cast<unsigned>(v);
  };
  for (int lane = 0; lane < 32; lane++) {
    unsigned* r = static_cast<LdmatrixArgument*>(lanes[lane])->r;
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int m = 0; m < 4; m++) {
      r[m] = kTransposed ? at(m, t, g) | at(m, t + 1, g) << 16 : at(m, g, t) | at(m, g, t + 1) << 16;
    }
  }
}

}  // namespace

extern "C" {

void ark_emulator_mma(const MmaOperands* o, Site at) {
  collective("mma", const_cast<MmaOperands*>(o), at, mma);
}

// The warp reads all 32 rows; each lane answers for the one whose address it gives.
void ark_emulator_ldmatrix(unsigned* r, const void* row, bool transposed, Site at) {
  Core& core = *Core::current;
  core.check_shared(row, 16, 16, at);
  core.touch(row, 16, Access::kCopySource, ARK_EMULATOR_PLACE, at);
  LdmatrixArgument a{r, row};
  transposed ? collective("ldmatrix.trans", &a, at, ldmatrix<true>)
             : collective("ldmatrix", &a, at, ldmatrix<false>);
}

}  // extern "C"

}  // namespace ark::emulator
