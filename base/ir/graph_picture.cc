#include "base/ir/graph_picture.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/payloads.h"
#include "base/periodic_runs.h"

namespace ark {
namespace {

constexpr int64_t kShortestLayer = 4;  // nodes

std::string box_type(const Value& v) {
  return std::string(name_of(v.dtype)) + (v.shape ? str(*v.shape) : "[?]");
}

// "/model/layers.0/mlp/MatMul (MatMul)" of a MatMul, without `prefix`.
std::string short_name(const Node& node, const std::string& prefix) {
  std::string name = node.name.starts_with(prefix) ? node.name.substr(prefix.size()) : node.name;
  const std::string kind = " (" + std::string(name_of(node.op)) + ")";
  if (name.ends_with(kind)) name.resize(name.size() - kind.size());
  return name;
}

// Equal for nodes that may be the same node of different layers.
std::string signature(const Graph& graph, const Node& node) {
  Attributes attributes = node.attributes;
  attributes.erase(key::kCache);
  std::string text = std::string(name_of(node.op)) + attributes.str();
  for (const auto* list : {&node.inputs, &node.outputs})
    for (const ValueId v : *list) {
      text += v == kNoValue ? "-" : graph.value(v).constant ? "c" : "v";
      if (v != kNoValue) text += box_type(graph.value(v));
    }
  return text + std::to_string(node.subgraphs.size());
}

class GraphPicture {
 public:
  explicit GraphPicture(std::string name) { picture_.name = std::move(name); }

  Picture finish() && { return std::move(picture_); }

  // Draws `graph` into a group; `outer`: boxes of the values that it captures, by their ids in here.
  void draw(const Graph& graph, int32_t group, std::map<ValueId, int32_t> outer) {
    Drawing d{graph, group, std::move(outer), {}, {}, {}, {}};
    fold(d);
    for (std::size_t i = 0; i < d.nodes.size(); ++i) draw_inputs(d, i);
    for (const ValueId v : graph.inputs)
      if (!d.sources.contains(v)) d.sources[v] = add_value_box(d, v, group);
    for (std::size_t i = 0; i < d.nodes.size(); ++i) draw_node(d, i);
    for (std::size_t i = 0; i < d.nodes.size(); ++i) draw_edges(d, i);
    draw_outputs(d);
  }

 private:
  // Where a node stands in a run of equal layers.
  struct Place {
    std::size_t first = 0;  // the node that is drawn for it, an index into Drawing::nodes
    int32_t run = -1;
    std::size_t trip = 0;
    std::size_t layer = 0;  // nodes from a layer to the next
  };
  struct Drawing {
    const Graph& graph;
    int32_t group;
    std::map<ValueId, int32_t> sources;  // boxes of values that no node makes
    std::vector<NodeId> nodes;           // that are not removed
    std::vector<Place> places;           // by index into nodes
    std::vector<int32_t> groups;         // by run
    std::map<NodeId, int32_t> boxes;
    std::map<NodeId, std::size_t> index{};  // into nodes
    // Boxes of layers' inputs, by reader and operand.
    std::map<std::pair<std::size_t, std::size_t>, int32_t> folded{};
    std::set<std::pair<int32_t, int32_t>> drawn{};
  };

  const Node& node_at(const Drawing& d, std::size_t i) const { return d.graph.node(d.nodes[i]); }

  void fold(Drawing& d) {
    std::vector<std::string> signatures;
    for (std::size_t n = 0; n < d.graph.nodes.size(); ++n) {
      if (d.graph.nodes[n].removed) continue;
      d.index[static_cast<NodeId>(n)] = d.nodes.size();
      d.places.push_back({d.nodes.size()});
      d.nodes.push_back(static_cast<NodeId>(n));
      signatures.push_back(signature(d.graph, d.graph.nodes[n]));
    }
    for (const PeriodicRun& run : periodic_runs(signatures, kShortestLayer)) {
      const auto number = static_cast<int32_t>(d.groups.size());
      for (int64_t i = 0; i < run.count * run.trips; ++i)
        d.places[run.first + i] = {at(run.first + i % run.count), number, at(i / run.count), at(run.count)};
      d.groups.push_back(add_group("x " + std::to_string(run.trips), d.group));
    }
  }

  // What names have in common: of all nodes, or of a layer's.
  std::string prefix_of(Drawing& d, int32_t run) {
    const auto [it, is_new] = prefixes_.try_emplace({&d.graph, run});
    if (!is_new) return it->second;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < d.nodes.size(); ++i)
      if (d.places[i].trip == 0 && (run < 0 || d.places[i].run == run) &&
          node_at(d, i).name.find_first_of("/.") != std::string::npos)
        names.push_back(node_at(d, i).name);
    return it->second = common_prefix(names);
  }

  int32_t add_group(std::string label, int32_t parent) {
    picture_.groups.push_back({std::move(label), parent});
    return static_cast<int32_t>(picture_.groups.size()) - 1;
  }

  int32_t add_box(Picture::Box box) {
    box.id = "n" + std::to_string(picture_.boxes.size());
    picture_.boxes.push_back(std::move(box));
    return static_cast<int32_t>(picture_.boxes.size()) - 1;
  }

  // An input or an output.
  int32_t add_value_box(const Drawing& d, ValueId v, int32_t group, const std::string& name = "") {
    const Value& value = d.graph.value(v);
    return add_box({"", Family::kInput, name.empty() ? value.name : name, {box_type(value)}, group});
  }

  // Inputs that the same node of different layers reads are one box.
  void draw_inputs(Drawing& d, std::size_t i) {
    const Node& node = node_at(d, i);
    const Place& place = d.places[i];
    for (std::size_t o = 0; o < node.inputs.size(); ++o) {
      const ValueId v = node.inputs[o];
      if (v == kNoValue || d.graph.value(v).constant || d.graph.producer(v) || d.sources.contains(v))
        continue;
      if (place.run < 0 || !is_layers_own(d, v, place)) {
        d.sources[v] = add_value_box(d, v, d.group);
        continue;
      }
      const auto [it, is_new] = d.folded.try_emplace({place.first, o}, -1);
      if (is_new) it->second = add_value_box(d, v, d.groups[place.run]);
      d.sources[v] = it->second;
      picture_.boxes[it->second].count += !is_new;
    }
  }

  // Whether the same node of another layer reads something else, as it does of caches.
  bool is_layers_own(const Drawing& d, ValueId v, const Place& place) const {
    const Node& other = node_at(d, place.first + (place.trip == 0 ? place.layer : 0));
    return std::find(other.inputs.begin(), other.inputs.end(), v) == other.inputs.end();
  }

  void draw_node(Drawing& d, std::size_t i) {
    const Place& place = d.places[i];
    const Node& node = node_at(d, i);
    if (place.trip == 0) {
      const int32_t group = place.run < 0 ? d.group : d.groups[place.run];
      Picture::Box box{"", family_of(node.op), std::string(name_of(node.op)), {}, group, 0};
      if (const std::string name = short_name(node, prefix_of(d, place.run)); !name.empty())
        box.lines.push_back(name);
      d.boxes[d.nodes[i]] = add_box(std::move(box));
    }
    Picture::Box& box = picture_.boxes[d.boxes[d.nodes[place.first]]];
    ++box.count;
    for (const ValueId v : node.inputs) {
      if (v == kNoValue || !d.graph.value(v).constant || d.graph.value(v).constant->size() <= 1) continue;
      for (const auto& [type, bytes] : payloads_.add(*d.graph.value(v).constant)) box.bytes += bytes;
      if (place.trip == 0) box.lines.push_back(weight_text(*d.graph.value(v).constant));
    }
    if (place.trip == 0) draw_subgraphs(d, node, d.boxes[d.nodes[i]]);
  }

  static std::string weight_text(const Constant& c) {
    int64_t bytes = 0;
    std::string type;
    for (const auto& [stored, each] : PayloadSet().add(c)) {
      bytes += each;
      type += (type.empty() ? "" : "+") + std::string(name_of(stored));
    }
    std::string dims;
    for (const int64_t n : c.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(n);
    return "W " + type + "[" + dims + "] " + size_text(bytes);
  }

  void draw_subgraphs(Drawing& d, const Node& node, int32_t box) {
    for (std::size_t s = 0; s < node.subgraphs.size(); ++s) {
      const Graph& body = *node.subgraphs[s];
      std::map<ValueId, int32_t> captured;
      for (const auto& [outer, inner] : body.captured)
        if (const int32_t from = box_of(d, outer); from >= 0) captured[inner] = from;
      const std::string label =
          std::string(name_of(node.op)) + (node.op == Op::kIf ? s == 0 ? ": then" : ": else" : ": body");
      const std::size_t first = picture_.boxes.size();
      draw(body, add_group(label, picture_.boxes[box].group), std::move(captured));
      if (first < picture_.boxes.size()) add_edge(d, box, static_cast<int32_t>(first), "");
    }
  }

  // Of the value's maker; -1 for constants.
  int32_t box_of(Drawing& d, ValueId v) {
    if (const auto found = d.sources.find(v); found != d.sources.end()) return found->second;
    const NodeId producer = d.graph.value(v).producer;
    if (producer == kNoNode) return -1;
    const auto found = d.boxes.find(d.nodes[d.places[d.index[producer]].first]);
    return found == d.boxes.end() ? -1 : found->second;
  }

  void add_edge(Drawing& d, int32_t from, int32_t to, std::string label) {
    if (from != to && d.drawn.insert({from, to}).second)
      picture_.edges.push_back({from, to, std::move(label)});
  }

  void draw_edges(Drawing& d, std::size_t i) {
    const Place& place = d.places[i];
    for (const ValueId v : node_at(d, i).inputs) {
      if (v == kNoValue || d.graph.value(v).constant) continue;
      const NodeId producer = d.graph.value(v).producer;
      if (producer != kNoNode && !d.sources.contains(v)) {
        // From a layer to the next: the group says so.
        const Place& from = d.places[d.index[producer]];
        if (from.run >= 0 && from.run == place.run && from.trip != place.trip) continue;
      }
      if (const int32_t from = box_of(d, v); from >= 0)
        add_edge(d, from, d.boxes[d.nodes[place.first]], box_type(d.graph.value(v)));
    }
  }

  // Outputs of the same node of different layers are one box.
  void draw_outputs(Drawing& d) {
    std::map<std::pair<int32_t, std::size_t>, int32_t> boxes;
    for (std::size_t i = 0; i < d.graph.outputs.size(); ++i) {
      const ValueId v = d.graph.outputs[i];
      const Value& value = d.graph.value(v);
      const int32_t from = value.constant ? -1 : box_of(d, v);
      std::size_t which = i;
      int32_t group = d.group;
      if (value.producer != kNoNode) {
        const Node& node = d.graph.node(value.producer);
        const Place& place = d.places[d.index[value.producer]];
        const auto output = std::find(node.outputs.begin(), node.outputs.end(), v) - node.outputs.begin();
        if (place.run >= 0)
          which = d.graph.outputs.size() + static_cast<std::size_t>(output), group = d.groups[place.run];
      }
      const auto [it, is_new] = boxes.try_emplace({from, which}, -1);
      if (!is_new) {
        ++picture_.boxes[it->second].count;
        continue;
      }
      it->second = add_value_box(d, v, group, i < d.graph.output_names.size() ? d.graph.output_names[i] : "");
      if (from >= 0) add_edge(d, from, it->second, "");
    }
  }

  Picture picture_;
  PayloadSet payloads_;
  std::map<std::pair<const Graph*, int32_t>, std::string> prefixes_;
};

}  // namespace

Picture picture_of(const Graph& graph, std::string name) {
  GraphPicture picture(std::move(name));
  picture.draw(graph, -1, {});
  return std::move(picture).finish();
}

}  // namespace ark
