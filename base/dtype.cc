#include "base/dtype.h"

#include <array>
#include <bit>
#include <utility>

#include "base/error.h"

namespace ark {
namespace {

struct Entry {
  DType type;
  std::string_view name;
  int bits;
};
constexpr std::array kEntries = {
    Entry{DType::kUndefined, "undefined", 0},
    Entry{DType::kF32, "f32", 32},
    Entry{DType::kU8, "u8", 8},
    Entry{DType::kI8, "i8", 8},
    Entry{DType::kU16, "u16", 16},
    Entry{DType::kI16, "i16", 16},
    Entry{DType::kI32, "i32", 32},
    Entry{DType::kI64, "i64", 64},
    Entry{DType::kString, "string", 0},
    Entry{DType::kBool, "bool", 8},
    Entry{DType::kF16, "f16", 16},
    Entry{DType::kF64, "f64", 64},
    Entry{DType::kU32, "u32", 32},
    Entry{DType::kU64, "u64", 64},
    Entry{DType::kBF16, "bf16", 16},
    Entry{DType::kU4, "u4", 4},
    Entry{DType::kI4, "i4", 4},
};

const Entry& entry(DType type) {
  for (const Entry& e : kEntries)
    if (e.type == type) return e;
  return kEntries[0];
}

}  // namespace

int bits_of(DType type) { return entry(type).bits; }
int64_t bytes_of(DType type, int64_t count) {
  const int bits = bits_of(type);
  if (bits < 8) return count / 8 * bits + (count % 8 * bits + 7) / 8;
  int64_t bytes;
  if (__builtin_mul_overflow(count, int64_t{bits / 8}, &bytes))
    throw Error(Code::kBadModel, "tensor of more than 2^63 bytes");
  return bytes;
}
std::string_view name_of(DType type) { return entry(type).name; }
DType dtype_from_name(std::string_view name) {
  for (const Entry& e : kEntries)
    if (e.name == name) return e.type;
  return DType::kUndefined;
}
bool is_floating(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kF64;
}
bool is_integer(DType type) {
  return type != DType::kUndefined && type != DType::kString && type != DType::kBool && !is_floating(type);
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

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t f32_to_bf16(float value) {
  uint32_t f = std::bit_cast<uint32_t>(value);
  if ((f & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(f >> 16 | 0x40);
  return static_cast<uint16_t>((f + 0x7FFF + (f >> 16 & 1)) >> 16);
}

}  // namespace ark
