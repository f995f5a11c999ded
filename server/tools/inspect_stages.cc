#include "server/tools/inspect_stages.h"

#include "base/error.h"
#include "base/ir/graph_picture.h"
#include "base/ir/kernel.h"
#include "engine/plain/step_inputs.h"
#include "importer/join_embeddings.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/load/model_kind.h"
#include "server/load/terms.h"
#include "server/text/model_text.h"

namespace ark {
namespace {

using json = Json;

// -- parse

json json_of(const onnx::TensorRef& t) {
  json j = {{"name", t.name}};
  if (!t.constant) return j;
  j["dtype"] = name_of(t.constant->dtype);
  j["dims"] = t.constant->dims;
  j["bytes"] = t.constant->bytes;
  if (t.constant->file)
    j["file"] = std::filesystem::path(t.constant->file->path()).filename().string(),
    j["offset"] = t.constant->offset;
  return j;
}

json json_of(const onnx::ValueInfo& v) {
  json dims = json::array();
  for (const onnx::Dimension& d : v.type.dims) {
    if (d.value >= 0)
      dims.push_back(d.value);
    else if (!d.parameter.empty())
      dims.push_back(d.parameter);
    else
      dims.push_back(nullptr);
  }
  return {{"name", v.name},
          {"kind", v.type.kind},
          {"element_type", v.type.element_type},
          {"dims", v.type.has_shape ? dims : json(nullptr)}};
}

json json_of(const onnx::Graph& g);

json json_of(const onnx::Node& n) {
  json attributes = json::array();
  for (const onnx::Attribute& a : n.attributes) {
    json j = {{"name", a.name}};
    if (a.g) j["graph"] = json_of(*a.g);
    attributes.push_back(std::move(j));
  }
  return {{"name", n.name},     {"op_type", n.op_type}, {"domain", n.domain},
          {"inputs", n.inputs}, {"outputs", n.outputs}, {"attributes", std::move(attributes)}};
}

template <typename T>
json list(const std::vector<T>& items) {
  json j = json::array();
  for (const T& item : items) j.push_back(json_of(item));
  return j;
}

json json_of(const onnx::Graph& g) {
  return {{"name", g.name},           {"nodes", list(g.nodes)},     {"initializers", list(g.initializers)},
          {"inputs", list(g.inputs)}, {"outputs", list(g.outputs)}, {"value_infos", g.value_infos.size()}};
}

json parse_json(Inspection& inspection) {
  const onnx::Model& m = inspection.parsed();
  json functions = json::array();
  for (const onnx::Function& f : m.functions)
    functions.push_back(
        {{"name", f.name}, {"domain", f.domain}, {"overload", f.overload}, {"nodes", list(f.nodes)}});
  return {{"ir_version", m.ir_version},
          {"producer", m.producer},
          {"producer_version", m.producer_version},
          {"opsets", m.opsets},
          {"functions", std::move(functions)},
          {"graph", json_of(m.graph)},
          {"metadata", m.metadata}};
}

std::string type_text(const onnx::Type& t) {
  if (t.kind != "tensor") return escaped(t.kind);
  std::string out = onnx::element_type_name(t.element_type) + " [";
  for (std::size_t i = 0; i < t.dims.size(); ++i) {
    const onnx::Dimension& d = t.dims[i];
    out += (i ? ", " : "") + (d.value >= 0          ? std::to_string(d.value)
                              : d.parameter.empty() ? "?"
                                                    : escaped(d.parameter));
  }
  return t.has_shape ? out + "]" : out + "...]";
}

std::string parse_text(Inspection& inspection) {
  const onnx::Model& m = inspection.parsed();
  std::string out = "model " + escaped(inspection.file().string()) + "\n  ir_version " +
                    std::to_string(m.ir_version) + ", producer " + escaped(m.producer) + " " +
                    escaped(m.producer_version) + "\n";
  for (const auto& [domain, version] : m.opsets)
    out += "  opset " + (domain.empty() ? "ai.onnx" : escaped(domain)) + " " + std::to_string(version) + "\n";
  for (const auto& v : m.graph.inputs)
    out += "  input \"" + escaped(v.name) + "\" " + type_text(v.type) + "\n";
  for (const auto& v : m.graph.outputs)
    out += "  output \"" + escaped(v.name) + "\" " + type_text(v.type) + "\n";
  int64_t bytes = 0;
  for (const auto& t : m.graph.initializers) bytes += t.constant ? t.constant->bytes : 0;
  out += "  " + std::to_string(m.graph.initializers.size()) + " initializers, " + std::to_string(bytes) +
         " bytes\n";
  std::map<std::string, int> counts;
  for (const auto& n : m.graph.nodes) ++counts[(n.domain.empty() ? "" : n.domain + ".") + n.op_type];
  out += "  " + std::to_string(m.graph.nodes.size()) + " nodes, " + std::to_string(m.functions.size()) +
         " functions\n";
  for (const auto& [op, count] : counts) out += "    " + std::to_string(count) + " " + escaped(op) + "\n";
  return out;
}

// -- graph, passes

json json_of(const Graph& g) {
  json values = json::array(), nodes = json::array(), outputs = json::array();
  for (std::size_t i = 0; i < g.values.size(); ++i) {
    const Value& v = g.values[i];
    json shape = nullptr;
    if (v.shape) {
      shape = json::array();
      for (const Expr& e : *v.shape) shape.push_back(e.constant() ? json(*e.constant()) : json(e.str()));
    }
    values.push_back({{"id", i},
                      {"name", v.name},
                      {"dtype", name_of(v.dtype)},
                      {"shape", shape},
                      {"constant", v.constant != nullptr}});
  }
  for (const Node& n : g.nodes) {
    if (n.removed) continue;
    json subgraphs = json::array();
    for (const auto& s : n.subgraphs) subgraphs.push_back(json_of(*s));
    nodes.push_back({{"op", name_of(n.op)},
                     {"name", n.name},
                     {"inputs", n.inputs},
                     {"outputs", n.outputs},
                     {"attributes", n.attributes.str()},
                     {"subgraphs", std::move(subgraphs)}});
  }
  return {{"name", g.name},     {"values", values},     {"nodes", nodes},
          {"inputs", g.inputs}, {"outputs", g.outputs}, {"output_names", g.output_names}};
}

std::string picture_name(Inspection& i, const char* stage) {
  return i.file().filename().string() + ": " + stage;
}

// -- recognise

json recognise_json(Inspection& inspection) {
  const auto& result = inspection.recognised();
  if (const auto* no = std::get_if<NotRecognised>(&result))
    return {{"recognised", false}, {"node", no->node}, {"reason", no->reason}};
  const auto& model = std::get<DecoderModel>(result);
  json caches = json::array();
  for (const CacheSpec& c : model.caches)
    caches.push_back({{"key", c.key_input},
                      {"value", c.value_input},
                      {"kv_heads", c.kv_heads},
                      {"key_dim", c.key_dim},
                      {"value_dim", c.value_dim},
                      {"window", c.window}});
  return {
      {"recognised", true},          {"vocabulary", model.vocabulary}, {"max_positions", model.max_positions},
      {"caches", std::move(caches)}, {"evidence", model.evidence},     {"tokens", json_of(model.tokens)}};
}

std::string recognise_text(Inspection& inspection) {
  const auto& result = inspection.recognised();
  if (const auto* no = std::get_if<NotRecognised>(&result))
    return "not recognised as a decoder" + (no->node.empty() ? "" : " at node " + no->node) + ": " +
           no->reason + "\nserved plain: one sequence at a time\n";
  const auto& model = std::get<DecoderModel>(result);
  std::string out = "decoder: " + std::to_string(model.caches.size()) + " caches, vocabulary " +
                    std::to_string(model.vocabulary) + ", positions " +
                    (model.max_positions ? std::to_string(model.max_positions) : "not limited") + "\n";
  for (const std::string& line : model.evidence) out += "  " + line + "\n";
  return out + model.tokens.str();
}

Picture recognise_picture(Inspection& i) {
  const auto* model = std::get_if<DecoderModel>(&i.recognised());
  return picture_of(model ? model->tokens : i.passed(), picture_name(i, "recognise"));
}

}  // namespace

const onnx::Model& Inspection::parsed() {
  if (!parsed_) parsed_ = onnx::parse_model(file());
  return *parsed_;
}

const Graph& Inspection::built() {
  ImportOptions as_served;
  as_served.settle_controls = true;
  if (built_) return *built_;
  if (onnx::embeddings_beside(file())) {
    onnx::Model whole = onnx::parse_model(file());  // parsed() is the file alone, and copies are large
    onnx::join_embeddings(whole, file(), as_served.limits);
    built_ = build_graph(whole, as_served);
  } else {
    built_ = build_graph(parsed(), as_served);
  }
  return *built_;
}

const Graph& Inspection::passed() {
  if (!passed_) {
    passed_ = built();
    run_passes(*passed_);
  }
  return *passed_;
}

const std::variant<DecoderModel, NotRecognised>& Inspection::recognised() {
  // As for serving: tables of positions end where the configuration beside the file says.
  if (!recognised_) recognised_ = recognise_decoder(passed(), table_length(load()));
  return *recognised_;
}

const std::vector<InspectStage>& inspect_stages() {
  static const auto* table = new std::vector<InspectStage>{
      {"parse", parse_text, parse_json, nullptr},
      {"graph", [](Inspection& i) { return i.built().str(); },
       [](Inspection& i) { return json_of(i.built()); },
       [](Inspection& i) { return picture_of(i.built(), picture_name(i, "graph")); }},
      {"passes", [](Inspection& i) { return i.passed().str(); },
       [](Inspection& i) { return json_of(i.passed()); },
       [](Inspection& i) { return picture_of(i.passed(), picture_name(i, "passes")); }},
      {"recognise", recognise_text, recognise_json, recognise_picture},
      {"plan", plan_text, plan_json, plan_picture},
      {"program", program_text, program_json, program_picture},
      {"weights", weights_text, weights_json, nullptr},
      {"placement", placement_text, placement_json, nullptr},
      {"cuda", cuda_text, cuda_json, nullptr},
      {"cost", cost_text, cost_json, nullptr},
  };
  return *table;
}

const LoadOptions& Inspection::load() {
  if (!load_) load_ = load_options(options_);
  return *load_;
}

LaunchTerms Inspection::launch_terms() {
  const auto* model = std::get_if<DecoderModel>(&recognised());
  if (!model) throw Error(Code::kUnsupported, "no decoder: " + why_plain(*this));
  return terms_for(facts_of(*model), load(), for_gpu_);
}

const Compiled& Inspection::compiled() {
  if (compiled_) return *compiled_;
  if (const auto* model = std::get_if<DecoderModel>(&recognised())) {
    const LaunchTerms terms = launch_terms();
    limits_ = terms.limits;
    compiled_ = compile_model(*model, terms);
    return *compiled_;
  }
  check_plain(passed());
  std::set<std::string> symbols;
  for (const ValueId v : passed().inputs)
    for (const Expr& e : *passed().value(v).shape) e.collect_symbols(symbols);
  SymbolValues sizes;
  for (const std::string& s : symbols) sizes[s] = kPlainSize;
  compiled_ = compile_plain(passed(), sizes);
  return *compiled_;
}

namespace {

// Nodes that no kernel runs, in subgraphs too.
void refuse_missing_kernels(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    for (const auto& body : node.subgraphs) refuse_missing_kernels(*body);
    if (node.subgraphs.empty() && !find_kernel(node.op))
      throw Error(Code::kUnsupported,
                  "node " + escaped(node.name) + ": no kernel for operator " + std::string(name_of(node.op)));
  }
}

// What is not compiled shows only when it runs whether its sizes fit.
void run_a_prompt(Inspection& inspection) {
  LoadOptions options = inspection.load();
  options.plain = options.is_alone = true;
  StageLog log([](const std::string&) {});
  load_runner(options, log);
}

// What lies beside a model that generates, as those read it that serve it.
void check_text(Inspection& inspection, int64_t vocabulary) {
  check_ids(text::load_model_text(inspection.text_folder(), inspection.file()), vocabulary);
}

std::string how_it_runs(Inspection& inspection) {
  if (inspection.is_decoder()) {
    const Compiled& c = inspection.compiled();
    check_text(inspection, std::get<DecoderModel>(inspection.recognised()).vocabulary);
    return "decoder, " + std::to_string(c.programs.size()) + " ranks";
  }
  refuse_missing_kernels(inspection.passed());
  if (const auto signature = find_signature(inspection.passed(), nullptr);
      signature && !std::get<NotRecognised>(inspection.recognised()).fills_blanks) {
    check_text(inspection, signature->vocabulary);
    run_a_prompt(inspection);
  }
  return "plain, " + why_plain(inspection);
}

}  // namespace

std::string why_plain(Inspection& inspection) {
  const auto& no = std::get<NotRecognised>(inspection.recognised());
  const std::string because = (no.node.empty() ? "" : escaped(no.node) + ": ") + no.reason;
  if (no.fills_blanks) return "not for ark-serve, as it fills blanks and does not generate: " + because;
  const ModelKind kind = kind_of(inspection.passed());
  if (!kind.why_not.empty()) return "not for ark-serve: " + why_not_served(inspection.passed(), because);
  try {
    const auto signature = find_signature(inspection.passed(), nullptr);
    StepInputs(inspection.passed(), *signature).check();
    return "served one sequence at a time: " + because;
  } catch (const Error& e) {
    return "not for ark-serve: " + std::string(e.what()) + ". It is not batched: " + because;
  }
}

std::string summary(Inspection& inspection) {
  const Graph& graph = inspection.passed();
  int64_t nodes = 0, weights = 0, bytes = 0;
  for (const Node& n : graph.nodes) nodes += !n.removed;
  for (const Value& v : graph.values)
    if (v.constant) ++weights, bytes += bytes_of(v.dtype, v.constant->size());
  return escaped(inspection.file().string()) + ": " + std::to_string(inspection.parsed().graph.nodes.size()) +
         " ONNX nodes, " + std::to_string(nodes) + " after passes, " + std::to_string(weights) +
         " constants of " + std::to_string(bytes) + " bytes, " + how_it_runs(inspection);
}

}  // namespace ark
