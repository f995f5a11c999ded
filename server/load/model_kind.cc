#include "server/load/model_kind.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "importer/decoder.h"
#include "importer/input_reach.h"

namespace ark {
namespace {

// Weights of attention: a softmax whose result, in whatever type, is multiplied from the left.
bool attends(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    if (node.removed || node.inputs.empty()) return false;
    if (node.op == Op::kAttention) return true;
    const Node* weights = node.op == Op::kMatMul ? graph.producer(node.inputs[0]) : nullptr;
    while (weights && (weights->op == Op::kCast || weights->op == Op::kReshape))
      weights = graph.producer(weights->inputs[0]);
    return weights && weights->op == Op::kSoftmax;
  });
}

// Keys, values, hidden states: [batch, ..., width], the width known. The width, else 0.
int64_t width_of_states(const Value& value) {
  if (!is_floating(value.dtype) || !value.shape || value.shape->size() < 3) return 0;
  return value.shape->back().constant().value_or(0);
}

struct States {
  std::size_t read = 0;          // inputs that hold some
  std::vector<ValueId> foreign;  // of these, what no output is left to continue
};
States states_of(const Graph& graph) {
  std::vector<ValueId> outputs = graph.outputs;
  if (!outputs.empty()) outputs.erase(outputs.begin());  // logits
  States states;
  for (const ValueId input : graph.inputs) {
    const Value& in = graph.value(input);
    const int64_t width = width_of_states(in);
    if (width == 0) continue;
    ++states.read;
    const auto next = std::ranges::find_if(outputs, [&](ValueId output) {
      const Value& out = graph.value(output);
      return width_of_states(out) == width && out.shape->size() == in.shape->size();
    });
    if (next == outputs.end())
      states.foreign.push_back(input);
    else
      outputs.erase(next);
  }
  return states;
}

bool is_token_ids(const Value& value) {
  return is_integer(value.dtype) && value.shape && value.shape->size() == 2 && !(*value.shape)[1].constant();
}

// What is foreign has one row for each row of logits, and nothing looks up token ids: they are looked up before.
bool takes_embeddings(const Graph& graph, const States& states, const Value& logits) {
  const auto readers = graph.consumers();
  return std::ranges::none_of(graph.inputs,
                              [&](ValueId v) {
                                return is_integer(graph.value(v).dtype) &&
                                       input_reach::table_rows(graph, readers, v) > 0;
                              }) &&
         std::ranges::all_of(states.foreign,
                             [&](ValueId v) { return (*graph.value(v).shape)[1] == (*logits.shape)[1]; });
}

// "logits [batch, 3]"
std::string outputs_text(const Graph& graph) {
  std::string text;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Value& value = graph.value(graph.outputs[i]);
    if (!is_floating(value.dtype)) continue;
    text += (text.empty() ? "" : ", ") + escaped(graph.output_names[i]) +
            (value.shape ? " " + str(*value.shape) : "");
  }
  return text;
}

}  // namespace

std::string why_not_served(const Graph& graph, const std::string& refusal) {
  const ModelKind kind = kind_of(graph);
  return kind.name == "decoder" && !refusal.empty() ? refusal : kind.why_not;
}

ModelKind kind_of(const Graph& graph) {
  std::string why;
  if (find_signature(graph, &why)) return {"decoder", ""};
  const Value* first = graph.outputs.empty() ? nullptr : &graph.value(graph.outputs[0]);
  if (!first || !is_floating(first->dtype)) return {"other", why};
  const bool reads_ids =
      std::ranges::any_of(graph.inputs, [&](ValueId v) { return is_token_ids(graph.value(v)); });
  const States states = states_of(graph);
  if (reads_ids && states.read > 0 && first->shape && first->shape->size() == 3) {
    if (states.foreign.empty()) return {"decoder", why};
    if (!takes_embeddings(graph, states, *first))
      return {"decoder with an encoder's states", "it is a decoder that reads an encoder's states: " + why};
    const Value& rows = graph.value(states.foreign[0]);
    if (states.read > states.foreign.size())  // else rows of sound, say, and nothing that grows
      return {"decoder of embeddings",
              "it is a decoder of embeddings, " + escaped(rows.name) + " " + str(*rows.shape) +
                  ", where ark-serve has token ids: put the file that looks them up beside "
                  "it as embed_tokens.onnx, or export it with its embedding table, from input_ids on"};
  }
  const auto features =
      std::ranges::count_if(graph.inputs, [&](ValueId v) { return is_floating(graph.value(v).dtype); });
  const bool is_picture = first->shape && first->shape->size() > 3;
  if (is_picture || !(reads_ids || (features == 1 && attends(graph)))) return {"other", why};
  return {"encoder", "it is an encoder or classifier, which outputs " + outputs_text(graph)};
}

}  // namespace ark
