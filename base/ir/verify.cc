#include "base/error.h"
#include "base/ir/graph.h"
#include "base/ir/op_attributes.h"

namespace ark {
namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, std::string_view after)
      : g_(graph), after_(after), ready_(graph.values.size()) {}

  void run() {
    sources();
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      if (!g_.nodes[i].removed) node(static_cast<NodeId>(i));
    for (ValueId id : g_.outputs) {
      check_id(id, "a graph output");
      if (!ready(id)) fail("graph output " + describe(id) + " is never produced");
    }
    if (!g_.output_names.empty() && g_.output_names.size() != g_.outputs.size())
      fail("output_names and outputs differ in length");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(Code::kInternal, "graph is inconsistent after " + std::string(after_) + ": " + why);
  }
  std::string describe(ValueId id) const {
    return "%" + std::to_string(id) + " '" + escaped(g_.value(id).name) + "'";
  }
  bool ready(ValueId id) const { return ready_[id]; }
  void check_id(ValueId id, const std::string& where) const {
    if (id < 0 || static_cast<std::size_t>(id) >= g_.values.size())
      fail(where + " has value id " + std::to_string(id) + " of " + std::to_string(g_.values.size()));
  }

  void define(ValueId id, const std::string& where) {
    check_id(id, where);
    if (ready(id)) fail(describe(id) + " has a second producer: " + where);
    ready_[id] = true;
  }

  void sources() {
    for (ValueId id : g_.inputs) define(id, "a graph input");
    for (const auto& [outer, inner] : g_.captured) define(inner, "a captured value");
    for (std::size_t i = 0; i < g_.values.size(); ++i) {
      const Value& v = g_.values[i];
      const auto id = static_cast<ValueId>(i);
      if (v.constant) {
        if (!ready(id)) define(id, "a constant");
        if (v.producer != kNoNode && !g_.node(v.producer).removed)
          fail(describe(id) + " is constant and produced");
        constant(v, id);
      }
      if (v.elements && v.shape && v.shape->size() > 1) fail(describe(id) + " has elements but rank above 1");
      if (v.elements && v.shape && v.shape->size() == 1 &&
          !(v.shape->front() == Expr(static_cast<int64_t>(v.elements->size()))))
        fail(describe(id) + " of shape " + str(*v.shape) + " has " + std::to_string(v.elements->size()) +
             " elements");
    }
    for (ValueId id : g_.inputs)
      if (g_.value(id).producer != kNoNode) fail("graph input " + describe(id) + " has a producer");
  }

  void constant(const Value& v, ValueId id) const {
    if (v.dtype != v.constant->dtype) fail(describe(id) + " differs in type from its constant");
    if (!v.shape || v.shape->size() != v.constant->dims.size())
      fail(describe(id) + " differs in rank from its constant");
    for (std::size_t i = 0; i < v.shape->size(); ++i)
      if (!(*v.shape)[i].is_constant(v.constant->dims[i]))
        fail(describe(id) + " differs in shape from its constant");
  }

  void node(NodeId id) {
    const Node& n = g_.node(id);
    const std::string where = "node " + (n.name.empty() ? std::to_string(id) : n.name);
    if (n.op >= Op::kCount) fail(where + " has no operator");
    if (const std::string fault = attribute_fault(n.op, n.attributes); !fault.empty())
      fail(where + ": " + fault);
    const auto read = [&](ValueId v) {
      check_id(v, where);
      if (!ready(v)) fail(where + " reads " + describe(v) + " before it is produced");
    };
    for (ValueId v : n.inputs)
      if (v != kNoValue) read(v);
    for (const auto& subgraph : n.subgraphs) {
      if (!subgraph) fail(where + " has a null subgraph");
      for (const auto& [outer, inner] : subgraph->captured) read(outer);
      verify(*subgraph, after_);
    }
    for (ValueId v : n.outputs) {
      if (v == kNoValue) continue;
      define(v, where);
      if (g_.value(v).producer != id) fail(describe(v) + " does not name " + where + " as its producer");
      if (g_.value(v).dtype == DType::kUndefined) fail(describe(v) + " of " + where + " has no type");
    }
  }

  const Graph& g_;
  std::string_view after_;
  std::vector<bool> ready_;
};

}  // namespace

void verify(const Graph& graph, std::string_view after) { Verifier(graph, after).run(); }

}  // namespace ark
