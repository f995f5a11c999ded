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

// Element i of `t` as a T.
template <typename T>
T element_of(const Tensor& t, int64_t i) {
  return with_element(
      t.dtype, [&](auto element) { return T(element.load(t.data.get(), i)); },
      [&]() -> T { throw Error(Code::kInternal, "element of a tensor without numbers"); });
}

}  // namespace

double Tensor::real(int64_t i) const { return element_of<double>(*this, i); }
int64_t Tensor::integer(int64_t i) const { return element_of<int64_t>(*this, i); }

bool Tensor::operator==(const Tensor& other) const {
  return dtype == other.dtype && dims == other.dims &&
         (bytes() == 0 || std::memcmp(data.get(), other.data.get(), static_cast<std::size_t>(bytes())) == 0);
}

}  // namespace ark
