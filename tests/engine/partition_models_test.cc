// The plans of exported models are Megatron's, and the search's plans are the cheapest there are.
#include <gtest/gtest.h>

#include <bit>

#include "base/index.h"
#include "engine/partition/collectives.h"
#include "engine/partition/op_rule.h"
#include "engine/partition/prepare.h"
#include "engine/partition/search.h"
#include "tests/engine/models.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

// -- Megatron's plan

// How the weights lie, in the order of their products: N by columns, K by rows, - whole.
std::string cuts(const Sharded& s) {
  std::string text;
  for (std::size_t n = 0; n < s.graph.nodes.size(); ++n) {
    const Node& node = s.graph.nodes[n];
    if (node.op != Op::kMatMul || !s.graph.value(node.inputs[1]).constant) continue;
    const bool is_split = s.specs[node.inputs[1]].kind == Spec::Kind::kSplit;
    text += s.row_parallel.contains(static_cast<NodeId>(n)) ? 'K' : is_split ? 'N' : '-';
  }
  return text;
}

// The number of query heads of each rank, per attention.
std::vector<std::vector<int64_t>> heads(const Sharded& s) {
  std::vector<std::vector<int64_t>> result;
  for (const Node& node : s.graph.nodes) {
    if (node.op != Op::kPagedAttention) continue;
    const Spec& q = s.specs[node.inputs[0]];
    std::vector<int64_t>& sizes = result.emplace_back();
    if (q.kind == Spec::Kind::kSplit && q.axis == 1)
      for (const Range& r : q.ranges) sizes.push_back(r.size());
  }
  return result;
}

// The collectives in order, each with the operator whose result it is of.
std::vector<std::string> collectives(const Sharded& s) {
  std::vector<std::string> result;
  for (const Node& node : s.graph.nodes) {
    const bool is_slice = node.op == Op::kIdentity;
    if (node.op != Op::kAllReduce && node.op != Op::kAllGather && !is_slice) continue;
    const Node* of = s.graph.producer(node.inputs[0]);
    result.push_back(std::string(name_of(node.op)) + " of " + (of ? std::string(name_of(of->op)) : "input"));
  }
  return result;
}

struct Family {
  const char* name;
  const char* layer;      // cuts of a layer
  const char* embedding;  // a tied table is cut by rows, as the head's columns are; another as is cheapest
};

class MegatronsPlan : public testing::TestWithParam<Family> {};

TEST_P(MegatronsPlan, IsFoundForTwoThreeAndFourRanks) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  std::string why;
  const auto model = read_decoder(model_file(fixtures() / GetParam().name), why);
  ASSERT_TRUE(model) << why;
  const Graph graph = prepare(model->tokens);
  const AxisGroups groups(graph);
  const Choices choices = search(graph, groups);
  const std::size_t layers = model->caches.size();
  std::string all;
  for (std::size_t i = 0; i < layers; ++i) all += GetParam().layer;
  for (const int32_t ranks : {2, 3, 4}) {
    const Sharded s = insert_collectives(graph, groups, choices, ranks);
    EXPECT_EQ(cuts(s), all + "N") << ranks;
    std::vector<std::string> want = {GetParam().embedding};
    want.insert(want.end(), 2 * layers, "AllReduce of MatMul");
    want.emplace_back("AllGather of MatMul");
    EXPECT_EQ(collectives(s), want) << ranks;
    const std::vector<std::vector<int64_t>> parts = heads(s);
    ASSERT_EQ(parts.size(), layers);
    for (const std::vector<int64_t>& part : parts) {
      ASSERT_EQ(part.size(), at(ranks));
      int64_t sum = 0;
      for (const int64_t size : part) sum += size;
      const std::vector<int64_t> borders = cut_points(sum, ranks);  // uneven where 3 ranks share 4 heads
      for (std::size_t r = 0; r < part.size(); ++r) EXPECT_EQ(part[r], borders[r + 1] - borders[r]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MegatronsPlan,
                         testing::Values(Family{"tiny-random-gpt2", "NNNKNK", "AllGather of Add"},
                                         Family{"gpt2-optimum", "NNNKNK", "AllReduce of Gather"},
                                         Family{"gpt2-dynamo", "NNNKNK", "AllReduce of Gather"},
                                         Family{"llama-optimum", "NNNKNNK", "AllGather of Gather"},
                                         Family{"llama-dynamo", "NNNKNNK", "AllGather of Gather"},
                                         Family{"mistral-sliding", "NNNKNNK", "AllGather of Gather"}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// -- the cheapest plan

// All plans, one after another, priced by a second reading of the cost model: no beam, nothing merged. A
// branch is left only when it must cost as much as the bound.
class AllPlans {
 public:
  AllPlans(const Graph& graph, const AxisGroups& groups, const CostModel& costs)
      : graph_(graph), groups_(groups), costs_(costs), held_(held_byte_price(costs, graph)) {
    for (const Node& node : graph.nodes) options_.push_back(choices(node));
    bound_rest();
  }

  // The least cost below `bound`, or `bound`.
  double cheapest(double bound) {
    best_ = bound;
    Forms forms(graph_.values.size());
    for (const ValueId v : graph_.inputs) forms[v] = bit(kWhole);
    descend(0, 0, forms);
    return best_;
  }
  int64_t visited() const { return visited_; }
  // The cost of one plan; negative if it is none.
  double price(const Choices& choices) {
    Forms forms(graph_.values.size());
    for (const ValueId v : graph_.inputs) forms[v] = bit(kWhole);
    double seconds = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const double more = step(graph_.nodes[n], choices.nodes[n], forms);
      if (more < 0) return -1;
      seconds += more;
    }
    return seconds + outputs(forms);
  }

 private:
  using Forms = std::vector<FormMask>;  // per value: those at hand

  double bytes(ValueId v) const { return priced_bytes(costs_, graph_, v); }
  static double share(Form form) { return is_split(form) ? 1.0 / kReferenceRanks : 1; }

  std::vector<NodeChoice> choices(const Node& node) const {
    std::vector<NodeChoice> all = {
        {std::vector<Form>(node.inputs.size(), kWhole), std::vector<Form>(node.outputs.size(), kWhole)}};
    if (rule_of(node.op).moves) {
      all.push_back(all[0]);
      all.back().inputs[0] = kPartialSum;
      for (Form& form : all.back().outputs) form = kPartialSum;
    }
    for (const Loop& loop : loops_of(graph_, node)) {
      NodeChoice choice{{}, {}, loop.sums};
      bool can = true, splits = false;
      const auto form = [&](ValueId v, int axis, bool sums) {
        if (v == kNoValue || axis < 0) return kWhole;
        const int32_t group = groups_.group(v, axis);
        can &= group != kNoGroup && !(sums && groups_.shares(group));
        splits = true;
        return split_form(axis);
      };
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        choice.inputs.push_back(form(node.inputs[i], loop.inputs[i], loop.sums));
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        const Form out = form(node.outputs[i], loop.outputs[i], false);
        choice.outputs.push_back(loop.sums ? kPartialSum : out);
      }
      if (can && splits) all.push_back(choice);
    }
    return all;
  }

  // Seconds to have `v` as `want`; negative: impossible.
  double fetch(ValueId v, Form want, Forms& forms) const {
    FormMask& have = forms[v];
    if (have & bit(want)) return 0;
    double seconds = 0;
    if (graph_.value(v).constant) {
      if (rank_of(graph_, v) > 1) seconds = held_ * bytes(v) * share(want);
    } else {
      if (want == kPartialSum) return -1;
      if (!(have & bit(kWhole))) {
        const auto from = static_cast<Form>(std::countr_zero(have));  // a node gives one form
        if (is_split(from) && groups_.shares(groups_.group(v, axis_of(from)))) return -1;
        seconds += is_split(from) ? costs_.all_gather(bytes(v), kReferenceRanks)
                                  : costs_.all_reduce(bytes(v), kReferenceRanks);
        have |= bit(kWhole);
      }
      if (is_split(want)) seconds += costs_.per_activation_byte * bytes(v);
    }
    have |= bit(want);
    return seconds;
  }

  double step(const Node& node, const NodeChoice& choice, Forms& forms) const {
    double seconds = 0, part = 1;
    const bool rides = node.op == Op::kGather || is_pointwise(node.op);
    const auto operand = [&](ValueId v, Form form) {
      if (v == kNoValue) return;
      part = std::min(part, share(form));
      if (rides) return;
      const double rate = graph_.value(v).constant ? costs_.per_weight_byte : costs_.per_activation_byte;
      seconds += bytes(v) * share(form) * rate;
    };
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const double more = fetch(node.inputs[i], choice.inputs[i], forms);
      if (more < 0) return -1;
      seconds += more;
      operand(node.inputs[i], choice.inputs[i]);
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      operand(node.outputs[i], choice.outputs[i]);
      if (node.outputs[i] != kNoValue) forms[node.outputs[i]] = bit(choice.outputs[i]);
    }
    return seconds + priced_flops(costs_, graph_, node) * part * costs_.per_flop;
  }

  // What the nodes from each one on cost at least: their cheapest work, their tables' smallest parts.
  void bound_rest() {
    rest_.assign(graph_.nodes.size() + 1, 0);
    std::vector<bool> held(graph_.values.size());
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      double least = 1e30;
      for (const NodeChoice& choice : options_[n]) {
        Forms ready(graph_.values.size(), ~FormMask{0});
        least = std::min(least, step(node, choice, ready));
      }
      for (const ValueId v : node.inputs) {
        if (v == kNoValue || !graph_.value(v).constant || rank_of(graph_, v) < 2 || held[v]) continue;
        held[v] = true;
        least += held_ * bytes(v) / kReferenceRanks;
      }
      rest_[n] = least;
    }
    for (std::size_t n = graph_.nodes.size(); n-- > 0;) rest_[n] += rest_[n + 1];
  }

  double outputs(Forms& forms) const {
    double seconds = 0;
    for (const ValueId v : graph_.outputs) {
      const double more = fetch(v, kWhole, forms);
      seconds += more < 0 ? 1e30 : more;
    }
    return seconds;
  }

  void descend(std::size_t n, double seconds, const Forms& forms) {
    ++visited_;
    if (seconds + rest_[n] >= best_) return;
    if (n == graph_.nodes.size()) {
      Forms last = forms;
      best_ = std::min(best_, seconds + outputs(last));
      return;
    }
    for (const NodeChoice& choice : options_[n]) {
      Forms next = forms;
      const double more = step(graph_.nodes[n], choice, next);
      if (more >= 0) descend(n + 1, seconds + more, next);
    }
  }

  const Graph& graph_;
  const AxisGroups& groups_;
  const CostModel costs_;
  const double held_;
  std::vector<std::vector<NodeChoice>> options_;  // per node
  std::vector<double> rest_;
  double best_ = 0;
  int64_t visited_ = 0;
};

void expect_cheapest(const DecoderModel& model, const CostModel& costs, const std::string& what) {
  const Graph graph = prepare(model.tokens);
  const AxisGroups groups(graph);
  const Choices choices = search(graph, groups, costs);
  AllPlans plans(graph, groups, costs);
  EXPECT_NEAR(plans.price(choices), choices.seconds, 1e-9 * choices.seconds) << what;
  const double bound = choices.seconds * (1 - 1e-9);
  EXPECT_EQ(plans.cheapest(bound), bound) << what << ": a cheaper plan exists";
  EXPECT_LT(plans.cheapest(choices.seconds * (1 + 1e-9)), choices.seconds * (1 + 1e-9)) << what;
  std::printf("%-28s %zu nodes, %lld partial plans\n", what.c_str(), graph.nodes.size(),
              static_cast<long long>(plans.visited()));
}

TEST(CheapestPlan, IsWhatTheSearchFindsAmongAllPlans) {
  CostModel slow_links, free_memory, fast_links, narrow;
  slow_links.per_message = 1e-3;
  free_memory.collectives_per_matrix = 0;
  fast_links.per_message = 1e-9;
  fast_links.per_link_byte = 1e-12;
  narrow.tokens = narrow.rows = 1;
  const std::pair<const char*, CostModel> models[] = {{"default", {}},
                                                      {"slow links", slow_links},
                                                      {"memory for nothing", free_memory},
                                                      {"fast links", fast_links},
                                                      {"one token", narrow}};
  const TokenGraphOptions small{.layers = 1, .hidden = 32, .heads = 4, .kv_heads = 2, .vocabulary = 96};
  for (const auto& [name, costs] : std::span(models).first(is_sanitized() ? 1 : std::size(models))) {
    expect_cheapest(gpt2_tokens(small), costs, std::string("gpt2, ") + name);
    expect_cheapest(llama_tokens(small), costs, std::string("llama, ") + name);
  }
}

TEST(CheapestPlan, ThePriceOfALargePlanIsTheSumOfItsParts) {
  const Graph graph = prepare(llama_tokens({.layers = 6, .kv_heads = 2}).tokens);
  const AxisGroups groups(graph);
  const Choices choices = search(graph, groups);
  EXPECT_NEAR(AllPlans(graph, groups, {}).price(choices), choices.seconds, 1e-9 * choices.seconds);
}

}  // namespace
}  // namespace ark::test
