// The plans that the search finds, and where it cuts.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "engine/partition/collectives.h"
#include "engine/partition/prepare.h"
#include "engine/partition/search.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

std::vector<int64_t> part_sizes(const Spec& spec) {
  std::vector<int64_t> sizes;
  for (const Range& r : spec.ranges) sizes.push_back(r.size());
  return sizes;
}

Sharded shard(const DecoderModel& model, int32_t ranks) {
  const Graph graph = prepare(model.tokens);
  const AxisGroups groups(graph);
  return insert_collectives(graph, groups, search(graph, groups), ranks);
}

// SmolLM2's and GPT-2's proportions with fewer layers.
TokenGraphOptions smollm() {
  return {.layers = 4,
          .hidden = 576,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .intermediate = 1536,
          .vocabulary = 4099};
}
TokenGraphOptions gpt2() {
  return {.layers = 4,
          .hidden = 768,
          .heads = 12,
          .head_dim = 64,
          .intermediate = 3072,
          .vocabulary = 5025,
          .max_positions = 1024};
}

// Whether the weight of MatMul `name` is cut, and along which of [K, N].
char cut_of(const Sharded& s, const std::string& name) {
  for (std::size_t n = 0; n < s.graph.nodes.size(); ++n) {
    const Node& node = s.graph.nodes[n];
    if (node.op != Op::kMatMul || node.name.find(name) == std::string::npos) continue;
    if (s.row_parallel.contains(static_cast<NodeId>(n))) return 'K';
    return s.specs[node.inputs[1]].kind == Spec::Kind::kSplit ? 'N' : '-';
  }
  return '?';
}

int count(const Sharded& s, Op op) {
  int n = 0;
  for (const Node& node : s.graph.nodes) n += node.op == op;
  return n;
}

TEST(CutPoints, NestForPowersOfTwo) {
  for (int64_t units = 0; units < 70; ++units) {
    const auto two = cut_points(units, 2), four = cut_points(units, 4), eight = cut_points(units, 8);
    EXPECT_EQ(two[1], four[2]);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(four[i], eight[2 * i]);
    for (const int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const auto borders = cut_points(units, parts);
      ASSERT_EQ(borders.size(), static_cast<std::size_t>(parts) + 1);
      EXPECT_EQ(borders.front(), 0);
      EXPECT_EQ(borders.back(), units);
      EXPECT_TRUE(std::is_sorted(borders.begin(), borders.end()));
    }
  }
  EXPECT_EQ(cut_points(9, 2), (std::vector<int64_t>{0, 5, 9}));
  EXPECT_EQ(cut_points(9, 3), (std::vector<int64_t>{0, 3, 6, 9}));
}

TEST(CutPoints, SlabsOfAllRanksAreTheSameForOneTwoFourAndEight) {
  for (const UnitAxis axis :
       {UnitAxis{576, 64}, UnitAxis{1536, 16}, UnitAxis{37, 16}, UnitAxis{100, 16}, UnitAxis{24, 8}}) {
    std::vector<int32_t> whole = slab_borders(axis, 1, 0);
    whole.erase(std::unique(whole.begin(), whole.end()), whole.end());
    for (const int64_t ranks : {2, 4, 8}) {
      std::vector<int32_t> joined;
      const auto parts = split(axis, ranks);
      for (int64_t r = 0; r < ranks; ++r) {
        for (const int32_t b : slab_borders(axis, ranks, r)) {
          joined.push_back(b + static_cast<int32_t>(parts[r].begin));
        }
        EXPECT_EQ(slab_borders(axis, ranks, r).back(), parts[r].size());
      }
      joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
      EXPECT_EQ(joined, whole) << axis.size << " over " << ranks;
    }
  }
}

TEST(Search, FindsMegatronsPlanForLlama) {
  const Sharded s = shard(llama_tokens(smollm()), 2);
  for (const char* layer : {"layers.0.", "layers.2.", "layers.3."}) {
    for (const char* columns : {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}) {
      EXPECT_EQ(cut_of(s, std::string(layer) + columns), 'N') << layer << columns;
    }
    for (const char* rows : {"o_proj", "down_proj"})
      EXPECT_EQ(cut_of(s, std::string(layer) + rows), 'K') << layer << rows;
  }
  EXPECT_EQ(cut_of(s, "lm_head"), 'N');
  EXPECT_EQ(count(s, Op::kAllReduce), 2 * 4 + 1);  // the tied table is cut by rows: one for the embedding
  EXPECT_EQ(count(s, Op::kAllGather), 1);          // logits
  EXPECT_EQ(count(s, Op::kIdentity), 0);
}

TEST(Search, FindsMegatronsPlanForGpt2) {
  const Sharded s = shard(gpt2_tokens(gpt2()), 4);
  EXPECT_EQ(cut_of(s, "h.1.q"), 'N');
  EXPECT_EQ(cut_of(s, "h.1.c_proj"), 'K');
  EXPECT_EQ(cut_of(s, "h.1.c_fc"), 'N');
  EXPECT_EQ(cut_of(s, "h.3.c_proj2"), 'K');
  EXPECT_EQ(cut_of(s, "lm_head"), 'N');
  EXPECT_EQ(count(s, Op::kAllReduce), 2 * 4 + 1);
  EXPECT_EQ(count(s, Op::kAllGather), 1);
}

TEST(Search, PlanDoesNotDependOnTheNumberOfRanks) {
  const Graph graph = prepare(llama_tokens(smollm()).tokens);
  const AxisGroups groups(graph);
  const Choices choices = search(graph, groups);
  const auto rows = insert_collectives(graph, groups, choices, 1).row_parallel.size();
  EXPECT_EQ(rows, 8u);
  for (const int32_t ranks : {2, 3, 4, 8}) {
    EXPECT_EQ(insert_collectives(graph, groups, choices, ranks).row_parallel.size(), rows);
  }
  EXPECT_EQ(count(insert_collectives(graph, groups, choices, 1), Op::kAllReduce), 0);
}

// The attention's query and key parts for `ranks`.
std::pair<Spec, Spec> heads(const TokenGraphOptions& o, int32_t ranks) {
  const Sharded s = shard(llama_tokens(o), ranks);
  for (const Node& node : s.graph.nodes) {
    if (node.op != Op::kPagedAttention) continue;
    return {s.specs[node.inputs[0]], s.specs[node.inputs[1]]};
  }
  return {};
}

TEST(Search, CutsQueryHeadsAnywhereAndSharesKeyHeads) {
  const auto [q, k] = heads(smollm(), 2);
  EXPECT_EQ(q.axis, 1);
  EXPECT_EQ(q.ranges, (std::vector<Range>{{0, 5}, {5, 9}}));
  EXPECT_EQ(k.ranges, (std::vector<Range>{{0, 2}, {1, 3}}));
  TokenGraphOptions pairs = smollm();
  pairs.heads = 8;
  pairs.kv_heads = 2;
  EXPECT_EQ(heads(pairs, 4).second.ranges, (std::vector<Range>{{0, 1}, {0, 1}, {1, 2}, {1, 2}}));
  TokenGraphOptions single = smollm();
  single.kv_heads = 1;
  EXPECT_EQ(heads(single, 2).second.kind, Spec::Kind::kReplicated);
}

TEST(Search, GivesRanksWithoutHeadsEmptyParts) {
  EXPECT_EQ(part_sizes(heads(smollm(), 8).first), (std::vector<int64_t>{2, 1, 1, 1, 1, 1, 1, 1}));
  TokenGraphOptions few = smollm();
  few.heads = few.kv_heads = 3;
  EXPECT_EQ(part_sizes(heads(few, 8).first), (std::vector<int64_t>{1, 0, 1, 0, 1, 0, 0, 0}));
  EXPECT_EQ(part_sizes(heads(smollm(), 3).first), (std::vector<int64_t>{3, 3, 3}));
}

TEST(Search, CutsOddVocabulariesByPanels) {
  const Sharded s = shard(gpt2_tokens(gpt2()), 2);
  for (const Node& node : s.graph.nodes) {
    if (node.name != "lm_head" || node.op != Op::kMatMul) continue;
    const Spec& table = s.specs[node.inputs[1]];
    EXPECT_EQ(table.ranges, (std::vector<Range>{{0, 2512 + 16}, {2528, 5025}}));
  }
}

TEST(Search, TakesAFewMillisecondsALayer) {
  TokenGraphOptions deep = smollm();
  deep.layers = 48;
  deep.hidden = 72;  // small weights, same structure
  deep.head_dim = 8;
  deep.intermediate = 192;
  const Graph graph = prepare(llama_tokens(deep).tokens);
  const std::clock_t start = std::clock();  // of this process, as others keep the machine busy
  search(graph, AxisGroups(graph));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 1);
}

}  // namespace
}  // namespace ark::test
