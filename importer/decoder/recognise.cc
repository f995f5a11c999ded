// Plain graph -> token graph, or the node where the proof ends.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/ir/quantized.h"
#include "importer/decoder.h"
#include "importer/decoder/caches.h"
#include "importer/decoder/cleanup.h"
#include "importer/decoder/expert_loops.h"
#include "importer/decoder/limits.h"
#include "importer/decoder/lower_convolutions.h"
#include "importer/decoder/lower_einsum.h"
#include "importer/decoder/part_probe.h"
#include "importer/decoder/quantized_weights.h"
#include "importer/decoder/rewrite.h"
#include "importer/decoder/settle_branches.h"
#include "importer/decoder/static_caches.h"
#include "importer/passes/passes.h"

namespace ark {
namespace {

using namespace decoder;  // the stages of this one function

constexpr int64_t kDefaultLength = 8'192;  // of tables, if neither file nor caller says

// Keeps what the decoder protocol needs: logits and caches.
void prune(Graph& graph, DecoderSignature& signature) {
  std::vector<ValueId> outputs{graph.outputs[signature.logits]};
  for (auto& cache : signature.caches) {
    outputs.push_back(graph.outputs[cache.output]);
    cache.output = outputs.size() - 1;
  }
  signature.logits = 0;
  graph.outputs = outputs;
  graph.remove_dead();
  passes::drop_unread_outputs(graph);
}

ValueId finish_logits(Rewrite& r) {
  const ValueId out = r.plain.outputs[r.roles.signature.logits];
  const Rows* rows = r.rows(out);
  if (!rows)
    throw Refusal(r.plain.producer(out) ? r.plain.producer(out)->name : "",
                  "the logits are no function of each token");
  const Layout& layout = rows->layout;
  const int64_t vocabulary = r.roles.signature.vocabulary;
  if (has_rows(layout.back()) || features(layout) != vocabulary || has_kind(layout, AtomKind::kPast) ||
      has_kind(layout, AtomKind::kContext) || (!rows->last && !has_kind(layout, AtomKind::kSequence)))
    throw Refusal(r.plain.producer(out) ? r.plain.producer(out)->name : "",
                  "the logits are laid out " + str(layout) + ", not [batch, sequence, vocabulary]");
  if (rows->last) r.evidence.push_back("the file computes logits of the last token only: a row selection");
  return r.out.widened(r.out.reshape(rows->tokens, {vocabulary}));
}

bool same_mask(const AttentionMask& a, const AttentionMask& b) {
  return a.window == b.window && a.softcap == b.softcap && a.slopes.empty() == b.slopes.empty();
}

std::string describe(const Block& b) {
  std::string text = std::to_string(b.heads) + " heads on " + std::to_string(b.kv_heads) +
                     " key/value heads of " + std::to_string(b.key_dim);
  if (b.value_dim != b.key_dim) text += " and " + std::to_string(b.value_dim);
  char number[64];
  text += ", mask proven causal by evaluating it";
  if (b.mask.window) text += ", sliding window of " + std::to_string(b.mask.window);
  if (b.mask.softcap != 0)
    std::snprintf(number, sizeof number, ", soft cap %.6g", b.mask.softcap), text += number;
  if (!b.mask.slopes.empty()) text += ", linear biases (ALiBi)";
  return text;
}

void describe_blocks(const std::vector<Block>& blocks, std::vector<std::string>& evidence) {
  for (std::size_t first = 0, i = 0; i <= blocks.size(); ++i) {
    const bool ends = i == blocks.size() || blocks[i].heads != blocks[first].heads ||
                      blocks[i].kv_heads != blocks[first].kv_heads ||
                      blocks[i].key_dim != blocks[first].key_dim ||
                      !same_mask(blocks[i].mask, blocks[first].mask);
    if (!ends || blocks.empty()) continue;
    const std::string which = i - first == 1
                                  ? "attention " + std::to_string(first)
                                  : "attentions " + std::to_string(first) + " to " + std::to_string(i - 1);
    evidence.push_back(which + ": " + describe(blocks[first]));
    first = i;
  }
}

void describe_weights(const Graph& graph, std::vector<std::string>& evidence) {
  std::map<int32_t, int> quantized;  // by bits
  for (const Value& v : graph.values)
    if (v.constant && v.constant->quantized) ++quantized[v.constant->quantized->bits];
  for (const auto& [bits, count] : quantized)
    evidence.push_back(std::to_string(count) + " weights of " + std::to_string(bits) + " bits");
  ConstantPtr embedding;
  for (const Node& node : graph.nodes)
    if (!node.removed && node.op == Op::kGather && node.inputs[1] == graph.inputs[0])
      embedding = graph.value(node.inputs[0]).constant;
  const Node* head = graph.producer(graph.outputs[0]);
  while (head && head->op != Op::kMatMul && !head->inputs.empty()) head = graph.producer(head->inputs[0]);
  if (!embedding || !head || !graph.value(head->inputs[1]).constant) return;
  evidence.push_back(same_payload(*embedding, *graph.value(head->inputs[1]).constant)
                         ? "output weights tied to the embedding"
                         : "output weights of their own");
}

bool has_tables(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (!node.removed &&
        std::find(node.inputs.begin(), node.inputs.end(), graph.inputs[1]) != node.inputs.end())
      return true;
  return false;
}

Graph cleaned(TokenBuilder& out, std::vector<std::string>& evidence) {
  out.graph.remove_dead();
  if (const int n = fuse_rotary(out))
    evidence.push_back(std::to_string(n) + " rotations of queries and keys by position");
  fuse_experts(out);
  if (const int n = split_projections(out))
    evidence.push_back(std::to_string(n) + " packed projections split by columns");
  Graph graph = select_rows(out.graph);
  passes::merge_duplicates(graph);
  graph.remove_dead();
  graph.sort();
  graph.compact();
  verify(graph, "recognise");
  return graph;
}

// Reals are f32 in the token graph, which is no worse than the 16 bits that a file may round to. Rounding to fewer is
// part of what the model computes.
void refuse_coarse_rounding(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.removed || node.op != Op::kCast || graph.value(node.inputs[0]).constant) continue;
    const DType to = graph.value(node.outputs[0]).dtype;
    if (is_floating(to) && bits_of(to) < 16)
      refuse(node, "rounds what is computed to " + std::string(name_of(to)));
  }
}

// With position tables and proofs for `max_length` tokens, or fewer if the file ends before; 0: its own
// choice.
DecoderModel recognise_up_to(const Graph& original, const DecoderSignature& signature, int64_t max_length) {
  Graph graph = original;
  own_subgraphs(graph);
  DecoderSignature pruned = signature;
  prune(graph, pruned);
  refuse_coarse_rounding(graph);
  lower_einsum(graph);
  lower_convolutions(graph);
  gather_expert_loops(graph);
  const int dynamic = products_of_reals(graph);
  spell_out_roundings(graph);
  dequantize_before_look_ups(graph);
  const Roles roles = unify_sizes(graph, pruned);
  const bool settled = settle_branches(graph, roles, max_length > 0 ? max_length : kDefaultLength);
  const int64_t wanted = max_length > 0 ? max_length : settled ? kDefaultLength : kProbedLength;
  const int64_t reach = reachable_length(graph, roles, wanted);
  const int64_t length = reach < wanted || max_length > 0 ? reach : kDefaultLength;
  if (reach < wanted) bound_sizes(graph, roles.sizes, length);
  Rewrite r(graph, roles, length);
  try {
    rewrite(r);
    check_caches(r);
    if (r.blocks.empty()) throw Refusal("", "there is no attention");
    r.out.graph.outputs = {finish_logits(r)};
  } catch (Refusal& refusal) {
    refusal.is_behind_masks = !r.blocks.empty();
    throw;
  }
  DecoderModel model;
  model.signature = signature;
  describe_blocks(r.blocks, r.evidence);
  std::vector<bool> by_factor;
  model.caches = cache_specs(r, by_factor);
  model.tokens = cleaned(r.out, r.evidence);
  settle_factors(model.caches, by_factor, model.tokens);
  model.vocabulary = signature.vocabulary;
  model.max_positions = settled || has_tables(model.tokens) || reach < wanted ? length : 0;
  describe_weights(model.tokens, r.evidence);
  if (const auto tokens = roles.sizes.sequence.constant())
    r.evidence.push_back("a step of the file has " + std::to_string(*tokens) +
                         (*tokens == 1 ? " token; here any number" : " tokens; here any number"));
  r.evidence.push_back(
      model.max_positions == 0 ? "sequences of any length"
      : reach < wanted
          ? "sequences of up to " + std::to_string(length) + " tokens, where the file's tables end"
      : settled ? "sequences of up to " + std::to_string(length) + " tokens, which all take the same branches"
                : "position tables made for " + std::to_string(length) + " tokens");
  if (dynamic)
    r.evidence.push_back(
        std::to_string(dynamic) +
        " products whose input the file rounds to 8 bits by one scale a step: here at most by row");
  model.evidence = std::move(r.evidence);
  model.signature.max_positions = settled || reach < wanted ? reach : 0;
  return model;
}

DecoderModel recognise(const Graph& original, const DecoderSignature& signature, int64_t max_length) {
  constexpr int64_t kShortest = 256;  // worth serving
  int64_t length = max_length;
  for (;;) {
    try {
      DecoderModel model = recognise_up_to(original, signature, length);
      if (length == max_length) return model;
      model.max_positions = model.max_positions ? std::min(model.max_positions, length) : length;
      model.signature.max_positions = model.max_positions;
      model.evidence.push_back("masks evaluated for " + std::to_string(model.max_positions) + " tokens");
      return model;
    } catch (const OutOfReach&) {  // what is not proven is not served: half as long, perhaps
      length = (length > 0 ? length : kDefaultLength) / 2;
      if (length < kShortest) throw;
    }
  }
}

// What the numbers of a given mask may say where they do not say what is usual.
std::vector<DecoderSignature> other_masks(const Graph& graph, const DecoderSignature& signature) {
  using Meaning = DecoderSignature::MaskMeaning;
  const Value& mask = graph.value(graph.inputs[*signature.mask]);
  const Shape &shape = *mask.shape, &ids = *graph.value(graph.inputs[signature.ids]).shape;
  const bool may_be_by_query = shape.size() == 2 && !shape[0].constant() && !(shape[0] == ids[0]);
  std::vector<DecoderSignature> others;
  for (const bool by_query : {false, true})
    for (const Meaning meaning : {Meaning::kUsual, Meaning::kHides, Meaning::kSelects}) {
      DecoderSignature other = signature;
      other.mask_meaning = meaning, other.mask_by_query = by_query;
      const bool is_known = meaning == signature.mask_meaning && by_query == signature.mask_by_query;
      const bool adds = is_floating(mask.dtype) && (shape.size() > 2 || by_query);
      if (!is_known && (!by_query || may_be_by_query) && (meaning != Meaning::kSelects || adds))
        others.push_back(std::move(other));
    }
  return others;
}

// What proves to be causal is what the mask's numbers say: their type and shape do not tell whether 1 hides a key.
// `known`: is told what they say, also of a model that is refused for something else.
DecoderModel recognise_any_mask(const Graph& graph, const DecoderSignature& signature, int64_t max_length,
                                std::optional<DecoderSignature>& known) try {
  return recognise(graph, signature, max_length);
} catch (const Refusal& refusal) {
  const bool is_by_query = signature.mask && graph.value(graph.inputs[*signature.mask]).shape->size() > 2;
  const bool may_be_misread = dynamic_cast<const NotCausal*>(&refusal) != nullptr ||
                              (is_by_query && dynamic_cast<const FillsBlanks*>(&refusal) != nullptr);
  if (!signature.mask || !may_be_misread) throw;
  for (const DecoderSignature& other : other_masks(graph, signature)) {
    try {
      return recognise(graph, other, max_length);
    } catch (const Refusal& of_other) {
      if (!of_other.is_behind_masks) continue;
      known = other;
      throw;
    } catch (const std::exception&) {  // the first reason is told
    }
  }
  throw;
}

DecoderModel recognise_static(const GrownCaches& grown, const DecoderSignature& signature,
                              int64_t max_length) {
  check_grown_caches(grown, signature);
  std::optional<DecoderSignature> unused;  // the graph as it is has no signature
  DecoderModel model = recognise_any_mask(grown.graph, signature, max_length, unused);
  for (int64_t* most : {&model.max_positions, &model.signature.max_positions})
    *most = *most ? std::min(*most, grown.length) : grown.length;
  model.evidence.push_back("caches of " + std::to_string(grown.length) +
                           " tokens that are written in place, as caches that grow");
  return model;
}

// Why a file with such caches is not served at all: as it is, it cannot start without any.
std::string with_caches(const std::string& reason, const GrownCaches& grown, const Graph& graph,
                        const DecoderSignature& signature) {
  const auto is_grown = [&](const auto& cache) {
    return !(grown.graph.value(grown.graph.inputs[cache.input]).shape ==
             graph.value(graph.inputs[cache.input]).shape);
  };
  const auto first = std::find_if(signature.caches.begin(), signature.caches.end(), is_grown);
  if (first == signature.caches.end()) return reason;
  const Value& cache = graph.value(graph.inputs[first->input]);
  return reason + "; as input " + escaped(cache.name) + " " + str(*cache.shape) +
         " is a cache of a fixed size, the file is not served plain: " + kExportGrowing;
}

}  // namespace

std::variant<DecoderModel, NotRecognised> recognise_decoder(const Graph& graph, int64_t max_length) {
  std::string why;
  auto signature = find_signature(graph, &why);
  const auto grown = signature ? std::nullopt : grow_static_caches(graph);
  if (grown) signature = find_signature(grown->graph, &why);
  if (!signature) return NotRecognised{"", why};
  if (!signature->states.empty())
    return NotRecognised{"", "input " + escaped(graph.value(graph.inputs[signature->states[0].input]).name) +
                                 " is a state of one size, no cache of keys and values"};
  const auto because = [&](const std::string& reason) {
    return grown ? with_caches(reason, *grown, graph, *signature) : reason;
  };
  std::optional<DecoderSignature> known;
  try {
    return grown ? recognise_static(*grown, *signature, max_length)
                 : recognise_any_mask(graph, *signature, max_length, known);
  } catch (const FillsBlanks& refusal) {
    return NotRecognised{refusal.node, refusal.reason, true};
  } catch (const Refusal& refusal) {
    return NotRecognised{refusal.node, because(refusal.reason), false, known};
  } catch (const Error& error) {
    return NotRecognised{"", because(error.what())};
  }
}

}  // namespace ark
