// A dense host tensor: row-major, 64-byte aligned, shared ownership of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace ark {

using Dims = std::vector<int64_t>;

// Product of `dims` (1 for rank 0). Throws Error(kBadModel) on a negative size or if it passes 2^62.
int64_t element_count(std::span<const int64_t> dims);

struct Tensor {
  DType dtype = DType::kUndefined;
  Dims dims;
  std::shared_ptr<std::byte> data;  // null only while bytes() == 0; shared between copies of the Tensor

  // Uninitialised / zeroed storage for `dims`. Throws Error(kExhausted) if the memory cannot be had.
  static Tensor empty(DType dtype, Dims dims);
  static Tensor zeros(DType dtype, Dims dims);
  template <typename T>
  static Tensor of(DType dtype, Dims dims, std::span<const T> values);

  int64_t size() const { return element_count(dims); }       // elements
  int64_t bytes() const { return bytes_of(dtype, size()); }  // bytes
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data.get());
  }  // the caller knows dtype

  // Element i in row-major order, converted; integers beyond 2^53 lose bits through double.
  double real(int64_t i) const;
  int64_t integer(int64_t i) const;  // floats truncate

  bool operator==(const Tensor& other) const;  // type, sizes and bytes
};

// 64-byte aligned bytes, freed with the last owner.
std::shared_ptr<std::byte> aligned_bytes(int64_t bytes);

template <typename T>
Tensor Tensor::of(DType dtype, Dims dims, std::span<const T> values) {
  Tensor t = empty(dtype, std::move(dims));
  for (std::size_t i = 0; i < values.size(); ++i) t.as<T>()[i] = values[i];
  return t;
}

}  // namespace ark
