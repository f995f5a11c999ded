#include "base/ir/graph_dot.h"

#include "base/error.h"

namespace ark {
namespace {

class DotWriter {
 public:
  std::string run(const Graph& graph) {
    out_ =
        "digraph model {\n  rankdir=TB; node [shape=box, fontname=\"sans-serif\", fontsize=10];\n"
        "  edge [fontname=\"sans-serif\", fontsize=8, color=gray40];\n";
    write(graph, "g", "  ");
    return out_ + "}\n";
  }

 private:
  static std::string type_of(const Value& v) {
    return std::string(name_of(v.dtype)) + (v.shape ? str(*v.shape) : "[?]");
  }
  static std::string value_id(const std::string& scope, ValueId id) {
    return scope + "v" + std::to_string(id);
  }
  static std::string node_id(const std::string& scope, NodeId id) { return scope + "n" + std::to_string(id); }

  void line(const std::string& indent, const std::string& text) { out_ += indent + text + "\n"; }

  // Constants and graph inputs are drawn once; other values are edges from their producer.
  void source(const Graph& graph, ValueId id, const std::string& scope, const std::string& indent,
              const char* shape) {
    const Value& v = graph.value(id);
    line(indent, value_id(scope, id) + " [shape=" + shape + ", label=\"" + escaped(v.name, 60) + "\\n" +
                     type_of(v) + "\"];");
  }

  void edge(const Graph& graph, ValueId id, const std::string& to, const std::string& scope,
            const std::string& indent) {
    const Value& v = graph.value(id);
    if (v.constant && v.constant->is_small() && v.constant->size() <= 1) return;  // scalars only clutter
    const std::string from = v.producer == kNoNode ? value_id(scope, id) : node_id(scope, v.producer);
    line(indent, from + " -> " + to + " [label=\"" + type_of(v) + "\"];");
  }

  void write(const Graph& graph, const std::string& scope, const std::string& indent) {
    for (ValueId id : graph.inputs) source(graph, id, scope, indent, "ellipse");
    for (const auto& [outer, inner] : graph.captured) source(graph, inner, scope, indent, "ellipse");
    for (std::size_t i = 0; i < graph.values.size(); ++i)
      if (graph.values[i].constant && graph.values[i].constant->size() > 1)
        source(graph, static_cast<ValueId>(i), scope, indent, "note");
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& n = graph.nodes[i];
      if (n.removed) continue;
      const std::string id = node_id(scope, static_cast<NodeId>(i));
      line(indent, id + " [label=\"" + std::string(name_of(n.op)) + "\\n" + escaped(n.name, 60) + "\"];");
      for (ValueId v : n.inputs)
        if (v != kNoValue) edge(graph, v, id, scope, indent);
      for (std::size_t s = 0; s < n.subgraphs.size(); ++s) {
        const std::string inner = id + "_" + std::to_string(s) + "_";
        line(indent, "subgraph cluster_" + inner + " {");
        line(indent, "  label=\"" + std::string(name_of(n.op)) + " " + std::to_string(s) + "\";");
        write(*n.subgraphs[s], inner, indent + "  ");
        line(indent, "}");
        for (const auto& [from, to] : n.subgraphs[s]->captured)
          edge(graph, from, value_id(inner, to), scope, indent);
      }
    }
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      const std::string& name =
          i < graph.output_names.size() ? graph.output_names[i] : graph.value(graph.outputs[i]).name;
      const std::string id = scope + "o" + std::to_string(i);
      line(indent, id + " [shape=ellipse, style=bold, label=\"" + escaped(name, 60) + "\"];");
      edge(graph, graph.outputs[i], id, scope, indent);
    }
  }

  std::string out_;
};

}  // namespace

std::string dot(const Graph& graph) { return DotWriter().run(graph); }

}  // namespace ark
