// The stages behind recognise: what the compiler made.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/kernel.h"
#include "dma/transports.h"
#include "engine/cuda/codegen.h"
#include "engine/partition/op_rule.h"
#include "engine/plan_file.h"
#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/ragged_runner.h"
#include "engine/run/weight_store.h"
#include "server/json.h"
#include "server/load/device.h"
#include "server/load/members.h"
#include "server/tools/inspect_stages.h"
#include "server/tools/program_picture.h"

namespace ark {
namespace {

using json = Json;

json json_of(const std::vector<Range>& ranges) {
  json j = json::array();
  for (const Range& r : ranges) j.push_back({r.begin, r.end});
  return j;
}

// -- plan

const char* name_of(Spec::Kind kind) {
  const char* const names[] = {"replicated", "split", "partial"};
  return names[static_cast<std::size_t>(kind)];
}

std::string spec_text(const Compiled& c, ValueId v) {
  if (v == kNoValue) return "-";
  const Spec& spec = c.plan.specs[v];
  const std::string id = "%" + std::to_string(v) + " ";
  if (spec.kind != Spec::Kind::kSplit) return id + name_of(spec.kind);
  return id + "split " + std::to_string(spec.axis) + " " + ranges_text(spec.ranges, "|");
}

bool is_sharded(const Compiled& c, const Node& node) {
  for (const auto* list : {&node.inputs, &node.outputs})
    for (const ValueId v : *list)
      if (v != kNoValue && c.plan.specs[v].kind != Spec::Kind::kReplicated) return true;
  return false;
}

std::string specs_text(const Compiled& c, const std::vector<ValueId>& values) {
  std::string text;
  for (const ValueId v : values) text += (text.empty() ? "" : ", ") + spec_text(c, v);
  return text;
}

// -- weights

// Names of the constants that programs use, by their index.
std::vector<std::string> constant_names(const Compiled& c) {
  std::map<const Constant*, std::string> names;
  for (const Value& v : c.graph.values)
    if (v.constant) names.emplace(v.constant.get(), v.name);
  std::vector<std::string> result;
  for (const ConstantPtr& constant : c.constants) {
    const auto found = names.find(constant.get());
    result.push_back(found == names.end() ? "" : found->second);
  }
  return result;
}

std::string layout_text(const WeightUse& w) {
  if (w.layout == Layout::kRaw) return "raw";
  return std::to_string(w.panel) + "-column panels" + (w.transposed ? ", transposed" : "");
}

// -- placement

const char* isa_name() { return kIsaNames[static_cast<std::size_t>(best_isa())]; }

std::string_view body_of(const Variant& v) {
  return v.code == OpCode::kGeneric ? name_of(v.op) : name_of(v.code);
}

// Why no program can be made of a graph; empty if one can. Then its nodes are called one by one.
std::string why_called(Inspection& inspection) {
  if (inspection.is_decoder()) return "";
  try {
    check_plain(inspection.passed());
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Where the dynamic driver runs a node.
std::string called_by(const Node& node) {
  if (!node.subgraphs.empty()) return "host control flow";
  return find_kernel(node.op) ? "cpu kernel" : "nowhere: no kernel";
}

std::string phase_operands(const Phase& phase) {
  std::string text;
  for (const Operand& o : phase.operands)
    text += (text.empty() ? "" : ", ") + (o.slot != kNone     ? "." + std::to_string(o.slot)
                                          : o.buffer == kNone ? "-"
                                                              : "%" + std::to_string(o.buffer));
  return text;
}

json phases_json(const Program& p) {
  json phases = json::array();
  for (const Phase& phase : p.phases)
    phases.push_back(
        {{"name", phase.name},
         {"variant", phase.variant},
         {"body", body_of(p.variants[phase.variant])},
         {"operands", phase_operands(phase)},
         {"grid", phase.grid == kNone ? json(nullptr) : json(p.vals[phase.grid].e.str())},
         {"waits", phase.waits.size()},
         {"channel", phase.channel == kNone ? json(nullptr) : json(p.channels[phase.channel].name)},
         {"trips", phase.repeat == kNone ? 1 : p.repeats[phase.repeat].trips}});
  return phases;
}

json buffers_json(const Program& p, const Binding& binding) {
  json buffers = json::array();
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& b = p.buffers[i];
    json dims = json::array();
    for (const ValId v : b.dims) dims.push_back(p.vals[v].e.str());
    buffers.push_back({{"name", b.name},
                       {"kind", name_of(b.kind)},
                       {"dtype", name_of(b.dtype)},
                       {"dims", dims},
                       {"offset", binding.offsets[i]},
                       {"alias", b.alias == kNone ? json(nullptr) : json(b.alias)}});
  }
  return buffers;
}

}  // namespace

std::string plan_text(Inspection& inspection) {
  const Compiled& c = inspection.compiled();
  std::string text = std::to_string(c.programs.size()) + " ranks\n";
  for (const std::string& line : c.plan.summary) text += "  " + line + "\n";
  if (c.programs.size() > 1)
    text +=
        "%N: value N of this stage's graph. replicated: whole on every rank. split A b:e|b:e: of axis A rank "
        "0 has "
        "elements b to e - 1,\n  rank 1 the next. partial: every rank has a summand. Nodes with only "
        "replicated "
        "values are left out.\n";
  for (const Node& node : c.graph.nodes)
    if (!node.removed && is_sharded(c, node))
      text += std::string(name_of(node.op)) + "(" + specs_text(c, node.inputs) + ") -> " +
              specs_text(c, node.outputs) + "  # " + escaped(node.name) + "\n";
  return text;
}

json plan_json(Inspection& inspection) {
  const Compiled& c = inspection.compiled();
  json values = json::array(), nodes = json::array();
  for (std::size_t v = 0; v < c.graph.values.size(); ++v) {
    const Spec& spec = c.plan.specs[v];
    json j = {{"id", v}, {"name", c.graph.values[v].name}, {"spec", name_of(spec.kind)}};
    if (spec.kind == Spec::Kind::kSplit) j["axis"] = spec.axis, j["ranges"] = json_of(spec.ranges);
    values.push_back(std::move(j));
  }
  for (const Node& node : c.graph.nodes)
    if (!node.removed)
      nodes.push_back({{"op", name_of(node.op)},
                       {"name", node.name},
                       {"inputs", node.inputs},
                       {"outputs", node.outputs}});
  return {{"ranks", c.programs.size()},
          {"seconds", c.plan.seconds},
          {"summary", c.plan.summary},
          {"values", std::move(values)},
          {"nodes", std::move(nodes)}};
}

std::string program_text(Inspection& inspection) {
  return plan_text(inspection.compiled().programs, inspection.compiled().bindings);
}

json program_json(Inspection& inspection) {
  const Compiled& c = inspection.compiled();
  json ranks = json::array();
  for (std::size_t r = 0; r < c.programs.size(); ++r) {
    const Program& p = c.programs[r];
    json variants = json::array(), channels = json::array(), repeats = json::array();
    for (const Variant& v : p.variants) variants.push_back(variant_text(v));
    for (const Channel& channel : p.channels)
      channels.push_back({{"name", channel.name},
                          {"peer", channel.peer},
                          {"direction", channel.outgoing ? "out" : "in"},
                          {"bytes", channel.bytes}});
    for (const Repeat& repeat : p.repeats)
      repeats.push_back({{"first", repeat.first}, {"count", repeat.count}, {"trips", repeat.trips}});
    ranks.push_back({{"rank", r},
                     {"buffers", buffers_json(p, c.bindings[r])},
                     {"variants", std::move(variants)},
                     {"channels", std::move(channels)},
                     {"repeats", std::move(repeats)},
                     {"phases", phases_json(p)},
                     {"act_bytes", c.bindings[r].act_bytes},
                     {"inbox_bytes", c.bindings[r].inbox_bytes}});
  }
  return {{"ranks", std::move(ranks)}};
}

Picture plan_picture(Inspection& i) {
  return plan_picture(i.compiled().programs, i.file().filename().string() + ": plan");
}

Picture program_picture(Inspection& i) {
  return program_picture(i.compiled().programs, i.file().filename().string() + ": program");
}

std::string weights_text(Inspection& inspection) {
  const Compiled& c = inspection.compiled();
  const std::vector<std::string> names = constant_names(c);
  std::string text;
  for (std::size_t r = 0; r < c.programs.size(); ++r) {
    const Program& p = c.programs[r];
    text += "rank " + std::to_string(r) + ": " + std::to_string(p.weights.size()) + " weights, " +
            std::to_string(weight_bytes(p)) + " bytes (" + size_text(weight_bytes(p)) + ")\n";
    std::map<std::string, std::pair<int, int64_t>> kinds;
    for (const WeightUse& w : p.weights) {
      auto& [count, bytes] = kinds[std::string(name_of(w.stored)) + " " + layout_text(w)];
      ++count, bytes += packed_bytes(w);
    }
    for (const auto& [kind, sum] : kinds)
      text += "  " + size_text(sum.second) + " in " + std::to_string(sum.first) + " x " + kind + "\n";
    for (const WeightUse& w : p.weights)
      text += "  " + std::string(name_of(w.stored)) + " [" + ranges_text(w.ranges, "|") + "] " +
              layout_text(w) + ", " + std::to_string(packed_bytes(w)) + " bytes  # " +
              escaped(names[w.constant]) + "\n";
  }
  return text;
}

json weights_json(Inspection& inspection) {
  const Compiled& c = inspection.compiled();
  const std::vector<std::string> names = constant_names(c);
  json ranks = json::array();
  for (const Program& p : c.programs) {
    json weights = json::array();
    for (const WeightUse& w : p.weights)
      weights.push_back({{"name", names[w.constant]},
                         {"constant", w.constant},
                         {"dims", c.constants[w.constant]->dims},
                         {"ranges", json_of(w.ranges)},
                         {"dtype", name_of(w.stored)},
                         {"layout", layout_text(w)},
                         {"bytes", packed_bytes(w)}});
    ranks.push_back({{"bytes", weight_bytes(p)}, {"weights", std::move(weights)}});
  }
  return {{"ranks", std::move(ranks)}};
}

// The case of the loop kernel that runs a phase on a GPU, or why there is none.
std::string on_cuda(const Program& program, const cuda::XParts& parts, const cuda::Appended& appended,
                    std::size_t phase) {
  try {
    const cuda::DeviceVariant variant =
        cuda::device_variant(program, static_cast<PhaseId>(phase), parts, appended);
    return "cuda: " + variant.type + (variant.takes_tiles ? ", in the products before it" : "");
  } catch (const Error& e) {
    return std::string("not on cuda: ") + e.what();
  }
}

// Which transport joins ranks that are threads of one process, as they are here and without --processes.
std::string link_between_threads() {
  const std::vector<dma::Place> two(2, dma::Place::here());
  for (const dma::TransportKind& kind : dma::transports())
    if (kind.can_connect(two)) return std::string(kind.name);
  return "";
}

json placement_json(Inspection& inspection) {
  json nodes = json::array(), ranks = json::array();
  if (const std::string why = why_called(inspection); !why.empty()) {
    for (const Node& node : inspection.passed().nodes)
      if (!node.removed)
        nodes.push_back({{"op", name_of(node.op)}, {"name", node.name}, {"where", called_by(node)}});
    return {{"driver", "dynamic"}, {"reason", why}, {"nodes", std::move(nodes)}};
  }
  const Compiled& c = inspection.compiled();
  for (std::size_t r = 0; r < c.programs.size(); ++r) {
    const Program& program = c.programs[r];
    const cuda::XParts parts(program);
    const cuda::Appended appended(program);
    json phases = json::array();
    for (std::size_t p = 0; p < program.phases.size(); ++p) {
      const Phase& phase = program.phases[p];
      phases.push_back({{"body", body_of(program.variants[phase.variant])},
                        {"name", phase.name},
                        {"trips", phase.repeat == kNone ? 1 : program.repeats[phase.repeat].trips},
                        {"where", "program"},
                        {"cuda", on_cuda(program, parts, appended, p)}});
    }
    ranks.push_back({{"device", "cpu"},
                     {"isa", isa_name()},
                     {"weights", weight_bytes(program)},
                     {"activations", c.bindings[r].act_bytes},
                     {"inboxes", c.bindings[r].inbox_bytes},
                     {"page", page_bytes({program})},
                     {"phases", std::move(phases)}});
  }
  const Site here = sites_of({}, static_cast<int>(ranks.size()))[0];
  const auto processors = std::max<std::size_t>(1, static_cast<std::size_t>(here.cpus) / ranks.size());
  json links = json::array();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r]["machine"] = here.host;
    ranks[r]["processors"] = processors;
  }
  const std::vector<cuda::PairWay> ways = ways_between_gpus(static_cast<int>(ranks.size()));
  std::size_t way = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t peer = 0; peer < r; ++peer, ++way) {
      links.push_back({{"between", {peer, r}}, {"by", link_between_threads()}});
      if (!ways.empty()) links.back()["by_gpus"] = cuda::text_of({ways[way]});
    }
  }
  json placement = {{"driver", inspection.is_decoder() ? "decoder" : "static"},
                    {"ranks", std::move(ranks)},
                    {"links", std::move(links)}};
  if (std::string way = way_by_nic(); !way.empty()) placement["gpus_over_verbs"] = std::move(way);
  return placement;
}

std::string placement_text(Inspection& inspection) {
  const json all = placement_json(inspection);
  const auto text_of = [](const json& value) { return escaped(value.get<std::string>()); };
  std::string text;
  if (all.contains("reason")) {
    text = "called one by one: " + all["reason"].get<std::string>() + "\n";
    for (const json& node : all["nodes"])
      text +=
          "  " + text_of(node["where"]) + ": " + text_of(node["op"]) + "  # " + text_of(node["name"]) + "\n";
    return text;
  }
  if (!all["links"].empty())
    text += "every two of " + std::to_string(all["ranks"].size()) + " ranks exchange by " +
            text_of(all["links"][0]["by"]) + "\n";
  if (const auto ways = ways_between_gpus(static_cast<int>(all["ranks"].size())); !ways.empty())
    text += "as processes on this machine's GPUs: " + cuda::text_of(ways) + "\n";
  if (all.contains("gpus_over_verbs"))
    text += "those that do not reach each other, by --transport verbs: " +
            all["gpus_over_verbs"].get<std::string>() + "\n";
  for (std::size_t r = 0; r < all["ranks"].size(); ++r) {
    const json& rank = all["ranks"][r];
    const auto number = [&](const char* name) { return std::to_string(rank[name].get<int64_t>()); };
    text += "rank " + std::to_string(r) + " on " + text_of(rank["machine"]) + ", " + number("processors") +
            " processors, on cpu (" + text_of(rank["isa"]) + "): " + number("weights") +
            " bytes of weights, " + number("activations") + " of activations, " + number("inboxes") +
            " of inboxes, " + number("page") + " a page of keys and values\n";
    for (const json& phase : rank["phases"]) {
      const auto trips = phase["trips"].get<int64_t>();
      text += "  program: " + text_of(phase["body"]) + (trips == 1 ? "" : " x" + std::to_string(trips)) +
              "  # " + text_of(phase["name"]) + "; " + phase["cuda"].get<std::string>() + "\n";
    }
  }
  return text;
}

// -- cuda: the source of the loop kernel that a GPU would run. Needs neither a GPU nor a compiler.

cuda::VariantSet variants_of(Inspection& inspection) {
  return variants_of(inspection.compiled().programs, inspection.load().device.numerics);
}

std::string cuda_text(Inspection& inspection) { return cuda::make_source(variants_of(inspection)).text; }

json cuda_json(Inspection& inspection) {
  const cuda::VariantSet variants = variants_of(inspection);
  json cases = json::array();
  for (const cuda::DeviceVariant& variant : variants.all()) cases.push_back(variant.type);
  cuda::KernelSource source = cuda::make_source(variants);
  return {
      {"cases", std::move(cases)}, {"flags", std::move(source.flags)}, {"source", std::move(source.text)}};
}

}  // namespace ark
