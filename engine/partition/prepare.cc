#include "engine/partition/prepare.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/index.h"
#include "base/ir/keys.h"
#include "engine/ops/loops.h"
#include "engine/ops/op_rule.h"

namespace ark {
namespace {

// Rebuilds a graph node by node; `map` leads from old to new values.
class Rebuild {
 public:
  explicit Rebuild(const Graph& from) : from_(from), map_(from.values.size(), kNoValue) {
    to_.name = from.name;
    to_.output_names = from.output_names;
    to_.assumptions = from.assumptions;
    for (const ValueId v : from.inputs) to_.inputs.push_back(map_[v] = copy(v));
  }
  virtual ~Rebuild() = default;

  Graph run() {
    mark_needed();
    for (std::size_t n = 0; n < from_.nodes.size(); ++n) {
      if (needed_[n]) rebuild(from_.nodes[n]);
    }
    for (const ValueId v : from_.outputs) to_.outputs.push_back(use(v));
    return std::move(to_);
  }

 protected:
  virtual void rebuild(const Node& node) = 0;

  ValueId copy(ValueId v) {
    Value value = from_.value(v);
    value.producer = kNoNode;
    to_.values.push_back(std::move(value));
    return static_cast<ValueId>(to_.values.size() - 1);
  }
  // The new value of an old one; constants are added when first used.
  ValueId use(ValueId v) {
    if (v == kNoValue) return kNoValue;
    if (map_[v] == kNoValue) map_[v] = from_.value(v).constant ? constant(from_.value(v).constant) : copy(v);
    return map_[v];
  }
  ValueId constant(const ConstantPtr& c) {
    const Key key{payload_place(*c), c->offset, static_cast<int>(c->dtype), c->stored_dims, c->perm,
                  c->begin,          c->dims};
    const auto [it, is_new] = constants_.try_emplace(key, kNoValue);
    if (is_new) it->second = to_.add_constant(c);
    return it->second;
  }
  // The node as it was, with its outputs.
  NodeId keep(const Node& node, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    const NodeId id =
        to_.add_node(node.op, node.name, std::move(inputs), std::move(outputs), node.attributes);
    to_.node(id).subgraphs = node.subgraphs;
    return id;
  }
  std::vector<ValueId> use_all(const std::vector<ValueId>& values) {
    std::vector<ValueId> result;
    for (const ValueId v : values) result.push_back(use(v));
    return result;
  }
  ValueId emit(Op op, const std::string& name, std::vector<ValueId> inputs, DType dtype, Shape shape,
               Attributes attributes = {}) {
    const ValueId out = to_.add_value(name, dtype, std::move(shape));
    to_.add_node(op, name, std::move(inputs), {out}, std::move(attributes));
    return out;
  }

  const Graph& from_;
  Graph to_;
  std::vector<ValueId> map_;

 private:
  using Key = std::tuple<const void*, int64_t, int, Dims, std::vector<int64_t>, Dims, Dims>;

  void mark_needed() {
    needed_.assign(from_.nodes.size(), false);
    std::vector<bool> wanted(from_.values.size(), false);
    const auto want = [&](ValueId v) {
      if (v != kNoValue) wanted[v] = true;
    };
    for (const ValueId v : from_.outputs) want(v);
    for (std::size_t n = from_.nodes.size(); n-- > 0;) {
      const Node& node = from_.nodes[n];
      if (node.removed) continue;
      needed_[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                               [&](ValueId v) { return v != kNoValue && wanted[v]; });
      if (!needed_[n]) continue;
      for (const ValueId v : node.inputs) want(v);
      for (const auto& sub : node.subgraphs) {
        for (const auto& [outer, inner] : sub->captured) want(outer);
      }
    }
  }

  std::vector<bool> needed_;
  std::map<Key, ValueId> constants_;
};

bool is_wide(DType t) { return t == DType::kI32 || t == DType::kI64; }

// Constants in one form, MatMul alone.
class Normalize : public Rebuild {
 public:
  using Rebuild::Rebuild;

 private:
  void rebuild(const Node& node) override {
    if (node.op == Op::kCast && node.inputs[0] != kNoValue) {
      const Value& in = from_.value(node.inputs[0]);
      const Value& out = from_.value(node.outputs[0]);
      const Node* producer = from_.producer(node.inputs[0]);
      const bool is_free = in.constant || (producer && is_narrow_table(*producer));
      if (is_free && is_narrow_float(in.dtype) && out.dtype == DType::kF32) {
        map_[node.outputs[0]] = use(node.inputs[0]);
        return;
      }
    }
    if (node.op == Op::kMatMul && node.inputs.size() > 1 && rank_of(from_, node.inputs[1]) == 2)
      return matmul(node);
    std::vector<ValueId> inputs = use_all(node.inputs);
    if (node.op == Op::kGather) inputs[1] = use(narrow(node.inputs[1]));
    if (is_narrow_table(node)) to_.value(use(node.outputs[0])).dtype = DType::kF32;
    if (node.op == Op::kRotary && inputs.size() > 3) inputs[3] = use(narrow(node.inputs[3]));
    keep(node, std::move(inputs), use_all(node.outputs));
  }

  // Rows of a table of fewer bits than f32: they come out as f32, and the Cast that widens them goes.
  bool is_narrow_table(const Node& node) const {
    if (node.op != Op::kGather) return false;
    const Value& table = from_.value(node.inputs[0]);
    return table.constant && is_narrow_float(table.dtype) && rank_of(from_, node.inputs[0]) == 2;
  }

  // What an integer value is a Cast of.
  ValueId narrow(ValueId v) const {
    const Node* producer = from_.producer(v);
    while (producer && producer->op == Op::kCast && is_wide(from_.value(v).dtype) &&
           is_wide(from_.value(producer->inputs[0]).dtype)) {
      v = producer->inputs[0];
      producer = from_.producer(v);
    }
    return v;
  }

  void matmul(const Node& node) {
    const ValueId out = node.outputs[0];
    const DType dtype = from_.value(out).dtype;
    const bool has_bias = node.inputs.size() > 2 && node.inputs[2] != kNoValue;
    const double alpha = node.attributes.get_or(key::kAlpha, 1);
    const Shape shape = shape_of(from_, out);
    Attributes attributes = node.attributes;
    attributes.set(key::kAlpha, 1.0);
    ValueId w = use(node.inputs[1]);
    const ConstantPtr c = to_.value(w).constant;
    if (c && c->perm == std::vector<int64_t>{1, 0}) {
      w = constant(transposed(c, {1, 0}));
      attributes.set(key::kTransB, int64_t{attributes.get_or(key::kTransB, 0) == 0});
    }
    if (shape.empty() || dtype != DType::kF32 || (!has_bias && alpha == 1)) {
      if (dtype != DType::kF32 || shape.empty()) attributes.set(key::kAlpha, alpha);
      std::vector<ValueId> inputs = use_all(node.inputs);
      inputs[1] = w;
      if (!has_bias) inputs.resize(2);
      to_.add_node(Op::kMatMul, node.name, inputs, {use(out)}, attributes);
      return;
    }
    Shape product = shape;
    ValueId x = emit(Op::kMatMul, node.name, {use(node.inputs[0]), w}, dtype, product, attributes);
    if (alpha != 1) {
      const float value = static_cast<float>(alpha);
      const ValueId scale = constant(make_constant(Tensor::of<float>(DType::kF32, {}, {&value, 1}), "alpha"));
      if (!has_bias) {
        to_.add_node(Op::kMul, node.name, {x, scale}, {use(out)});
        return;
      }
      x = emit(Op::kMul, node.name, {x, scale}, dtype, shape);
    }
    to_.add_node(Op::kAdd, node.name, {x, use(node.inputs[2])}, {use(out)});
  }
};

// Columns that are only taken apart are computed apart.
class Separate : public Rebuild {
 public:
  explicit Separate(const Graph& from)
      : Rebuild(from), consumers_(from.consumers()), taken_apart_(from.values.size(), false) {
    // Readers first: each value looks one node ahead, however long the chain.
    for (std::size_t n = from.nodes.size(); n-- > 0;) {
      for (const ValueId v : from.nodes[n].outputs)
        if (v != kNoValue && !from.nodes[n].removed) taken_apart_[v] = is_taken_apart(v);
    }
  }

 private:
  struct Part {
    int64_t axis, begin, end;
  };

  void rebuild(const Node& node) override {
    const std::vector<Part> parts = parts_of(node);
    if (!parts.empty() && can_take(node.inputs[0], parts[0].axis)) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (node.outputs[i] != kNoValue) map_[node.outputs[i]] = take(node.inputs[0], parts[i]);
      }
      return;
    }
    for (const ValueId v : node.outputs) {
      if (v != kNoValue && taken_apart_[v]) return;
    }
    keep(node, use_all(node.inputs), use_all(node.outputs));
  }

  // What a Split, or a Slice of one axis, takes of its input; empty for other nodes.
  std::vector<Part> parts_of(const Node& node) const {
    std::vector<Part> parts;
    const auto constants = [&](ark::Key<Shape> name) {
      std::vector<int64_t> values;
      if (!node.attributes.has(name)) return values;
      for (const Expr& e : node.attributes.get(name)) {
        if (!e.constant()) return std::vector<int64_t>{};
        values.push_back(*e.constant());
      }
      return values;
    };
    if (node.op == Op::kSplit) {
      int64_t begin = 0;
      for (const int64_t size : constants(key::kSizes)) {
        parts.push_back({node.attributes.get(key::kAxis), begin, begin + size});
        begin += size;
      }
    }
    if (node.op == Op::kSlice && node.attributes.has(key::kAxes) &&
        node.attributes.get(key::kAxes).size() == 1) {
      const std::vector<int64_t> begin = constants(key::kStarts), end = constants(key::kEnds);
      const bool dense = node.attributes.get_or(key::kSteps, {1}) == std::vector<int64_t>{1};
      if (begin.size() == 1 && end.size() == 1 && dense && begin[0] < end[0]) {
        parts.push_back({node.attributes.get(key::kAxes)[0], begin[0], end[0]});
      }
    }
    return parts;
  }

  bool is_output(ValueId v) const {
    return std::find(from_.outputs.begin(), from_.outputs.end(), v) != from_.outputs.end();
  }

  // All readers take parts of `v`, and the parts can be computed apart. Asks taken_apart_ of what is read
  // later.
  bool is_taken_apart(ValueId v) const {
    if (consumers_[v].empty() || is_output(v)) return false;
    const Node& reader = from_.node(consumers_[v][0]);
    if (const std::vector<Part> parts = parts_of(reader); !parts.empty()) return can_take(v, parts[0].axis);
    if (consumers_[v].size() != 1 || reader.outputs.size() != 1) return false;
    return link_below(reader) == v && taken_apart_[reader.outputs[0]];
  }

  // The value that `node` only passes on, elementwise with constants or reshaped; kNoValue if it does more.
  ValueId link_below(const Node& node) const {
    if (node.op == Op::kReshape) return node.inputs[0];
    if (node.op != Op::kAdd && node.op != Op::kMul) return kNoValue;
    const bool first = !from_.value(node.inputs[0]).constant;
    const ValueId data = node.inputs[first ? 0 : 1], other = node.inputs[first ? 1 : 0];
    const bool fits = from_.value(other).constant && !from_.value(data).constant &&
                      shape_of(from_, data) == shape_of(from_, node.outputs[0]);
    return fits ? data : kNoValue;
  }

  // The source axis of a Reshape whose axis `axis` moves slowest in its run, or -1.
  int source_axis(const Node& reshape, int64_t axis) const {
    for (const Loop& loop : reshape_loops(from_, reshape)) {
      if (loop.outputs[0] == axis) return loop.inputs[0];
    }
    return -1;
  }
  int64_t size(ValueId v, int64_t axis) const { return shape_of(from_, v)[axis].constant().value_or(0); }

  bool can_take(ValueId v, int64_t axis) const {
    for (int links = 0; links <= kMostLinks; ++links) {
      const Node* producer = from_.producer(v);
      if (!producer || is_output(v)) return false;
      for (const NodeId n : consumers_[v]) {
        const std::vector<Part> parts = parts_of(from_.node(n));
        if (parts.empty() ? consumers_[v].size() > 1 : parts[0].axis != axis) return false;
      }
      if (producer->op == Op::kMatMul) {
        return axis + 1 == rank_of(from_, v) && producer->inputs.size() == 2 &&
               from_.value(producer->inputs[1]).constant && rank_of(from_, producer->inputs[1]) == 2;
      }
      const ValueId below = link_below(*producer);
      if (below == kNoValue) return false;
      if (producer->op == Op::kReshape) {
        const int source = source_axis(*producer, axis);
        if (source < 0 || size(v, axis) <= 0 || size(below, source) % size(v, axis) != 0) return false;
        axis = source;
      }
      v = below;
    }
    return false;
  }

  ValueId take(ValueId v, const Part& part) {
    const Node& producer = *from_.producer(v);
    Shape shape = shape_of(from_, v);
    shape[part.axis] = part.end - part.begin;
    const DType dtype = from_.value(v).dtype;
    if (producer.op == Op::kMatMul) {
      const ConstantPtr& w = from_.value(producer.inputs[1]).constant;
      const int64_t axis = producer.attributes.get_or(key::kTransB, 0) != 0 ? 0 : 1;
      const ValueId columns = constant(sliced(w, axis, part.begin, part.end));
      return emit(Op::kMatMul, producer.name, {use(producer.inputs[0]), columns}, dtype, shape,
                  producer.attributes);
    }
    const ValueId below = link_below(producer);
    if (producer.op == Op::kReshape) {
      const int source = source_axis(producer, part.axis);
      const int64_t factor = size(below, source) / size(v, part.axis);
      const ValueId x = take(below, {source, part.begin * factor, part.end * factor});
      return emit(Op::kReshape, producer.name, {x}, dtype, shape, {{key::kShape, shape}});
    }
    const ValueId x = take(below, part);
    const bool first = producer.inputs[0] == below;
    const ValueId other = take_constant(producer.inputs[first ? 1 : 0], rank_of(from_, v), part);
    return emit(producer.op, producer.name, first ? std::vector{x, other} : std::vector{other, x}, dtype,
                shape);
  }

  // The same part of a constant that is broadcast to `rank` axes.
  ValueId take_constant(ValueId v, int rank, const Part& part) {
    const ConstantPtr& c = from_.value(v).constant;
    const int64_t axis = part.axis - (rank - static_cast<int64_t>(c->dims.size()));
    if (axis < 0 || c->dims[axis] == 1) return use(v);
    return constant(sliced(c, axis, part.begin, part.end));
  }

  // Between a product and its parts; in models a bias and a Reshape or two.
  static constexpr int kMostLinks = 64;

  std::vector<std::vector<NodeId>> consumers_;
  std::vector<bool> taken_apart_;  // by value
};

// Nothing but the removal of dead nodes.
class Sweep : public Rebuild {
 public:
  using Rebuild::Rebuild;

 private:
  void rebuild(const Node& node) override { keep(node, use_all(node.inputs), use_all(node.outputs)); }
};

}  // namespace

Graph prepare(const Graph& graph) {
  const Graph normal = Normalize(graph).run();
  const Graph separate = Separate(normal).run();
  Graph result = Sweep(separate).run();
  verify(result, "prepare");
  return result;
}

}  // namespace ark
