// What a file does not say of its inputs, found by building it and looking at what reads them.
//
// - Masks and caches whose length has the tokens' name by a slip (input_reach.h) get sizes of their own.
// - Inputs of decoder files that carry no data: how many rows of logits to make (transformers' logits_to_keep), which
//   branch of an If to run (optimum's use_cache_branch). For serving (ImportOptions::settle_controls) they are settled:
//   numbers so that as many rows of logits come out as there are tokens, conditions true, for the branch with a cache.
//   They stay inputs that nothing reads, and Graph::settled says for what value.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "importer/builder.h"
#include "importer/import.h"
#include "importer/input_reach.h"
#include "importer/schema.h"

namespace ark {
namespace {

struct Control {
  std::string name;
  DType dtype;
  Dims dims;
  std::string cut_output;  // of a number: the graph output whose rows it counts
};

void names_read(const onnx::Node& node, bool inside, std::vector<std::string>& names) {
  if (inside) names.insert(names.end(), node.inputs.begin(), node.inputs.end());
  for (const onnx::Attribute& a : node.attributes)
    if (a.g) {
      for (const onnx::Node& n : a.g->nodes) names_read(n, true, names);
      for (const onnx::ValueInfo& out : a.g->outputs) names.push_back(out.name);
    }
}

// Who reads each name of the main graph.
class Uses {
 public:
  struct Use {
    const onnx::Node* node;
    std::size_t input;  // kCaptured: from within a subgraph
  };
  static constexpr std::size_t kCaptured = SIZE_MAX;

  explicit Uses(const onnx::Graph& graph) : graph_(graph) {
    for (const onnx::Node& node : graph.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) uses_[node.inputs[i]].push_back({&node, i});
      std::vector<std::string> captured;
      names_read(node, false, captured);
      for (const std::string& name : captured) uses_[name].push_back({&node, kCaptured});
    }
  }
  const std::vector<Use>& of(const std::string& name) const {
    static const std::vector<Use> none;
    const auto it = uses_.find(name);
    return it == uses_.end() ? none : it->second;
  }
  bool is_output(const std::string& name) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const onnx::ValueInfo& out) { return out.name == name; });
  }

  // Follows `start`: accept(use) says whether to go on behind the node (1), to stop there (0), or to give up
  // (-1). False if it gave up, or a value on the way is an output of the graph.
  template <typename F>
  bool follow(const std::string& start, F&& accept) const {
    std::vector<std::string> work{start};
    std::set<std::string> seen{start};
    while (!work.empty()) {
      const std::string name = work.back();
      work.pop_back();
      if (is_output(name)) return false;
      for (const Use& use : of(name)) {
        const int verdict = accept(use);
        if (verdict < 0) return false;
        if (verdict == 0) continue;
        for (const std::string& out : use.node->outputs)
          if (!out.empty() && seen.insert(out).second) work.push_back(out);
      }
    }
    return true;
  }

  // Graph outputs that depend on what `nodes` make.
  std::set<std::string> outputs_behind(const std::set<const onnx::Node*>& nodes) const {
    std::vector<const onnx::Node*> work(nodes.begin(), nodes.end());
    std::set<const onnx::Node*> seen = nodes;
    std::set<std::string> outputs;
    while (!work.empty()) {
      const onnx::Node* node = work.back();
      work.pop_back();
      for (const std::string& out : node->outputs) {
        if (is_output(out)) outputs.insert(out);
        if (out.empty()) continue;
        for (const Use& use : of(out))
          if (seen.insert(use.node).second) work.push_back(use.node);
      }
    }
    return outputs;
  }

 private:
  const onnx::Graph& graph_;
  std::unordered_map<std::string, std::vector<Use>> uses_;
};

bool is_one_of(const onnx::Node& node, std::initializer_list<std::string_view> types) {
  return node.domain.empty() && std::find(types.begin(), types.end(), node.op_type) != types.end();
}

// A number that only becomes bounds of slices, and these cut what one output is made of and nothing else.
bool counts_rows(const Uses& uses, Control& control) {
  std::set<const onnx::Node*> slices;
  const bool bounds = uses.follow(control.name, [&](const Uses::Use& use) {
    if (is_one_of(*use.node, {"Slice"}) && (use.input == 1 || use.input == 2)) {
      slices.insert(use.node);
      return 0;
    }
    if (is_one_of(*use.node, {"Gather"}) && use.input == 0) return 1;
    const bool passes = is_one_of(*use.node, {"Identity", "Cast", "Neg", "Add", "Sub", "Mul", "Min", "Max",
                                              "Reshape", "Unsqueeze", "Squeeze", "Concat", "Where", "Equal",
                                              "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not"});
    return passes && use.input != Uses::kCaptured ? 1 : -1;
  });
  if (!bounds || slices.empty()) return false;
  const std::set<std::string> outputs = uses.outputs_behind(slices);
  if (outputs.size() != 1) return false;
  control.cut_output = *outputs.begin();
  return true;
}

// Only in a file with something like caches does "true" mean that they are used.
bool has_caches(const onnx::Graph& graph) {
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [](const onnx::ValueInfo& v) {
    return v.type.dims.size() >= 3 && is_floating(dtype_numbered(v.type.element_type));
  });
}

bool chooses_branches(const Uses& uses, const Control& control) {
  bool chooses = false;
  const bool only = uses.follow(control.name, [&](const Uses::Use& use) {
    if (use.input == Uses::kCaptured) return -1;
    if (is_one_of(*use.node, {"If"})) return chooses = true, 0;
    return is_one_of(*use.node, {"Identity", "Reshape", "Squeeze", "Unsqueeze"}) && use.input == 0 ? 1 : -1;
  });
  return only && chooses;
}

std::vector<Control> find_controls(const onnx::Graph& graph) {
  std::vector<Control> found;
  std::optional<Uses> uses;
  for (const onnx::ValueInfo& input : graph.inputs) {
    Control control{input.name, dtype_numbered(input.type.element_type), {}, ""};
    const bool number = control.dtype == DType::kI64 || control.dtype == DType::kI32;
    if (input.type.kind != "tensor" || !input.type.has_shape || (!number && control.dtype != DType::kBool))
      continue;
    const bool one = std::all_of(input.type.dims.begin(), input.type.dims.end(),
                                 [](const onnx::Dimension& d) { return d.value == 1; });
    const auto same_name = [&](const onnx::TensorRef& t) { return t.name == input.name; };
    if (!one || std::any_of(graph.initializers.begin(), graph.initializers.end(), same_name)) continue;
    control.dims.assign(input.type.dims.size(), 1);
    if (!uses) uses.emplace(graph);
    const bool fits =
        number ? counts_rows(*uses, control) : has_caches(graph) && chooses_branches(*uses, control);
    if (fits) found.push_back(std::move(control));
  }
  return found;
}

ConstantPtr constant_of(const Control& control, int64_t value) {
  Tensor t = Tensor::zeros(control.dtype, control.dims);
  if (control.dtype == DType::kI64)
    t.as<int64_t>()[0] = value;
  else if (control.dtype == DType::kI32)
    t.as<int32_t>()[0] = static_cast<int32_t>(value);
  else
    t.as<uint8_t>()[0] = value != 0;
  return make_constant(std::move(t), control.name + " (settled)");
}

// The output that `control` cuts has a row for each token: its axis before the last is one of the ids'.
bool all_rows(const Graph& graph, const Control& control) {
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const auto& rows = graph.value(graph.outputs[i]).shape;
    if (graph.output_names[i] != control.cut_output || !rows || rows->size() < 2) continue;
    for (const ValueId id : graph.inputs) {
      const Value& ids = graph.value(id);
      if (is_integer(ids.dtype) && ids.shape && ids.shape->size() == 2 &&
          ids.shape->back() == (*rows)[rows->size() - 2])
        return true;
    }
  }
  return false;
}

Graph build_once(const onnx::Model& model, const ImportOptions& options, const InputFacts& facts) {
  Graph graph = Builder(model, options, facts).build();
  graph.remove_dead();
  graph.compact();
  verify(graph, "build");
  return graph;
}

// With the sizes that the inputs' names do not tell: the graph shows which names are a slip.
Graph build_with_names(const onnx::Model& model, const ImportOptions& options, InputFacts facts) {
  Graph graph = build_once(model, options, facts);
  facts.misnamed = input_reach::misnamed_axes(graph);
  return facts.misnamed.empty() ? graph : build_once(model, options, facts);
}

}  // namespace

Graph build_graph(const onnx::Model& model, const ImportOptions& options) {
  onnx::check_model(model, options.limits);
  const std::vector<Control> controls =
      options.settle_controls ? find_controls(model.graph) : std::vector<Control>{};
  const auto holds = [&](const Graph& graph, const Control& c) {
    return c.dtype == DType::kBool || all_rows(graph, c);
  };
  for (const int64_t count : {int64_t{0}, int64_t{INT32_MAX}}) {
    if (controls.empty()) break;
    InputFacts facts;
    std::vector<std::pair<std::string, int64_t>> values;
    for (const Control& control : controls) {
      values.emplace_back(control.name, control.dtype == DType::kBool ? 1 : count);
      facts.settled[control.name] = constant_of(control, values.back().second);
    }
    try {
      Graph graph = build_with_names(model, options, std::move(facts));
      check_generated(graph, options.limits);
      graph.settled = std::move(values);
      if (std::all_of(controls.begin(), controls.end(), [&](const Control& c) { return holds(graph, c); }))
        return graph;
    } catch (const Error&) {  // not this value
    }
  }
  Graph graph = build_with_names(model, options, {});
  check_generated(graph, options.limits);
  return graph;
}

}  // namespace ark
