#include "engine/partition/collectives.h"

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

class Insert {
 public:
  Insert(const Graph& from, const AxisGroups& groups, const Choices& choices, int32_t ranks)
      : from_(from), groups_(groups), choices_(choices), ids_(from.values.size()) {
    result_.ranks = ranks;
    result_.graph.name = from.name;
    result_.graph.output_names = from.output_names;
    result_.graph.assumptions = from.assumptions;
  }

  Sharded run() {
    Graph& graph = result_.graph;
    for (const ValueId v : from_.inputs) graph.inputs.push_back(add(v, kWhole));
    for (std::size_t n = 0; n < from_.nodes.size(); ++n) add_node(from_.nodes[n], choices_.nodes[n]);
    for (const ValueId v : from_.outputs) graph.outputs.push_back(in_form(v, kWhole));
    return std::move(result_);
  }

 private:
  using Forms = std::vector<std::pair<Form, ValueId>>;

  Form real(Form form) const { return result_.ranks == 1 ? kWhole : form; }

  ValueId find(ValueId v, Form form) const {
    for (const auto& [f, id] : ids_[v]) {
      if (f == form) return id;
    }
    return kNoValue;
  }

  ValueId add(ValueId v, Form form) {
    const Value& value = from_.value(v);
    Graph& graph = result_.graph;
    const ValueId id = value.constant ? graph.add_constant(value.constant)
                                      : graph.add_value(value.name, value.dtype, value.shape);
    graph.value(id).name = value.name;
    graph.value(id).elements = value.elements;
    result_.specs.resize(graph.values.size());
    result_.specs[id] = spec(v, form);
    ids_[v].emplace_back(form, id);
    return id;
  }

  Spec spec(ValueId v, Form form) const {
    if (form == kPartialSum) return {Spec::Kind::kPartial};
    if (!is_split(form)) return {};
    const int axis = axis_of(form);
    const int64_t size = *shape_of(from_, v)[axis].constant();
    return {Spec::Kind::kSplit, axis, groups_.ranges(groups_.group(v, axis), size, result_.ranks)};
  }

  // `v` as the consumer wants it: what is there already, else converted by new nodes.
  ValueId in_form(ValueId v, Form wanted) {
    if (v == kNoValue) return kNoValue;
    const Form want = real(wanted);
    if (const ValueId id = find(v, want); id != kNoValue) return id;
    if (from_.value(v).constant) return add(v, want);
    FormMask have = 0;
    for (const auto& [form, id] : ids_[v]) have |= bit(form);
    const Conversion c = convert(have, want);
    if (c.reduce) link(Op::kAllReduce, v, kPartialSum, kWhole, {});
    if (is_split(c.gather)) {
      link(Op::kAllGather, v, c.gather, kWhole, {{key::kAxis, static_cast<int64_t>(axis_of(c.gather))}});
    }
    if (c.slice) link(Op::kIdentity, v, kWhole, want, {});
    return find(v, want);
  }

  void link(Op op, ValueId v, Form from, Form to, Attributes attributes) {
    const ValueId in = find(v, from);
    ARK_CHECK(in != kNoValue, "a plan converts a value from a form that it does not have");
    const ValueId out = add(v, to);
    const Node* producer = from_.producer(v);
    const std::string name = producer ? producer->name : from_.value(v).name;
    result_.graph.add_node(op, name + " " + std::string(name_of(op)), {in}, {out}, std::move(attributes));
  }

  void add_node(const Node& node, const NodeChoice& choice) {
    std::vector<ValueId> inputs, outputs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      inputs.push_back(in_form(node.inputs[i], choice.inputs[i]));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      outputs.push_back(node.outputs[i] == kNoValue ? kNoValue
                                                    : add(node.outputs[i], real(choice.outputs[i])));
    }
    const NodeId id =
        result_.graph.add_node(node.op, node.name, std::move(inputs), std::move(outputs), node.attributes);
    result_.graph.node(id).subgraphs = node.subgraphs;
    if ((node.op == Op::kMatMul || node.op == Op::kExpertMatMul) && choice.sums) {
      const ValueId weight = node.inputs.back();
      const int axis = axis_of(choice.inputs.back());
      const int64_t k = *shape_of(from_, weight)[axis].constant();
      result_.row_parallel[id] = groups_.axis(groups_.group(weight, axis), k);
    }
  }

  const Graph& from_;
  const AxisGroups& groups_;
  const Choices& choices_;
  std::vector<Forms> ids_;  // per old value
  Sharded result_;
};

}  // namespace

Sharded insert_collectives(const Graph& graph, const AxisGroups& groups, const Choices& choices,
                           int32_t ranks) {
  return Insert(graph, groups, choices, ranks).run();
}

}  // namespace ark
