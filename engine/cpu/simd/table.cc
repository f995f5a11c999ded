#include "engine/cpu/simd/table.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace ark {

namespace simd {

void matmul_bf16_by_dots(const MatMul& a);        // dot_avx512_bf16.cc
void matmul_int8_by_dots(const MatMul& a);        // dot_avx512_vnni.cc
void matmul_bf16_by_tiles(const MatMul& a);       // dot_amx_bf16.cc
void matmul_int8_by_tiles(const MatMul& a);       // dot_amx_int8.cc
void attention_by_tiles(const AttentionRows& a);  // attention_amx_bf16.cc

namespace {

// AVX-512 with instructions of more precisions.
Table with_dots(Isa isa) {
  Table table = kAvx512Table;
  table.isa = isa;
  table.name = kIsaNames[static_cast<std::size_t>(isa)];
  table.matmul_int8 = isa >= Isa::kAvx512Amx ? matmul_int8_by_tiles : matmul_int8_by_dots;
  if (isa >= Isa::kAvx512Bf16) table.matmul_bf16 = matmul_bf16_by_dots;
  if (isa >= Isa::kAvx512Amx) {
    table.matmul_bf16_tiles = matmul_bf16_by_tiles;
    table.attention_bf16_tiles = attention_by_tiles;
  }
  return table;
}

}  // namespace

const Table& table_of(Isa isa) {
  static const Table vnni = with_dots(Isa::kAvx512Vnni), bf16 = with_dots(Isa::kAvx512Bf16),
                     amx = with_dots(Isa::kAvx512Amx);
  switch (isa) {
    case Isa::kAvx512Amx:
      return amx;
    case Isa::kAvx512Bf16:
      return bf16;
    case Isa::kAvx512Vnni:
      return vnni;
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

namespace {

// Whether an instruction for bf16 that `isa` brings adds in the order of its twin: makers say so, and ranks on
// different machines rely on it. Where it does not, the twin is taken.
bool adds_like_its_twin(Isa isa, Precision precision) {
  constexpr int64_t kK = 64, kN = 64;
  const int32_t slabs[] = {0, kK};
  std::vector<uint16_t> w(kK * kN);
  std::vector<float> x(kK), out[2];
  uint32_t state = 1;
  const auto random = [&] { return state = state * 1664525 + 1013904223; };  // Numerical Recipes
  // Either sign, from 2^-8 to 2^8: sums round at every step.
  const auto number = [&] {
    return static_cast<uint16_t>((random() >> 16 & 0x807F) | (119 + (random() >> 8) % 16) << 7);
  };
  for (uint16_t& v : w) v = number();
  for (float& v : x) v = bf16_to_f32(number());
  for (const Isa each : {isa, Isa::kAvx512}) {
    std::vector<float> packed(static_cast<std::size_t>(simd::packed_room(1, kK)));
    std::vector<float>& to = out[each == Isa::kAvx512];
    to.resize(kN);
    simd::MatMul a{
        .x = x.data(), .m = 1, .k = kK, .n = kN, .w = reinterpret_cast<const std::byte*>(w.data())};
    a.stored = DType::kBF16, a.panel = kN, a.slabs = slabs, a.out = to.data(), a.packed = packed.data();
    a.last_row = a.last_panel = 1;
    simd::table_of(each).product(precision)(a);
  }
  return std::memcmp(out[0].data(), out[1].data(), kN * sizeof(float)) == 0;
}

#if defined(__x86_64__)
// clang 14 knows no feature "avx512bf16".
bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 5);
}

// Tiles for bf16 and int8, and the kernel lets this process have them.
bool has_amx() {
  constexpr unsigned kTiles = 1 << 22 | 1 << 24 | 1 << 25;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTiles) == kTiles &&
         syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}
#endif

Isa isa_of_machine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14 knows no feature "f16c"
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const bool vnni = __builtin_cpu_supports("avx512vnni");
  if (avx512 && avx2 && vnni) {
    if (!has_avx512_bf16() || !adds_like_its_twin(Isa::kAvx512Bf16, Precision::kBF16))
      return Isa::kAvx512Vnni;
    const bool amx = has_amx() && adds_like_its_twin(Isa::kAvx512Amx, Precision::kBF16Tiles);
    return amx ? Isa::kAvx512Amx : Isa::kAvx512Bf16;
  }
  if (avx512 && avx2) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

// ARK_ISA asks for less than the machine has: to compare, or to find a fault.
Isa wanted_isa() {
  const char* name = std::getenv("ARK_ISA");
  if (!name || !*name) return Isa::kAvx512Amx;
  std::string known;
  for (std::size_t i = 0; i < kIsaNames.size(); ++i) {
    if (std::strcmp(name, kIsaNames[i]) == 0) return static_cast<Isa>(i);
    known += std::string(i == 0 ? "" : ", ") + kIsaNames[i];
  }
  throw Error(Code::kUsage, "ARK_ISA=" + escaped(name) + " is none of " + known);
}

}  // namespace

Isa best_isa() {
  static const Isa isa = std::min(isa_of_machine(), wanted_isa());
  return isa;
}

// By maker, not by a clock: results depend on it. AMD's cores multiply twice as many pairs as they do numbers of f32,
// Intel's (to model 207) half as many: products of 512 rows take 1.5 times as long there.
Bf16Unit bf16_unit() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (best_isa() >= Isa::kAvx512Amx) return Bf16Unit::kTiles;
  if (best_isa() >= Isa::kAvx512Bf16 && __builtin_cpu_is("amd")) return Bf16Unit::kPairs;
#endif
  return Bf16Unit::kNone;
}

}  // namespace ark
