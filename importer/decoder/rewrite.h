// The proof and the rewriting in one walk: each value of the plain graph is given a meaning, each node a
// transfer function that either states the token form of its outputs or refuses.
//
//   free    depends on neither tokens nor caches: evaluated by Probe when rows need it (masks, positions,
//   constants) rows    one row of features for each token (layout.h); over new tokens, over the past, or over
//   the whole context scores  query-key products and what becomes of them up to the product with the values
#pragma once

#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "importer/decoder/mask.h"
#include "importer/decoder/origins.h"
#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"
#include "importer/decoder/roles.h"
#include "importer/decoder/token_builder.h"

namespace ark::decoder {

struct Rows {
  Layout layout;
  ValueId tokens = kNoValue;  // in the token graph
  bool last = false;          // only the last token of each sequence: the sequence axis is gone
};

struct Scores {
  Layout layout;                  // batch, heads, sequence, context, in any order
  ValueId q = kNoValue;           // token form [heads, dim]
  ValueId k = kNoValue;           // token form [key heads, dim]
  std::vector<int64_t> key_head;  // of each head
  std::vector<ScoreStep> steps;   // what was done to the raw products
  bool normalized = false;        // after Softmax
  // No scores, but for each what was asked of it, or of all of its query.
  enum class Test { kNone, kHidden, kSeen, kNoneSeen, kSomeSeen } test = Test::kNone;
  bool row_max = false;  // the largest score of each query: subtracting it changes nothing
  // One a head: an extra column beside the keys that takes weight and gives no value.
  std::vector<float> sinks;
  bool sink_column = false;  // that column is still there
};

struct Free {};
using Meaning = std::variant<Free, Rows, Scores>;

// The file's cache `input`, seen through movement as `past`, was put in front of `fresh`.
struct PastLink {
  std::size_t input;  // graph input of the plain graph
  ValueId past;       // token value made from the placeholder of that input
  ValueId fresh;      // token value
  const Node* node;
};

// One attention block of the token graph.
struct Block {
  std::size_t key_input = SIZE_MAX,
              value_input = SIZE_MAX;  // plain graph inputs, SIZE_MAX: no cache in the file
  int64_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  AttentionMask mask;
};

struct Rewrite {
  Rewrite(const Graph& plain, const Roles& roles, int64_t length);

  const Graph& plain;
  const Roles& roles;
  const int64_t length;  // tokens that tables are made for
  TokenBuilder out;
  Probe probe;
  Origins origins;
  std::vector<Meaning> meanings;  // by plain value
  std::vector<bool> varies;       // by plain value: a free value that depends on the step
  std::vector<PastLink> links;
  // Which cache each element goes to that the first `links_written` of them write.
  std::map<std::pair<ValueId, int64_t>, std::size_t> written;
  std::size_t links_written = 0;
  std::vector<Block> blocks;
  std::vector<ValueId> placeholders;  // by plain input: token value standing for a cached row, or kNoValue
  std::vector<std::string> evidence;
  std::map<std::string, AttentionMask> masks;  // proven ones, by what was done to the scores

  bool is_free(ValueId id) const { return id == kNoValue || std::holds_alternative<Free>(meanings[id]); }
  const Rows* rows(ValueId id) const { return id == kNoValue ? nullptr : std::get_if<Rows>(&meanings[id]); }
  const Scores* scores(ValueId id) const {
    return id == kNoValue ? nullptr : std::get_if<Scores>(&meanings[id]);
  }
  void set(ValueId id, Meaning meaning) {
    if (id != kNoValue) meanings[id] = std::move(meaning);
  }
  const Shape& shape(const Node& node, ValueId id) const;  // refuses if unknown

  // The operand of a row-wise node: rows as they are; a free value as a constant, or as rows read from a
  // table by position, its axes matched with those of `beside` from the right.
  Rows operand(const Node& node, ValueId id, const Layout& beside);
  // A free value that is the same at every step, 16-bit and quantized weights as they are stored; nullptr if
  // it is not.
  ConstantPtr constant(ValueId id);
  // The weights that a node dequantizes; nullptr if there are none (quantized_weights.h). The same payloads
  // give the same Quantized, so that tied weights are stored once.
  ConstantPtr quantized(const Node& node);
  // Rows for a free value of the given layout: f(position), proven on many steps.
  Rows tabulated(const Node& node, ValueId id, const Layout& layout);

  // The token form of `x` re-arranged for broadcasting against `to` (numpy's alignment from the right).
  ValueId conform(const Rows& x, const Layout& to);

 private:
  std::optional<Rows> lifted(const Node& node, ValueId id);
  ValueId table_rows(const Tensor& table);
  ConstantPtr stored(ValueId id);
  // By where codes and scales lie, which the values keep alive.
  std::map<std::tuple<const void*, int64_t, const void*, int64_t>,
           std::vector<std::shared_ptr<const Quantized>>>
      quantized_;
  std::map<std::pair<ValueId, std::string>, Rows> tables_;
  std::vector<std::pair<Tensor, ValueId>> table_contents_;  // table -> its rows by position
};

// Transfer functions by family; each returns false if the operator is not of the family.
bool rewrite_pointwise(Rewrite& r, const Node& node);
bool rewrite_movement(Rewrite& r, const Node& node);
bool rewrite_features(Rewrite& r, const Node& node);
bool rewrite_products(Rewrite& r, const Node& node);
bool rewrite_scores(Rewrite& r, const Node& node);
bool test_scores(Rewrite& r, const Node& node);  // of rewrite_scores: whether a query sees any key

// Movement of one row value (the data input of `node`); nullopt if the node is no movement.
std::optional<std::vector<Rows>> moved(Rewrite& r, const Node& node, const Rows& x);
// The context: a cache (rows over the past) in front of new tokens along `axis`. Records the link.
Rows join_past(Rewrite& r, const Node& node, const Rows& past, const Rows& fresh, std::size_t axis);
// One attention block: scores that went through softmax, and values [value heads, dim] with a value head per
// head. Proves the mask, emits kPagedAttention and returns [heads, dim].
ValueId emit_attention(Rewrite& r, const Node& node, const Scores& scores, ValueId values,
                       const std::vector<int64_t>& value_head);
// x with its axes permuted.
Rows permuted(Rewrite& r, const Rows& x, const std::vector<int64_t>& perm);
Rows last_two_swapped(Rewrite& r, const Rows& x);

// Walks the whole graph. Throws Refusal.
void rewrite(Rewrite& r);

}  // namespace ark::decoder
