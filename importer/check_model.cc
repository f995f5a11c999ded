// What can be said of a file without shapes: names, schemas, functions, branches.
#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "importer/builder.h"
#include "importer/op_importer.h"
#include "importer/schema.h"

namespace ark::onnx {
namespace {

[[noreturn]] void bad(const std::string& why) { throw Error(Code::kBadModel, why); }

class ModelCheck {
 public:
  ModelCheck(const Model& model, const Limits& limits) : model_(model), functions_(model, limits) {}

  void run() {
    if (model_.opsets.empty()) bad("the model imports no opset; export it again");
    functions_.check_expansion(model_.graph);
    for (const Function& f : model_.functions) function(f);
    graph(model_.graph, {"", model_.opsets, nullptr}, nullptr);
  }

 private:
  struct Place {
    std::string prefix;  // of labels
    const std::map<std::string, int64_t>& opsets;
    const Function* function;
  };
  struct Names {
    const Names* outer;
    std::unordered_set<std::string_view> names{}, made{};  // made: before the node that is looked at
    bool has(std::string_view name) const { return names.contains(name) || (outer && outer->has(name)); }
    bool had(std::string_view name) const { return made.contains(name) || (outer && outer->had(name)); }
  };

  void function(const Function& f) {
    const std::string what = "function '" + escaped(f.name) + "'";
    Names names{nullptr};
    for (const std::string& name : f.inputs)
      if (name.empty() || !names.names.insert(name).second)
        bad(what + " has input '" + escaped(name) + "' twice, or without a name");
    std::unordered_set<std::string_view> outputs;
    for (const std::string& name : f.outputs)
      if (!outputs.insert(name).second) bad(what + " has output '" + escaped(name) + "' twice");
    nodes(f.nodes, {escaped(f.name) + "/", f.opsets, &f}, names);
    for (const std::string& name : f.outputs)
      if (!names.has(name)) bad(what + " does not produce its output '" + escaped(name) + "'");
  }

  void graph(const Graph& g, const Place& place, const Names* outer) {
    Names names{outer};
    for (const ValueInfo& input : g.inputs)
      if (!names.names.insert(input.name).second)
        bad("graph input '" + escaped(input.name) + "' is there twice");
    std::unordered_set<std::string_view> stored;
    for (const TensorRef& t : g.initializers) {
      names.names.insert(t.name);
      if (!stored.insert(t.name).second) bad("initializer '" + escaped(t.name) + "' is there twice");
    }
    for (const ValueInfo& input : g.inputs)  // bodies' are what they are given
      if (!outer && !stored.contains(input.name) &&
          (input.type.kind == "none" || (input.type.kind == "tensor" && !input.type.element_type)))
        bad("graph input '" + escaped(input.name) + "' has no type");
    nodes(g.nodes, place, names);
    for (const ValueInfo& output : g.outputs)
      if (!names.has(output.name))
        bad(place.prefix + "graph output '" + escaped(output.name) + "' is produced by no node");
  }

  void nodes(const std::vector<Node>& nodes, const Place& place, Names& names) {
    names.made = names.names;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const std::string& name : nodes[i].outputs)
        if (!name.empty() && names.outer && names.outer->had(name))
          bad("node " + label_of(place.prefix, nodes[i], i) + " makes '" + escaped(name) +
              "' again, which the graph around it has");
        else if (!name.empty() && !names.names.insert(name).second)
          bad("value '" + escaped(name) + "' is produced twice, the second time by node " +
              label_of(place.prefix, nodes[i], i) + "; ONNX graphs assign each name once");
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      node(nodes[i], label_of(place.prefix, nodes[i], i), place, names);
      names.made.insert(nodes[i].outputs.begin(), nodes[i].outputs.end());
    }
  }

  void node(const Node& n, const std::string& label, const Place& place, const Names& names) {
    for (const std::string& name : n.inputs)
      if (!name.empty() && !names.has(name))
        bad("node " + label + " reads '" + escaped(name) + "', which nothing produces");
    attributes(n, label, place);
    const Function* callee = functions_.find(n);
    const auto opset = place.opsets.find(n.domain);
    if (opset == place.opsets.end()) {
      // Writers of com.microsoft's operators forget the import, and there is one version of each.
      if (n.domain.empty()) bad("node " + label + ": the file imports no opset of ai.onnx; export it again");
      if (n.domain != "com.microsoft")
        bad("node " + label + ": its domain '" + escaped(n.domain) + "' is not imported");
    }
    if (callee) {
      call(n, label, *callee);
    } else {
      const int64_t version = opset == place.opsets.end() ? 1 : opset->second;
      // Also where nothing would be built of it: in a branch that is never taken.
      if (!place.function && !has_schema(n) && !find_op_importer(n.domain, n.op_type))
        refuse_unknown(n, version, label);
      check_against_schema(n, version, label);
      if (n.domain.empty()) bodies(n, label);
    }
    for (const Attribute& a : n.attributes)
      if (a.g) graph(*a.g, place, &names);
  }

  void attributes(const Node& n, const std::string& label, const Place& place) {
    for (std::size_t i = 0; i < n.attributes.size(); ++i) {
      const Attribute& a = n.attributes[i];
      if (a.name.empty()) bad("node " + label + " has an attribute without a name");
      if (n.attribute(a.name) != &a) bad("node " + label + " has attribute '" + escaped(a.name) + "' twice");
      if (a.ref_attr_name.empty() && !a.is_typed && model_.ir_version > 1)
        bad("node " + label + ": attribute '" + escaped(a.name) +
            "' has no type, which IR version 2 and later demand");
      if (a.ref_attr_name.empty()) continue;
      if (!place.function) bad("node " + label + " refers to a function's attribute outside of a function");
      if (!declares(*place.function, a.ref_attr_name))
        bad("node " + label + ": its function has no attribute '" + escaped(a.ref_attr_name) + "'");
    }
  }

  static bool declares(const Function& f, const std::string& name) {
    return std::find(f.attributes.begin(), f.attributes.end(), name) != f.attributes.end() ||
           std::any_of(f.attribute_defaults.begin(), f.attribute_defaults.end(),
                       [&](const Attribute& a) { return a.name == name; });
  }

  void call(const Node& n, const std::string& label, const Function& callee) {
    if (n.inputs.size() > callee.inputs.size() || n.outputs.size() > callee.outputs.size())
      bad("node " + label + " has more inputs or outputs than its function");
    for (const Attribute& a : n.attributes)
      if (!declares(callee, a.name))
        bad("node " + label + ": its function has no attribute '" + escaped(a.name) + "'");
  }

  // If, Loop and Scan: numbers of values, and the types that both branches declare.
  void bodies(const Node& n, const std::string& label) {
    if (std::any_of(n.attributes.begin(), n.attributes.end(),
                    [](const Attribute& a) { return !a.ref_attr_name.empty(); }))
      return;  // of a function: known where it is called
    const auto body = [&](const char* name) -> const Graph& { return *n.attribute(name)->g; };
    const auto counts = [&](const char* what, std::size_t have, std::size_t need) {
      if (have != need)
        bad("node " + label + ": its body has " + std::to_string(have) + " " + what + "; " +
            std::to_string(need) + " fit the node");
    };
    if (n.op_type == "If") {
      const Graph &then_branch = body("then_branch"), &else_branch = body("else_branch");
      for (const Graph* branch : {&then_branch, &else_branch}) {
        counts("inputs", branch->inputs.size(), 0);
        counts("outputs", branch->outputs.size(), n.outputs.size());
      }
      for (std::size_t i = 0; i < n.outputs.size(); ++i) {
        const Type &a = then_branch.outputs[i].type, &b = else_branch.outputs[i].type;
        const bool declared = a.kind != "none" && b.kind != "none" && a.element_type && b.element_type;
        if (declared && (a.kind != b.kind || a.element_type != b.element_type))
          bad("node " + label + ": output " + std::to_string(i) + " is " + element_type_name(a.element_type) +
              " in one branch and " + element_type_name(b.element_type) + " in the other");
      }
    } else if (n.op_type == "Loop") {
      counts("inputs", body("body").inputs.size(), std::max<std::size_t>(n.inputs.size(), 2));
      counts("outputs", body("body").outputs.size(), n.outputs.size() + 1);
    } else if (n.op_type == "Scan" && n.attribute("num_scan_inputs")) {
      counts("outputs", body("body").outputs.size(), n.outputs.size());
    }
  }

  const Model& model_;
  FunctionTable functions_;
};

}  // namespace

std::string label_of(const std::string& prefix, const Node& node, std::size_t index) {
  const std::string own = node.name.empty() ? "#" + std::to_string(index) : node.name;
  return escaped(prefix + own) + " (" + escaped(node.op_type, 60) + ")";
}

void check_model(const Model& model, const Limits& limits) { ModelCheck(model, limits).run(); }

}  // namespace ark::onnx
