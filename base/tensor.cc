#include "base/tensor.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace ark {

int64_t element_count(std::span<const int64_t> dims) {
  int64_t n = 1;
  bool zero = false;
  for (int64_t d : dims) {
    if (d < 0) throw Error(Code::kBadModel, "negative dimension " + std::to_string(d));
    if (d == 0)
      zero = true;
    else if (n > (int64_t{1} << 62) / d)
      throw Error(Code::kBadModel, "tensor of more than 2^62 elements");
    else
      n *= d;
  }
  return zero ? 0 : n;
}

std::shared_ptr<std::byte> aligned_bytes(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  void* p = bytes < (int64_t{1} << 46)
                ? std::aligned_alloc(64, (static_cast<std::size_t>(bytes) + 63) / 64 * 64)
                : nullptr;
  if (!p) throw Error(Code::kExhausted, "cannot allocate " + std::to_string(bytes) + " bytes");
  return {static_cast<std::byte*>(p), [](std::byte* b) { std::free(b); }};
}

Tensor Tensor::empty(DType dtype, Dims dims) {
  Tensor t{dtype, std::move(dims), nullptr};
  t.data = aligned_bytes(t.bytes());
  return t;
}

Tensor Tensor::zeros(DType dtype, Dims dims) {
  Tensor t = empty(dtype, std::move(dims));
  if (t.data) std::memset(t.data.get(), 0, static_cast<std::size_t>(t.bytes()));
  return t;
}

namespace {
// Calls `f` with element i of `t` in its own C++ type.
template <typename F>
auto visit_element(const Tensor& t, int64_t i, F&& f) {
  const auto nibble = [&] { return std::to_integer<int>(t.as<std::byte>()[i / 2] >> (i % 2 * 4)) & 15; };
  switch (t.dtype) {
    case DType::kF32:
      return f(t.as<float>()[i]);
    case DType::kF64:
      return f(t.as<double>()[i]);
    case DType::kF16:
      return f(f16_to_f32(t.as<uint16_t>()[i]));
    case DType::kBF16:
      return f(bf16_to_f32(t.as<uint16_t>()[i]));
    case DType::kU8:
    case DType::kBool:
      return f(t.as<uint8_t>()[i]);
    case DType::kI8:
      return f(t.as<int8_t>()[i]);
    case DType::kU16:
      return f(t.as<uint16_t>()[i]);
    case DType::kI16:
      return f(t.as<int16_t>()[i]);
    case DType::kU32:
      return f(t.as<uint32_t>()[i]);
    case DType::kI32:
      return f(t.as<int32_t>()[i]);
    case DType::kU64:
      return f(t.as<uint64_t>()[i]);
    case DType::kI64:
      return f(t.as<int64_t>()[i]);
    case DType::kU4:
      return f(nibble());
    case DType::kI4:
      return f((nibble() ^ 8) - 8);
    case DType::kUndefined:
    case DType::kString:
      break;
  }
  throw Error(Code::kInternal, "element of a tensor without numbers");
}
}  // namespace

double Tensor::real(int64_t i) const {
  return visit_element(*this, i, [](auto v) { return static_cast<double>(v); });
}
int64_t Tensor::integer(int64_t i) const {
  return visit_element(*this, i, [](auto v) { return static_cast<int64_t>(v); });
}

}  // namespace ark
