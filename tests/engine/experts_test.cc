// ExpertMatMul in programs, against the same mixture as a sum over all experts of products with plain matrices.
#include <gtest/gtest.h>

#include "engine/program/unroll.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr int64_t kExperts = 5, kSlots = 2,
                  kInner = 330;  // more panels than share gathered rows, the last not whole

struct Mixture : TokenGraphBuilder {
  using TokenGraphBuilder::TokenGraphBuilder;

  ValueId integers(Op op, const std::string& name, std::vector<ValueId> inputs, Shape shape, DType type,
                   Attributes attributes) {
    const ValueId out = graph.add_value(name, type, std::move(shape));
    graph.add_node(op, name, std::move(inputs), {out}, std::move(attributes));
    return out;
  }
  ValueId chosen(ValueId x, ValueId experts, ValueId shares, const std::vector<ValueId>& weights) {
    std::vector<ValueId> inputs{x, experts, shares};
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    const int64_t n = *shape(weights[0])[0].constant();
    return node(Op::kExpertMatMul, "experts", inputs,
                shares == kNoValue ? Shape{tokens(), kSlots, n} : Shape{tokens(), n});
  }
  // The same of expert e alone, for all tokens.
  ValueId product(ValueId x, ValueId w) {
    return node(Op::kMatMul, "product", {x, w}, {tokens(), shape(w)[0]}, matmul_attributes(1));
  }
  // [tokens, 1]: the share of expert e, 0 where it is not chosen.
  ValueId share_of(int64_t e, ValueId experts, ValueId shares) {
    Tensor number = Tensor::zeros(DType::kI64, {});
    number.as<int64_t>()[0] = e;
    const ValueId is = integers(Op::kEqual, "is", {experts, graph.add_constant(make_constant(number))},
                                {tokens(), kSlots}, DType::kBool, {});
    const ValueId one = integers(Op::kCast, "one", {is}, {tokens(), kSlots}, DType::kF32,
                                 {{key::kTo, static_cast<int64_t>(DType::kF32)}});
    return node(Op::kReduceSum, "share", {same(Op::kMul, "times", {shares, one})}, {tokens(), 1},
                {{key::kAxes, {1}}, {key::kKeepdims, 1}});
  }
};

DecoderModel mixture(TokenGraphOptions options, bool is_dense) {
  options.max_positions = 512;
  Mixture b(options);
  const TokenGraphOptions& o = b.o;
  const int64_t width = o.heads * o.head_dim;
  const ValueId table = b.constant({o.vocabulary, o.hidden}, 1, 0, DType::kF32, "embed");
  const auto dense = [&](ValueId x, int64_t k, int64_t n) {
    return b.node(Op::kMatMul, "dense", {x, b.constant({k, n}, .3, 0, DType::kF32, "w")}, {b.tokens(), n},
                  TokenGraphBuilder::matmul_attributes(0));
  };
  ValueId x = b.gather("embed", table, b.ids);
  std::vector<ValueId> heads;
  for (int i = 0; i < 3; ++i)
    heads.push_back(b.reshape(dense(x, o.hidden, width), "heads", {b.tokens(), o.heads, o.head_dim}));
  const ValueId a =
      b.reshape(b.attention("attention", heads[0], heads[1], heads[2]), "merge", {b.tokens(), width});
  x = b.same(Op::kAdd, "residual", {x, dense(a, width, o.hidden)});
  const ValueId scores = dense(x, o.hidden, kExperts);
  const ValueId best = b.graph.add_value("best", DType::kF32, Shape{b.tokens(), kSlots}),
                experts = b.graph.add_value("experts", DType::kI64, Shape{b.tokens(), kSlots});
  b.graph.add_node(Op::kTopK, "top", {scores}, {best, experts},
                   {{key::kAxis, 1}, {key::kLargest, 1}, {key::kSorted, 1}, {key::kTopK, Shape{kSlots}}});
  const ValueId shares = b.same(Op::kSoftmax, "shares", {best}, {{key::kAxis, 1}});
  std::vector<ValueId> up, down;
  for (int64_t e = 0; e < kExperts; ++e) {
    up.push_back(b.matrix(kInner, o.hidden, "up", 1));
    down.push_back(b.matrix(o.hidden, kInner, "down", 1));
  }
  ValueId y = kNoValue;
  if (!is_dense) {
    const ValueId h = b.same(Op::kSilu, "act", {b.chosen(x, experts, kNoValue, up)});
    y = b.chosen(h, experts, shares, down);
  }
  for (std::size_t e = 0; is_dense && e < up.size(); ++e) {
    const ValueId own = b.product(b.same(Op::kSilu, "act", {b.product(x, up[e])}), down[e]);
    const ValueId part =
        b.same(Op::kMul, "part", {own, b.share_of(static_cast<int64_t>(e), experts, shares)});
    y = y == kNoValue ? part : b.same(Op::kAdd, "sum", {y, part});
  }
  x = b.select(b.same(Op::kAdd, "out", {x, y}), "rows");
  return b.finish(b.node(Op::kMatMul, "head", {x, table}, {Expr::symbol("rows"), o.vocabulary},
                         TokenGraphBuilder::matmul_attributes(1)));
}

class Experts : public testing::TestWithParam<TokenGraphOptions> {};

TEST_P(Experts, AreTheSumOverAllOfThemAndTheSameOnAnyNumberOfRanks) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 300; ++i) prompt.push_back(i * i % 97);
  RunnerSetup setup{.max_tokens = 192, .max_length = 512};
  const auto wanted = run_greedy(*make_runner(mixture(GetParam(), true), setup), prompt, 190, 3);
  const DecoderModel model = mixture(GetParam(), false);
  std::vector<std::vector<float>> first;
  for (const int32_t ranks : {1, 2, 4}) {
    setup.ranks = ranks;
    setup.options.threads = ranks == 1 ? 3 : ranks;
    for (const int32_t chunk : {190, 7}) {
      if (chunk == 7 && ranks > 1) continue;
      const auto got = run_greedy(*make_runner(model, setup), prompt, chunk, 3);
      ASSERT_EQ(got.size(), wanted.size());
      if (first.empty()) first = got;
      EXPECT_TRUE(same_bits(got, first)) << ranks << " ranks, chunks of " << chunk;
    }
  }
  for (std::size_t row = 0; row < wanted.size(); ++row)
    for (std::size_t i = 0; i < wanted[row].size(); ++i)
      EXPECT_TRUE(std::fabs(first[row][i] - wanted[row][i]) <= 1e-3f) << row << " " << i;
}

TEST_P(Experts, AreSplitOverRanks) {
  CompileOptions options;
  options.ranks = 2;
  options.max_tokens = options.max_items = 16;
  const Compiled compiled = compile_decoder(mixture(GetParam(), false), options);
  int products = 0;
  for (const Program& p : compiled.programs)
    for (const Phase& phase : p.phases) {
      if (p.variants[phase.variant].code != OpCode::kExpertMatMul) continue;
      ++products;
      for (std::size_t i = 1; i <= kExperts; ++i) {
        const WeightUse& w = p.weights[p.buffers[resolve(p, phase, phase.operands[i], 0)].weight];
        EXPECT_LT(w.ranges[0].size() * w.ranges[1].size(), kInner * 32 * 6 / 10);
      }
    }
  EXPECT_EQ(products, 4);
}

INSTANTIATE_TEST_SUITE_P(Weights, Experts,
                         testing::Values(TokenGraphOptions{}, TokenGraphOptions{.weight = DType::kBF16},
                                         TokenGraphOptions{.bits = 4},
                                         TokenGraphOptions{.bits = 8, .terms = BlockTerms::kOffsets16},
                                         TokenGraphOptions{.bits = 8, .terms = BlockTerms::kScales16}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.weight)) + "_" +
                                  std::to_string(info.param.bits) + "_" +
                                  std::to_string(static_cast<int>(info.param.terms));
                         });

}  // namespace
}  // namespace ark::test
