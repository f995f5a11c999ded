// Graph::str(): the text form of a graph, one line a node.

#include "base/error.h"
#include "base/ir/graph.h"
#include "base/ir/quantized.h"

namespace ark {
namespace {

std::string id_text(ValueId id) { return id == kNoValue ? "_" : "%" + std::to_string(id); }

std::string type_text(const Value& v) {
  return std::string(name_of(v.dtype)) + (v.shape ? str(*v.shape) : "[?]");
}

// "const f32[49152, 576] "name"", or the elements themselves if there are few.
std::string constant_text(const Value& v) {
  constexpr int64_t kShown = 8;
  std::string out = "const " + type_text(v);
  if (v.constant->quantized) out += " of " + std::to_string(v.constant->quantized->bits) + " bits";
  if (v.constant->size() <= kShown && v.constant->dtype != DType::kString) {
    const Tensor t = materialise(*v.constant);
    out += " {";
    for (int64_t i = 0; i < t.size(); ++i) {
      char number[32];
      std::snprintf(number, sizeof number, "%.9g", t.real(i));
      out += (i ? ", " : "") + (is_floating(t.dtype) ? std::string(number) : std::to_string(t.integer(i)));
    }
    out += "}";
  }
  return v.name.empty() ? out : out + " \"" + escaped(v.name) + "\"";
}

std::string joined(const std::vector<ValueId>& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size(); ++i) out += (i ? ", " : "") + id_text(ids[i]);
  return out;
}

void write_graph(const Graph& graph, const std::string& indent, std::string& out);

void write_node(const Graph& graph, const Node& node, const std::string& indent, std::string& out) {
  out += indent;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId id = node.outputs[i];
    out += (i ? ", " : "") + id_text(id);
    if (id != kNoValue) out += " " + type_text(graph.value(id));
  }
  out += " = " + std::string(name_of(node.op)) + "(" + joined(node.inputs) + ")";
  if (const std::string attributes = node.attributes.str(); !attributes.empty()) out += " " + attributes;
  if (!node.name.empty()) out += "  # " + node.name;
  out += "\n";
  for (const auto& subgraph : node.subgraphs) write_graph(*subgraph, indent + "    ", out);
}

void write_graph(const Graph& graph, const std::string& indent, std::string& out) {
  out += indent + "graph \"" + escaped(graph.name) + "\"\n";
  const std::string inner = indent + "  ";
  for (ValueId id : graph.inputs)
    out += inner + "input " + id_text(id) + " " + type_text(graph.value(id)) + " \"" +
           escaped(graph.value(id).name) + "\"\n";
  for (const auto& [from, to] : graph.captured)
    out += inner + "capture " + id_text(to) + " " + type_text(graph.value(to)) + " of outer " +
           id_text(from) + "\n";
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].constant)
      out += inner + id_text(static_cast<ValueId>(i)) + " = " + constant_text(graph.values[i]) + "\n";
  for (const Node& node : graph.nodes)
    if (!node.removed) write_node(graph, node, inner, out);
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Value& v = graph.value(graph.outputs[i]);
    const std::string& name = i < graph.output_names.size() ? graph.output_names[i] : v.name;
    out +=
        inner + "output " + id_text(graph.outputs[i]) + " " + type_text(v) + " \"" + escaped(name) + "\"\n";
  }
}

}  // namespace

std::string Graph::str() const {
  std::string out;
  write_graph(*this, "", out);
  return out;
}

}  // namespace ark
