// Element types, with the numbering of onnx.proto TensorProto.DataType, how their elements lie in memory, and
// their conversions. A new type: its number here, its row in dtype.cc, its case in with_element().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ark {

enum class DType : uint8_t {
  kUndefined = 0,
  kF32 = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kString = 8,
  kBool = 9,
  kF16 = 10,
  kF64 = 11,
  kU32 = 12,
  kU64 = 13,
  kBF16 = 16,
  kF8E4M3 = 17,
  kU4 = 21,
  kI4 = 22,
  kU2 = 25,
  kI2 = 26,
  // Not in onnx.proto, and of no tensor: codes of four bits that stand for the numbers of a table, bitsandbytes' two.
  kNF4 = 200,
  kFP4 = 201,
};

// The type of that number in onnx.proto; kUndefined if it is none of ours.
DType dtype_numbered(int64_t number);
// Bits of one element: 4 for kU4/kI4 and codes, 2 for kU2/kI2 (packed, low bits first), 64 for kString (base/texts.h).
int bits_of(DType type);
// Bytes that `count` elements take, rounded up to whole bytes. count >= 0.
int64_t bytes_of(DType type, int64_t count);
// "f32", "i64", "bf16", ... and back; kUndefined if `name` is not one of them.
std::string_view name_of(DType type);
DType dtype_from_name(std::string_view name);
bool is_floating(DType type);      // f8e4m3, f16, bf16, f32, f64
bool is_narrow_float(DType type);  // floating, of fewer bits than f32: f32 holds all its numbers
bool is_integer(DType type);       // all signed and unsigned integers, not bool
bool is_signed(DType type);        // the integers that have a sign
// The 16 numbers that kNF4's or kFP4's codes stand for; null for any other type.
const float* numbers_of(DType type);

// IEEE 754 binary16 and bfloat16; to-narrow rounds to nearest even and keeps NaN a NaN.
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t f32_to_bf16(float value) {
  const auto f = std::bit_cast<uint32_t>(value);
  if ((f & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(f >> 16 | 0x40);
  return static_cast<uint16_t>((f + 0x7FFF + (f >> 16 & 1)) >> 16);
}
// FLOAT8E4M3FN: exponent bias 7, no infinities, 0x7f and 0xff NaN. To it, what is beyond 448 becomes 448 of its sign,
// as ONNX's Cast does unless told otherwise.
float f8e4m3_to_f32(uint8_t bits);
uint8_t f32_to_f8e4m3(float value);

// ---- elements in memory: load() and store() of element i, in row-major order; Value is what store() takes

template <typename T>
struct WholeElement {
  using Value = T;
  static T load(const std::byte* data, int64_t i) { return reinterpret_cast<const T*>(data)[i]; }
  static void store(std::byte* data, int64_t i, T value) { reinterpret_cast<T*>(data)[i] = value; }
};
struct BoolElement {
  using Value = bool;
  static uint8_t load(const std::byte* data, int64_t i) { return std::to_integer<uint8_t>(data[i]); }
  static void store(std::byte* data, int64_t i, bool value) { data[i] = std::byte{value}; }
};
template <typename Bits, float (*kWiden)(Bits), Bits (*kNarrow)(float)>
struct NarrowElement {
  using Value = float;
  static float load(const std::byte* data, int64_t i) { return kWiden(WholeElement<Bits>::load(data, i)); }
  static void store(std::byte* data, int64_t i, float value) {
    WholeElement<Bits>::store(data, i, kNarrow(value));
  }
};
// Elements share a byte: two threads must not store to one. store() keeps the low kBits bits.
template <int kBits, bool kSigned>
struct PackedElement {
  using Value = int64_t;
  static constexpr int kEach = 8 / kBits, kMask = (1 << kBits) - 1, kSign = kSigned ? 1 << (kBits - 1) : 0;
  static int load(const std::byte* data, int64_t i) {
    const int field = std::to_integer<int>(data[i / kEach] >> (i % kEach * kBits)) & kMask;
    return (field ^ kSign) - kSign;
  }
  static void store(std::byte* data, int64_t i, int64_t value) {
    const int shift = static_cast<int>(i % kEach * kBits);
    data[i / kEach] = (data[i / kEach] & ~std::byte(kMask << shift)) | std::byte((value & kMask) << shift);
  }
};

// The nearest number of that type.
inline float rounded_to_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
inline float rounded_to_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// f(element) with the element struct of `type`; otherwise() for types without numbers.
template <typename F, typename Otherwise>
auto with_element(DType type, F&& f, Otherwise&& otherwise) -> decltype(f(WholeElement<float>{})) {
  switch (type) {
    case DType::kF32:
      return f(WholeElement<float>{});
    case DType::kF64:
      return f(WholeElement<double>{});
    case DType::kF16:
      return f(NarrowElement<uint16_t, f16_to_f32, f32_to_f16>{});
    case DType::kBF16:
      return f(NarrowElement<uint16_t, bf16_to_f32, f32_to_bf16>{});
    case DType::kF8E4M3:
      return f(NarrowElement<uint8_t, f8e4m3_to_f32, f32_to_f8e4m3>{});
    case DType::kBool:
      return f(BoolElement{});
    case DType::kU8:
      return f(WholeElement<uint8_t>{});
    case DType::kI8:
      return f(WholeElement<int8_t>{});
    case DType::kU16:
      return f(WholeElement<uint16_t>{});
    case DType::kI16:
      return f(WholeElement<int16_t>{});
    case DType::kU32:
      return f(WholeElement<uint32_t>{});
    case DType::kI32:
      return f(WholeElement<int32_t>{});
    case DType::kU64:
      return f(WholeElement<uint64_t>{});
    case DType::kI64:
      return f(WholeElement<int64_t>{});
    case DType::kU4:
      return f(PackedElement<4, false>{});
    case DType::kI4:
      return f(PackedElement<4, true>{});
    case DType::kU2:
      return f(PackedElement<2, false>{});
    case DType::kI2:
      return f(PackedElement<2, true>{});
    case DType::kUndefined:
    case DType::kString:
    case DType::kNF4:
    case DType::kFP4:
      break;
  }
  return otherwise();
}

// Elements first, first + stride, ... of dense storage, `count` of them, as f32 (rounded, where it has fewer
// bits) and back. Throw Error(kInternal) for types without numbers; codes, the first in a byte's low bits, only load.
void load_f32(DType type, const std::byte* data, int64_t first, int64_t stride, int64_t count, float* to);
void store_f32(DType type, std::byte* data, int64_t first, int64_t count, const float* from);

}  // namespace ark
