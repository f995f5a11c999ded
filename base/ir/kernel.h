// Plain kernels, one for each canonical operator: what an operator computes is written here once. Constant folding,
// the proof of decoders, the dynamic driver and generic phases of Programs run them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ir/attributes.h"
#include "base/ir/ops.h"
#include "base/tensor.h"

namespace ark {

// A dense row-major operand. data is null for absent optional operands and for empty tensors.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kUndefined;
  int rank = 0;
  std::array<int64_t, 8> dims{};

  bool present() const { return dtype != DType::kUndefined; }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  std::span<const int64_t> shape() const { return {dims.data(), static_cast<std::size_t>(rank)}; }
  // The same memory with other sizes, 8 at most.
  TensorView sized(std::span<const int64_t> sizes) const {
    TensorView view = *this;
    view.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), view.dims.begin());
    return view;
  }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};
TensorView view_of(const Tensor& tensor);

// Everything a kernel sees. Attributes hold no symbols any more: Shape attributes have constant entries.
struct KernelCall {
  Op op = Op::kIdentity;
  const Attributes* attributes = nullptr;
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
};

// dtype and dims of an output before it is allocated.
struct OutputType {
  DType dtype;
  Dims dims;
};

struct Kernel {
  Op op;
  // Output types from the inputs (values of shape-like inputs may be read). Throws Error(kInvalidArgument)
  // saying which shapes do not fit together.
  std::vector<OutputType> (*shapes)(const KernelCall& call);
  // Number of independent tiles, >= 0; depends on shapes and attributes only.
  int64_t (*grid)(const KernelCall& call);
  // Computes tile `tile` and writes its part of the outputs only. No lock, no shared state; runs on any thread.
  void (*tile)(const KernelCall& call, int64_t tile);
};

// Whether what `shapes` says and refuses follows from sizes and attributes alone, with so many inputs present: asked
// once for some sizes, it holds for all values.
bool follows_from_sizes(Op op, int inputs);

// nullptr if no kernel exists for this operator (the message must then name node and operator).
const Kernel* find_kernel(Op op);

}  // namespace ark
