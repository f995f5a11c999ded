#include "base/dtype.h"

#include <bit>
#include <string>

#include "base/error.h"
#include "base/number_tables.h"

namespace ark {
namespace {

enum class Kind : uint8_t { kNone, kBool, kSigned, kUnsigned, kFloating, kCodes };

struct TypeRow {
  DType type;
  std::string_view name;
  int bits;
  Kind kind;
};
constexpr TypeRow kRows[] = {
    {DType::kUndefined, "undefined", 0, Kind::kNone},
    {DType::kF32, "f32", 32, Kind::kFloating},
    {DType::kU8, "u8", 8, Kind::kUnsigned},
    {DType::kI8, "i8", 8, Kind::kSigned},
    {DType::kU16, "u16", 16, Kind::kUnsigned},
    {DType::kI16, "i16", 16, Kind::kSigned},
    {DType::kI32, "i32", 32, Kind::kSigned},
    {DType::kI64, "i64", 64, Kind::kSigned},
    {DType::kString, "string", 64, Kind::kNone},
    {DType::kBool, "bool", 8, Kind::kBool},
    {DType::kF16, "f16", 16, Kind::kFloating},
    {DType::kF64, "f64", 64, Kind::kFloating},
    {DType::kU32, "u32", 32, Kind::kUnsigned},
    {DType::kU64, "u64", 64, Kind::kUnsigned},
    {DType::kBF16, "bf16", 16, Kind::kFloating},
    {DType::kF8E4M3, "f8e4m3", 8, Kind::kFloating},
    {DType::kU4, "u4", 4, Kind::kUnsigned},
    {DType::kI4, "i4", 4, Kind::kSigned},
    {DType::kU2, "u2", 2, Kind::kUnsigned},
    {DType::kI2, "i2", 2, Kind::kSigned},
    {DType::kNF4, "nf4", 4, Kind::kCodes},
    {DType::kFP4, "fp4", 4, Kind::kCodes},
};

const TypeRow& row(DType type) {
  for (const TypeRow& r : kRows)
    if (r.type == type) return r;
  return kRows[0];
}

[[noreturn]] void no_numbers(DType type) {
  throw Error(Code::kInternal, "elements of type " + std::string(name_of(type)) + " are no numbers");
}

}  // namespace

DType dtype_numbered(int64_t number) {
  for (const TypeRow& r : kRows)
    if (static_cast<int64_t>(r.type) == number && r.kind != Kind::kCodes) return r.type;
  return DType::kUndefined;
}

int bits_of(DType type) { return row(type).bits; }
int64_t bytes_of(DType type, int64_t count) {
  const int bits = bits_of(type);
  if (bits < 8) return count / 8 * bits + (count % 8 * bits + 7) / 8;
  int64_t bytes;
  if (__builtin_mul_overflow(count, int64_t{bits / 8}, &bytes))
    throw Error(Code::kBadModel, "tensor of more than 2^63 bytes");
  return bytes;
}
std::string_view name_of(DType type) { return row(type).name; }
DType dtype_from_name(std::string_view name) {
  for (const TypeRow& r : kRows)
    if (r.name == name) return r.type;
  return DType::kUndefined;
}
bool is_floating(DType type) { return row(type).kind == Kind::kFloating; }
bool is_narrow_float(DType type) { return is_floating(type) && bits_of(type) < 32; }
bool is_integer(DType type) { return is_signed(type) || row(type).kind == Kind::kUnsigned; }
bool is_signed(DType type) { return row(type).kind == Kind::kSigned; }
const float* numbers_of(DType type) {
  return type == DType::kNF4 ? kNumbersOfNF4 : type == DType::kFP4 ? kNumbersOfFP4 : nullptr;
}

void load_f32(DType type, const std::byte* data, int64_t first, int64_t stride, int64_t count, float* to) {
  if (const float* numbers = numbers_of(type)) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = numbers[PackedElement<4, false>::load(data, first + i * stride)];
    return;
  }
  with_element(
      type,
      [&](auto element) {
        for (int64_t i = 0; i < count; ++i)
          to[i] = static_cast<float>(element.load(data, first + i * stride));
      },
      [&] { no_numbers(type); });
}
void store_f32(DType type, std::byte* data, int64_t first, int64_t count, const float* from) {
  with_element(
      type,
      [&](auto element) {
        using Value = typename decltype(element)::Value;
        for (int64_t i = 0; i < count; ++i) element.store(data, first + i, static_cast<Value>(from[i]));
      },
      [&] { no_numbers(type); });
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  uint32_t exponent = (h >> 10) & 0x1F;
  uint32_t mantissa = h & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 113;  // subnormal: shift the leading one into place
    while (!(mantissa & 0x400)) mantissa <<= 1, --exponent;
    return std::bit_cast<float>(sign | exponent << 23 | (mantissa & 0x3FF) << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = f >> 16 & 0x8000;
  const uint32_t magnitude = f & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);
  uint32_t mantissa, shift, base;
  if (magnitude < 0x38800000) {  // subnormal or zero in f16
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return static_cast<uint16_t>(sign);
    mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    shift = 126 - exponent;
    base = 0;
  } else {
    mantissa = magnitude & 0x7FFFFF;
    shift = 13;
    base = ((magnitude >> 23) - 112) << 10;
  }
  uint32_t result = base + (mantissa >> shift);
  const uint32_t rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  if (rest > half || (rest == half && (result & 1))) ++result;  // may carry into infinity: correct
  return static_cast<uint16_t>(sign | result);
}

float f8e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24, magnitude = bits & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  // As f16, whose exponent has a bias of 15 instead of 7, and 2^8 times that: exact, subnormal or not.
  const float value = f16_to_f32(static_cast<uint16_t>(magnitude << 7)) * 256.f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

uint8_t f32_to_f8e4m3(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value), magnitude = f & 0x7FFFFFFF;
  const uint32_t sign = f >> 24 & 0x80;
  if (magnitude > 0x7F800000) return static_cast<uint8_t>(sign | 0x7F);
  if (magnitude >= 0x43E00000) return static_cast<uint8_t>(sign | 0x7E);  // 448
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 117) return static_cast<uint8_t>(sign);  // below 2^-10, half of the least
  // Below 2^-6 subnormal: the unit is 2^-9.
  const bool is_subnormal = exponent < 121;
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | (is_subnormal ? 0x800000u : 0);
  const uint32_t shift = is_subnormal ? 141 - exponent : 20;
  uint32_t result = (is_subnormal ? 0 : (exponent - 120) << 3) + (mantissa >> shift);
  const uint32_t rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  if (rest > half || (rest == half && (result & 1))) ++result;  // up to 448 at most
  return static_cast<uint8_t>(sign | result);
}

}  // namespace ark
