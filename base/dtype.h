// Element types, with the numbering of onnx.proto TensorProto.DataType, and their conversions.
#pragma once

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
  kU4 = 21,
  kI4 = 22,
};

// Bits of one element: 4 for kU4/kI4 (packed two a byte, low nibble first), 0 for kUndefined and kString.
int bits_of(DType type);
// Bytes that `count` elements take, rounded up to whole bytes. count >= 0.
int64_t bytes_of(DType type, int64_t count);
// "f32", "i64", "bf16", ... and back; kUndefined if `name` is not one of them.
std::string_view name_of(DType type);
DType dtype_from_name(std::string_view name);
bool is_floating(DType type);  // f16, bf16, f32, f64
bool is_integer(DType type);   // all signed and unsigned integers, not bool

// IEEE 754 binary16 and bfloat16; to-narrow rounds to nearest even and keeps NaN a NaN.
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);

}  // namespace ark
