#include "server/tools/model_card.h"

#include <cstdio>

#include "base/error.h"
#include "base/ir/payloads.h"
#include "engine/ragged_runner.h"
#include "engine/run/weight_store.h"
#include "server/json.h"
#include "server/load/model_file.h"
#include "server/load/model_kind.h"
#include "server/text/model_text.h"

namespace ark {
namespace {

std::string type_text(const Value& v) {
  return std::string(name_of(v.dtype)) + (v.shape ? str(*v.shape) : "[?]");
}

// Head counts and sizes, from the attention nodes of the proven graph.
void add_decoder(const DecoderModel& model, Json& card) {
  card["layers"] = model.caches.size();
  card["vocabulary"] = model.vocabulary;
  for (const Node& node : model.tokens.nodes) {
    if (node.removed) continue;
    const auto last_dim = [&](ValueId v, std::size_t axis) {
      const auto& shape = model.tokens.value(v).shape;
      return shape && axis < shape->size() ? (*shape)[axis].constant() : std::nullopt;
    };
    if (node.op == Op::kPagedAttention && !card.contains("heads"))
      if (const auto heads = last_dim(node.inputs[0], 1)) card["heads"] = *heads;
    if (node.op == Op::kSelectRows)
      if (const auto width = last_dim(node.inputs[0], 1)) card["hidden_size"] = *width;
  }
  if (model.caches.empty()) return;
  card["kv_heads"] = model.caches[0].kv_heads;
  card["head_dim"] = model.caches[0].key_dim;
  if (model.caches[0].window > 0) card["window"] = model.caches[0].window;
}

void add_context(Inspection& inspection, const DecoderModel& model, Json& card) {
  const int64_t file = model.max_positions, beside = inspection.load().config_length;
  const int64_t tokens = inspection.max_length();
  const char* from = tokens == beside ? "the configuration beside the file"
                     : tokens == file ? "the file's table of positions"
                                      : "ark's default, as nothing limits it";
  card["context"] = {{"tokens", tokens}, {"from", from}};
}

void add_ranks(Inspection& inspection, Json& card) {
  const Compiled& c = inspection.compiled();
  card["kv_bytes_per_token"] = page_bytes(c.programs) / inspection.page_size();
  const int64_t pages = (inspection.max_length() + inspection.page_size() - 1) / inspection.page_size();
  for (std::size_t r = 0; r < c.programs.size(); ++r) {
    card["ranks"].push_back({{"weights", weight_bytes(c.programs[r])},
                             {"kv_of_a_full_sequence", page_bytes({c.programs[r]}) * pages},
                             {"activations", c.bindings[r].act_bytes + c.bindings[r].inbox_bytes}});
  }
}

void add_text(Inspection& inspection, Json& card) {
  const text::ModelText text = text::load_model_text(inspection.text_folder(), inspection.load().model);
  if (text.tokenizer) card["tokenizer"] = text.tokenizer->vocab_size();
  card["chat_template"] = text.chat_template.has_value();
  if (!text.chat_template_error.empty()) card["chat_template_error"] = text.chat_template_error;
  card["end_tokens"] = text.eos_ids;
}

Json values_json(const Graph& graph, const std::vector<ValueId>& values,
                 const std::vector<std::string>& names) {
  Json list = Json::array();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Value& v = graph.value(values[i]);
    list.push_back({{"name", i < names.size() ? names[i] : v.name}, {"type", type_text(v)}});
  }
  return list;
}

// 134515008 -> "134.5 M".
std::string count_text(int64_t n) {
  char text[32];
  const auto value = static_cast<double>(n);
  if (n >= 1'000'000'000)
    std::snprintf(text, sizeof text, "%.2f billion", value / 1e9);
  else if (n >= 100'000)
    std::snprintf(text, sizeof text, "%.1f million", value / 1e6);
  else
    return std::to_string(n);
  return text;
}

std::string shape_line(const Json& card) {
  const auto number = [&](const char* name) { return std::to_string(card[name].get<int64_t>()); };
  std::string text = card["kind"].get<std::string>();
  const char* separator = ": ";
  const auto add = [&](const std::string& part) { text += separator + part, separator = ", "; };
  if (card.contains("layers")) add(number("layers") + " layers");
  if (card.contains("heads")) add(number("heads") + " heads of " + number("head_dim"));
  if (card.contains("kv_heads")) add(number("kv_heads") + " for keys and values");
  if (card.contains("window")) add("window of " + number("window"));
  if (card.contains("hidden_size")) add("hidden size " + number("hidden_size"));
  if (card.contains("vocabulary")) add("vocabulary " + number("vocabulary"));
  return text;
}

std::string values_line(const Json& values) {
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < kShown; ++i)
    text += (i ? ", " : "") + escaped(values[i]["name"].get<std::string>(), 60) + " " +
            values[i]["type"].get<std::string>();
  return values.size() > kShown ? text + ", and " + std::to_string(values.size() - kShown) + " more" : text;
}

std::string ranks_line(const Json& ranks) {
  int64_t weights = 0, pages = 0, activations = 0;
  for (const Json& rank : ranks) {
    weights = std::max(weights, rank["weights"].get<int64_t>());
    pages = std::max(pages, rank["kv_of_a_full_sequence"].get<int64_t>());
    activations = std::max(activations, rank["activations"].get<int64_t>());
  }
  return size_text(weights) + " of weights a rank, " + size_text(activations) + " of activations, " +
         size_text(pages) + " of keys and values for each full sequence";
}

}  // namespace

Json model_card(Inspection& inspection) {
  const onnx::Model& parsed = inspection.parsed();
  const Graph& graph = inspection.passed();
  Json card = {
      {"model", inspection.file().filename().string()},
      {"producer", parsed.producer + (parsed.producer_version.empty() ? "" : " " + parsed.producer_version)},
      {"nodes", parsed.graph.nodes.size()}};
  if (const auto opset = parsed.opsets.find(""); opset != parsed.opsets.end()) card["opset"] = opset->second;
  const auto* model = std::get_if<DecoderModel>(&inspection.recognised());
  const auto signature = find_signature(graph, nullptr);
  const auto* no = std::get_if<NotRecognised>(&inspection.recognised());
  card["kind"] = no && no->fills_blanks ? "encoder" : kind_of(graph).name;
  const WeightTotals totals = weight_totals(graph);
  card["parameters"] = totals.parameters;
  card["bytes"] = Json::object();
  for (const auto& [type, bytes] : totals.bytes) card["bytes"][name_of(type)] = bytes;
  card["serving"] = model ? "batched: " + model->evidence.front() : "plain, " + why_plain(inspection);
  if (model) {
    add_decoder(*model, card);
    try {
      add_ranks(inspection, card);
      add_context(inspection, *model, card);
    } catch (const Error& e) {
      card["serving"] = std::string("no: ") + e.what();
    }
  } else if (signature) {
    card["layers"] = signature->caches.size();
    card["vocabulary"] = signature->vocabulary;
  }
  if (model || signature) {
    add_text(inspection, card);
  } else {
    card["inputs"] = values_json(graph, graph.inputs, {});
    card["outputs"] = values_json(graph, graph.outputs, graph.output_names);
  }
  return card;
}

std::vector<std::pair<std::string, std::string>> card_lines(const Json& card) {
  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back("model", escaped(card["model"].get<std::string>()) + ", by " +
                                  escaped(card["producer"].get<std::string>(), 60) +
                                  (card.contains("opset") ? ", opset " + card["opset"].dump() : "") + ", " +
                                  card["nodes"].dump() + " nodes");
  lines.emplace_back("shape", shape_line(card));
  lines.emplace_back("parameters", count_text(card["parameters"].get<int64_t>()));
  std::string bytes;
  for (const auto& [type, count] : card["bytes"].items())
    bytes += (bytes.empty() ? "" : ", ") + type + " " + size_text(count.get<int64_t>());
  lines.emplace_back("weights", bytes);
  if (card.contains("kv_bytes_per_token"))
    lines.emplace_back("cache",
                       size_text(card["kv_bytes_per_token"].get<int64_t>()) + " of keys and values a token");
  if (card.contains("context"))
    lines.emplace_back("context", card["context"]["tokens"].dump() + " tokens, from " +
                                      card["context"]["from"].get<std::string>());
  if (card.contains("chat_template")) {
    const std::string refused = card.value("chat_template_error", "");
    lines.emplace_back("tokenizer", card.contains("tokenizer")
                                        ? card["tokenizer"].dump() + " tokens, " +
                                              std::to_string(card["end_tokens"].size()) +
                                              " of them end a text"
                                        : "none beside the file: token ids only");
    lines.emplace_back("chat", card["chat_template"].get<bool>() ? "template beside the file"
                               : refused.empty()                 ? "no template: completions only"
                                                                 : "template refused: " + escaped(refused));
  }
  for (const char* name : {"inputs", "outputs"})
    if (card.contains(name)) lines.emplace_back(name, values_line(card[name]));
  lines.emplace_back("serving", card["serving"].get<std::string>());
  if (card.contains("ranks"))
    lines.emplace_back("--tp " + std::to_string(card["ranks"].size()), ranks_line(card["ranks"]));
  return lines;
}

std::string card_text(const Json& card) {
  std::string text;
  for (const auto& [what, fact] : card_lines(card))
    text += what + std::string(12 - std::min<std::size_t>(11, what.size()), ' ') + fact + "\n";
  return text;
}

}  // namespace ark
