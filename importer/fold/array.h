// Tensors widened for host evaluation: reals as double, integers and bools as int64. Private to folding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ir/graph.h"

namespace ark::fold {

struct Array {
  Dims dims;
  bool real = false;
  std::vector<double> reals;  // if real
  std::vector<int64_t> ints;  // otherwise

  int64_t size() const {
    return real ? static_cast<int64_t>(reals.size()) : static_cast<int64_t>(ints.size());
  }
  double number(int64_t i) const { return real ? reals[i] : static_cast<double>(ints[i]); }
  int64_t integer(int64_t i) const { return real ? static_cast<int64_t>(reals[i]) : ints[i]; }
  static Array zeros(Dims dims, bool real);
  // out[i] = this[index[i]]; an index of -1 gives `fallback`.
  Array pick(Dims dims, const std::vector<int64_t>& index, double fallback = 0) const;
};

Array widen(const Tensor& tensor);
Tensor narrow(const Array& array, DType dtype);

// What an evaluator sees of one node.
struct Call {
  const Node& node;
  const std::vector<Array>& in;
  const std::vector<DType>& types;  // of the outputs
  const std::vector<bool>& given;   // which inputs are there

  bool has(std::size_t i) const { return i < given.size() && given[i]; }
  const Attributes& attributes() const { return node.attributes; }
  // An attribute of constant expressions, or nullopt.
  std::optional<std::vector<int64_t>> sizes(Key<Shape> key) const;
  int64_t axis(std::size_t rank) const;
  [[noreturn]] void fail(const std::string& why) const;
};
using Results = std::optional<std::vector<Array>>;
using Evaluator = Results (*)(const Call&);

Evaluator pointwise_evaluator(Op op);  // null if it is not of the family, and so on
Evaluator movement_evaluator(Op op);
Evaluator indexing_evaluator(Op op);
Evaluator reduction_evaluator(Op op);
Evaluator quantized_evaluator(Op op);

// Index arithmetic.
std::vector<int64_t> strides_of(const Dims& dims);
Dims broadcast_dims(const Call& call, const Dims& a, const Dims& b);
// For each element of `to` in row-major order, the element of `from` that broadcasts to it.
std::vector<int64_t> broadcast_index(const Dims& from, const Dims& to);
// Counts through `dims` in row-major order; next() returns false after the last.
class Counter {
 public:
  explicit Counter(const Dims& dims) : dims_(dims), at_(dims.size(), 0) {}
  const std::vector<int64_t>& at() const { return at_; }
  bool next();

 private:
  Dims dims_;
  std::vector<int64_t> at_;
};

}  // namespace ark::fold
