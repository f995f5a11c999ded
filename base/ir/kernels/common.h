// What the plain kernels share: operand access by compute type, strides, attribute-or-input operands.
//
// Kernels compute in one of four types, whatever the storage: float (f32 and narrower), double (f64), uint64_t (u64)
// and int64_t (all other integers and bool). Blocks are loaded and converted, computed, and stored converted.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/ir/kernel.h"

namespace ark::kernels {

inline constexpr int64_t kBlock = 1024;                // elements converted at a time
inline constexpr int64_t kTileElements = 16 * kBlock;  // elements of one pointwise tile

[[noreturn]] inline void misfit(const std::string& why) { throw Error(Code::kInvalidArgument, why); }
// For element types that no kernel handles.
[[noreturn]] inline void unsupported(const std::string& why) { throw Error(Code::kUnsupported, why); }
std::string dims_text(std::span<const int64_t> dims);

inline int64_t tiles_for(int64_t elements) { return (elements + kTileElements - 1) / kTileElements; }

// Loads `n` elements from element `first` of dense storage, converted to C. C is float, double, int64_t, uint64_t.
template <typename C>
void load(const TensorView& view, int64_t first, int64_t n, C* into);
// Stores n elements; integers wrap around, floats round to nearest even, bool is value != 0. Elements of 4
// bits share bytes: two threads must not store to one byte, so tiles begin at even elements.
template <typename C>
void store(const TensorView& view, int64_t first, int64_t n, const C* from);
template <typename C>
C load_one(const TensorView& view, int64_t i) {
  C value;
  load<C>(view, i, 1, &value);
  return value;
}
template <typename C>
void store_one(const TensorView& view, int64_t i, C value) {
  store<C>(view, i, 1, &value);
}

// Calls f with a value of the compute type of `type`. Throws for strings and undefined.
template <typename F>
decltype(auto) with_compute_type(DType type, F&& f) {
  if (type == DType::kF32 || is_narrow_float(type)) return f(float{});
  switch (type) {
    case DType::kF64:
      return f(double{});
    case DType::kU64:
      return f(uint64_t{});
    case DType::kString:
    case DType::kUndefined:
      unsupported("no kernel computes on type " + std::string(name_of(type)));
    default:
      return f(int64_t{});
  }
}

using Index = std::array<int64_t, 8>;
// Row-major strides in elements.
Index strides_of(std::span<const int64_t> dims);
// Strides of `view` seen under broadcasting to `out` dims: 0 where it is broadcast.
Index broadcast_strides(const TensorView& view, std::span<const int64_t> out);
// Throws misfit unless `view` broadcasts to `out` without enlarging it.
void check_broadcasts(const TensorView& view, std::span<const int64_t> out, std::string_view what);
// numpy's broadcast of shapes. Throws misfit.
Dims broadcast(std::span<const int64_t> a, std::span<const int64_t> b);

// Walks the row-major indices of `dims` from `first` on, with the element offset under up to three stride sets.
class Odometer {
 public:
  Odometer(std::span<const int64_t> dims, std::vector<Index> strides, int64_t first);
  int64_t offset(std::size_t set) const { return offsets_[set]; }
  const Index& index() const { return index_; }
  void next();

 private:
  Dims dims_;
  std::vector<Index> strides_;
  std::vector<int64_t> offsets_;
  Index index_{};
};

// Loads output elements [first, first + n) of `view` broadcast to `out` dims.
template <typename C>
void load_broadcast(const TensorView& view, std::span<const int64_t> out, const Index& strides, int64_t first,
                    int64_t n, C* into);

// A shape-like operand: the attribute (folded) or the input tensor; nullopt if both are absent.
std::optional<Dims> ints_operand(const KernelCall& call, Key<std::vector<int64_t>> key, std::size_t input);
std::optional<Dims> ints_operand(const KernelCall& call, Key<Shape> key, std::size_t input);
// The same of an operand that the operator cannot do without. Throws misfit.
template <typename T>
Dims ints(const KernelCall& call, Key<T> key, std::size_t input) {
  std::optional<Dims> operand = ints_operand(call, key, input);
  if (!operand) misfit("operand " + std::string(key.name) + " is missing");
  return *std::move(operand);
}
bool has_input(const KernelCall& call, std::size_t i);
// Throws misfit unless input i is there and has one element; `what` names it.
void check_scalar(const KernelCall& call, std::size_t i, std::string_view what);
template <typename C>
C scalar(const KernelCall& call, std::size_t i, std::string_view what) {
  check_scalar(call, i, what);
  return load_one<C>(call.inputs[i], 0);
}
// Throws misfit unless both have one element type: what copies bytes relies on it.
void check_same_type(const TensorView& a, const TensorView& b);
// Wraps negatives. Throws misfit if it is out of range; a scalar has an axis 0 here (softmax, reductions) ...
int64_t norm_axis(int64_t axis, int rank);
// ... but not here.
std::size_t own_axis(int64_t axis, const TensorView& of);

inline Dims dims_of(const TensorView& v) { return {v.dims.begin(), v.dims.begin() + v.rank}; }
int64_t product(std::span<const int64_t> dims);

// The storage's elements as bytes: size in {1, 2, 4, 8}. Throws for packed 4-bit types.
int64_t element_bytes(const TensorView& view);
inline void copy_element(std::byte* to, const std::byte* from, int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      break;
    case 2:
      std::memcpy(to, from, 2);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    default:
      std::memcpy(to, from, 8);
      break;
  }
}

// f(T{}) with an unsigned type of the elements' size.
template <typename F>
void with_bytes(int64_t size, F f) {
  if (size == 1) return f(uint8_t{});
  if (size == 2) return f(uint16_t{});
  if (size == 4) return f(uint32_t{});
  f(uint64_t{});
}

// shapes() of operators whose output sizes follow from sizes and attributes: what inference says of symbols, asked with
// numbers (base/ir/shape_rules). Throws misfit.
std::vector<OutputType> by_rule(const KernelCall& call);
// shapes() of operators whose output looks like input 0.
std::vector<OutputType> like_first(const KernelCall& call);
// Copies the elements of output 0 in tile `tile`, each from element from(odometer) of input 0. The odometer walks the
// output, with offsets under `strides`.
template <typename F>
void copy_elements(const KernelCall& call, int64_t tile, std::vector<Index> strides, F&& from) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t size = element_bytes(y), first = tile * kTileElements;
  const int64_t end = std::min(y.size(), first + kTileElements);
  if (first >= end) return;
  Odometer at(y.shape(), std::move(strides), first);
  for (int64_t i = first; i < end; ++i, at.next())
    copy_element(y.data + i * size, x.data + from(at) * size, size);
}
// grid() by elements of output 0.
int64_t grid_by_elements(const KernelCall& call);
inline int64_t grid_one(const KernelCall&) { return 1; }

struct Span64 {
  int64_t begin, end;
};
// Elements of `total` that tile `tile` covers.
inline Span64 elements_of(int64_t tile, int64_t total) {
  return {tile * kTileElements, std::min(total, (tile + 1) * kTileElements)};
}

}  // namespace ark::kernels
