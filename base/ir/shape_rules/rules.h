// Types and shapes of canonical operators: one rule each, gathered by family.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ir/graph.h"

namespace ark::shape_rules {

using Elements = std::vector<Expr>;

// Elements of a value of rank 0 or 1: recorded ones, or those of a small integer or bool constant.
std::optional<Elements> elements_of(const Graph& graph, ValueId id);

// The size two dims broadcast to; nullopt if they cannot. Sizes of different names give max(a, b), which is
// right whether they are equal or one of them is 1 (but for an empty dimension against 1).
std::optional<Expr> broadcast_size(const Expr& a, const Expr& b);

// The same of shapes, as numpy has it.
std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b);

// What a rule sees of one node, and where it puts its findings.
class Context {
 public:
  Context(Graph& graph, NodeId id) : graph_(graph), id_(id) {}

  const Node& node() const { return graph_.node(id_); }
  const Attributes& attributes() const { return node().attributes; }
  std::size_t inputs() const { return node().inputs.size(); }
  bool has(std::size_t i) const { return i < inputs() && node().inputs[i] != kNoValue; }
  const Value& in(std::size_t i) const;  // fails if absent
  DType dtype(std::size_t i) const { return in(i).dtype; }
  const std::optional<Shape>& shape(std::size_t i) const { return in(i).shape; }
  std::optional<int64_t> rank(std::size_t i) const;
  std::optional<int64_t> count(std::size_t i) const;      // elements; nullopt if absent or unknown
  std::optional<Elements> elements(std::size_t i) const;  // nullopt if absent or unknown
  std::optional<Tensor> constant(std::size_t i) const;    // small constants only

  std::size_t outputs() const { return node().outputs.size(); }
  void out(std::size_t i, DType dtype,
           std::optional<Shape> shape);  // i beyond the outputs, or unwanted: ignored
  const std::optional<Shape>& output_shape(std::size_t i) const {
    return graph_.value(node().outputs[i]).shape;
  }
  void out_elements(Elements elements);  // of output 0
  // A size only the data decides: the one found by an earlier inference, else a fresh symbol.
  Expr fresh(std::size_t output, std::size_t axis, std::string_view suffix) const;
  Shape fresh_shape(std::size_t output, int64_t rank, std::string_view suffix) const;
  // Whether a symbol seen in a subgraph means the same out here: sizes of inputs and of captured values do.
  bool is_outer_symbol(const std::string& name) const;

  // The one size two equal dims have; fails if both are constants and differ. Records an assumption otherwise.
  Expr same(const Expr& a, const Expr& b, std::string_view what);
  Expr broadcast(const Expr& a, const Expr& b);
  Shape broadcast(const Shape& a, const Shape& b) const;
  int64_t axis(int64_t axis, int64_t rank) const;  // wraps negatives, fails if out of range
  void check_rank(std::size_t i, int64_t least) const;
  [[noreturn]] void fail(const std::string& why) const;

 private:
  void check_axes(int64_t count) const;  // of an output

  Graph& graph_;
  NodeId id_;
};

using Rule = void (*)(Context&);
struct Entry {
  Op op;
  Rule rule;
};

Rule rule_of(Op op);  // null: none

void same_as_first(Context& c);  // output 0 has input 0's type and shape
void along_axis(Context& c);     // likewise; its attribute `axis` is one of input 0

// The elements of output 0 from the inputs' elements, where the operator is integer arithmetic or movement of
// rank 0 or 1; nullopt if something is not known.
std::optional<Elements> propagate_elements(Context& c);

}  // namespace ark::shape_rules
