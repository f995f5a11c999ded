// What a stored type of cached keys and values is: its facts, how a token's key or value of one head becomes codes, and
// how sixteen codes become f32. Memory planning, the validator, appending and attention on the CPU, and the CUDA
// sources ask here; nothing else tells these types apart. A new type: a struct below and its place in the list (on a
// GPU also its element in engine/cuda/bodies/kv.h).
//
// Numbers (f32, f16, bf16) are rounded to nearest even when a token is appended; what f16 cannot hold becomes infinite.
// Codes (int8, fp8_e4m3) have a scale for each token and head, s = max|x| / largest: the code is x * (largest /
// max|x|), rounded to nearest even, and stands for code * s. Where max|x| < kKvLeast all are zeros; where it is
// infinite or NaN the codes are zeros and s is that, so that what they stand for is NaN. Attention multiplies whole
// sums over a key, and the weight of a value, by s. All that follows is f32, as if the numbers had been computed so.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "engine/program/device_contract.h"
#include "engine/program/weight_codec.h"

namespace ark {

struct KvCodec {
  DType type;             // of the buffers of pages
  std::string_view name;  // as options have it: "fp8_e4m3"
  KvFormat format;
  const char* device;  // the element type in CUDA sources (engine/cuda/bodies/kv.h)
};

// Null if pages cannot hold the type.
const KvCodec* kv_codec_of(DType stored);
std::span<const KvCodec> kv_codecs();

// A token's key or value of one head: element i at `first` + i * `stride` elements of `codes`.
struct KvPlace {
  std::byte* codes = nullptr;
  int64_t first = 0, stride = 1;
  float* scale = nullptr;  // of types with scales
};
void store_kv(const KvCodec& codec, const KvPlace& to, const float* x, int64_t dim);
void load_kv(const KvCodec& codec, const KvPlace& from, float* x, int64_t dim);

// ---- one struct a type. narrow(), widen(): one code. load<T>(): sixteen, T a vector type of sixteen lanes
// (engine/cpu/simd/vec_scalar.h).

struct F32Kv : F32Weights {
  static constexpr KvCodec kCodec{DType::kF32, "f32", {32}, "float"};
  static float narrow(float x) { return x; }
  static float widen(float code) { return code; }
};

struct F16Kv : F16Weights {
  static constexpr KvCodec kCodec{DType::kF16, "f16", {16}, "dev::f16"};
  static uint16_t narrow(float x) { return f32_to_f16(x); }
  static float widen(uint16_t code) { return f16_to_f32(code); }
};

struct BF16Kv : BF16Weights {
  static constexpr KvCodec kCodec{DType::kBF16, "bf16", {16}, "dev::bf16"};
  static uint16_t narrow(float x) { return f32_to_bf16(x); }
  static float widen(uint16_t code) { return bf16_to_f32(code); }
};

struct Int8Kv {
  static constexpr KvCodec kCodec{DType::kI8, "int8", {8, 127}, "Int8"};
  using Element = int8_t;
  static int8_t narrow(float x) { return static_cast<int8_t>(std::nearbyint(x)); }
  static float widen(int8_t code) { return code; }
  template <class T>
  static auto load(const int8_t* p) {
    return T::load_i8(p);
  }
};

struct F8E4M3Kv : F8E4M3Weights {
  static constexpr KvCodec kCodec{DType::kF8E4M3, "fp8_e4m3", {8, 448}, "Fp8E4M3"};
  static uint8_t narrow(float x) { return f32_to_f8e4m3(x); }
  static float widen(uint8_t code) { return f8e4m3_to_f32(code); }
};

using KvCodecs = CodecList<F32Kv, F16Kv, BF16Kv, Int8Kv, F8E4M3Kv>;

// Calls f(struct) with the one that holds `stored`, which must be listed.
template <class F, class... C>
void with_kv(DType stored, CodecList<C...>, F&& f) {
  (void)((stored == C::kCodec.type && (f(C{}), true)) || ...);
}
template <class F>
void with_kv(DType stored, F&& f) {
  with_kv(stored, KvCodecs{}, f);
}

}  // namespace ark
