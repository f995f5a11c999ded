#include "importer/join_embeddings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace ark::onnx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStem = "embed_tokens";
// Of the function that the joined file becomes: its operators keep their versions, and its names their scope.
constexpr const char* kDomain = "ark.joined";

const ValueInfo* find(const std::vector<ValueInfo>& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &ValueInfo::name);
  return found == values.end() ? nullptr : &*found;
}

bool is_initialized(const Graph& graph, const std::string& name) {
  return std::ranges::find(graph.initializers, name, &TensorRef::name) != graph.initializers.end();
}

bool is_tensor_of(const ValueInfo& value, bool integers) {
  const DType type = dtype_numbered(value.type.element_type);
  return value.type.kind == "tensor" && (integers ? is_integer(type) : is_floating(type));
}

// Tokens are as many as the rows that they become: "[batch, sequence]" of the decoder's own names.
void take_sizes(Type& ids, const Type& rows) {
  if (ids.has_shape && rows.has_shape && ids.dims.size() == 2 && rows.dims.size() == 3)
    ids.dims.assign(rows.dims.begin(), rows.dims.begin() + 2);
}

void check_widths(const ValueInfo& made, const ValueInfo& taken, const fs::path& from, const fs::path& by) {
  if (!made.type.has_shape || !taken.type.has_shape || made.type.dims.empty() || taken.type.dims.empty())
    return;
  const int64_t has = made.type.dims.back().value, wants = taken.type.dims.back().value;
  if (has >= 0 && wants >= 0 && has != wants)
    throw Error(Code::kBadModel, escaped(from.string()) + " makes rows of " + std::to_string(has) +
                                     " features; " + escaped(by.filename().string()) + " takes " +
                                     std::to_string(wants) + " as " + escaped(taken.name));
}

// Gives the joined rows their name: a Cast where the pieces were rounded to other types.
Node named(const std::string& from, const ValueInfo& made, const ValueInfo& taken) {
  Node node{
      .name = kStem + ("/" + taken.name), .op_type = "Identity", .inputs = {from}, .outputs = {taken.name}};
  if (made.type.element_type == taken.type.element_type) return node;
  node.op_type = "Cast";
  Attribute to{.name = "to", .type = AttributeType::kInt, .is_typed = true};
  to.i = taken.type.element_type;
  node.attributes.push_back(std::move(to));
  return node;
}

}  // namespace

std::optional<fs::path> embeddings_beside(const fs::path& model) {
  const std::string stem = model.stem().string();
  if (stem.starts_with(kStem)) return std::nullopt;
  const fs::path folder = model.has_parent_path() ? model.parent_path() : ".";
  std::vector<std::string> found;  // what stands behind the stem: "", "_q4"
  for (const std::string& name : names_in(folder))
    if (const fs::path file(name); file.extension() == ".onnx" && name.starts_with(kStem))
      found.push_back(file.stem().string().substr(std::string(kStem).size()));
  // The longest that the model's name ends with: "" always does.
  const std::string* best = nullptr;
  for (const std::string& variant : found)
    if (stem.ends_with(variant) && (!best || variant.size() > best->size())) best = &variant;
  if (!best && found.size() == 1) best = &found[0];
  if (!best) return std::nullopt;
  return folder / (kStem + *best + ".onnx");
}

namespace {

// A file beside a model, which makes of `ids` what the model takes.
struct Pieces {
  fs::path file;
  Model model;
  std::vector<ValueInfo> ids, made;
};

std::optional<Pieces> pieces_beside(const fs::path& file, const Graph& graph, const Limits& limits) {
  const auto takes_rows = [](const ValueInfo& in) {
    return is_tensor_of(in, false) && in.type.dims.size() == 3;
  };
  std::error_code error;
  if (std::ranges::none_of(graph.inputs, takes_rows) || fs::is_directory(file, error)) return std::nullopt;
  const auto beside = embeddings_beside(file);
  // Not where external data might not lie either.
  if (!beside || !stamp_now(file, beside->filename().string())) return std::nullopt;
  Pieces pieces{*beside, parse_model(*beside, limits), {}, {}};
  const Graph& lookup = pieces.model.graph;
  for (const ValueInfo& out : lookup.outputs)
    if (const ValueInfo* in = find(graph.inputs, out.name);
        in && is_tensor_of(*in, false) && is_tensor_of(out, false) && !find(pieces.made, out.name))
      pieces.made.push_back(out);
  pieces.ids = lookup.inputs;
  std::erase_if(pieces.ids, [&](const ValueInfo& in) { return is_initialized(lookup, in.name); });
  // What also takes rows of pictures needs them.
  if (pieces.made.empty() ||
      !std::ranges::all_of(pieces.ids, [](const ValueInfo& in) { return is_tensor_of(in, true); }))
    return std::nullopt;
  return pieces;
}

}  // namespace

void join_embeddings(Model& model, const fs::path& file, const Limits& limits) {
  Graph& graph = model.graph;
  std::optional<Pieces> found = pieces_beside(file, graph, limits);
  if (!found) return;
  auto& [beside, pieces, ids, made] = *found;
  Graph& lookup = pieces.graph;
  Function whole{.name = kStem, .domain = kDomain, .nodes = std::move(lookup.nodes), .opsets = pieces.opsets};
  Node call{.name = kStem, .op_type = kStem, .domain = kDomain};
  for (const ValueInfo& in : ids) {
    whole.inputs.push_back(in.name);
    call.inputs.push_back(in.name);
  }
  for (TensorRef& weight : lookup.initializers) {
    whole.inputs.push_back(weight.name);
    weight.name.insert(0, std::string(kDomain) + ":");
    call.inputs.push_back(weight.name);
    graph.initializers.push_back(std::move(weight));
  }
  std::vector<Node> first;
  for (const ValueInfo& out : made) {
    const ValueInfo taken = *find(graph.inputs, out.name);
    check_widths(out, taken, beside, file);
    for (ValueInfo& in : ids) take_sizes(in.type, taken.type);
    std::erase_if(graph.inputs, [&](const ValueInfo& in) { return in.name == out.name; });
    whole.outputs.push_back(out.name);
    call.outputs.push_back(std::string(kDomain) + ":" + out.name);
    first.push_back(named(call.outputs.back(), out, taken));
  }
  first.insert(first.begin(), std::move(call));
  graph.nodes.insert(graph.nodes.begin(), std::make_move_iterator(first.begin()),
                     std::make_move_iterator(first.end()));
  std::erase_if(ids, [&](const ValueInfo& in) { return find(graph.inputs, in.name) != nullptr; });
  graph.inputs.insert(graph.inputs.begin(), ids.begin(), ids.end());
  model.opsets.emplace(kDomain, 1);
  model.functions.push_back(std::move(whole));
  model.functions.insert(model.functions.end(), std::make_move_iterator(pieces.functions.begin()),
                         std::make_move_iterator(pieces.functions.end()));
  for (SourceFile& part : pieces.files)
    model.files.push_back({part.location.empty() ? beside.filename().string() : part.location, part.stamp});
}

}  // namespace ark::onnx
