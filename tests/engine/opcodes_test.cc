// The table of OpCodes: one row each, in order; what variants may have. And an OpCode's whole way through it: softmax.
#include "engine/program/opcodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/ir/keys.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using Router = TokenGraphOptions::Router;

DecoderModel routed(Router router) {
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.router = router;
  return llama_tokens(o);
}

Compiled compiled(const DecoderModel& model, int32_t ranks) {
  CompileOptions o;
  o.ranks = ranks;
  o.max_tokens = 16;
  o.pages = 8;
  return compile_decoder(model, o);
}

TEST(OpCodes, HaveOneRowEachInTheirOrder) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < all_opcodes().size(); ++i) {
    const OpCodeInfo& info = all_opcodes()[i];
    EXPECT_EQ(static_cast<std::size_t>(info.code), i) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    const auto is_many = [](const OperandInfo& o) { return o.flags & kMany; };
    EXPECT_LE(std::count_if(info.operands.begin(), info.operands.end(), is_many), 1) << info.name;
  }
  EXPECT_EQ(all_opcodes().back().code, OpCode::kSample);
}

TEST(OpCodes, VariantsHaveWhatTheirRowSays) {
  Variant norm{.code = OpCode::kNorm};
  norm.attributes.set(key::kRms, 1);
  EXPECT_EQ(variant_problem(norm), "has no attribute 'epsilon'");
  norm.attributes.set(key::kEpsilon, 1e-5);
  EXPECT_EQ(variant_problem(norm), "");
  norm.attributes.set_named("epsilom", 1e-6);
  EXPECT_EQ(variant_problem(norm), "knows no attribute 'epsilom'");
  Variant gather{.code = OpCode::kGeneric, .op = Op::kGather};
  gather.attributes.set_named("axs", int64_t{0});
  EXPECT_EQ(variant_problem(gather), "Gather has no attribute 'axs'");
  Variant send{.code = OpCode::kSend};
  send.epilogue = kEpilogueBias;
  EXPECT_EQ(variant_problem(send), "has an epilogue");
  Variant rowwise{.code = OpCode::kRowwise, .op = Op::kSoftmax, .attributes = {{key::kParameter, 0.0}}};
  EXPECT_EQ(variant_problem(rowwise), "");
  rowwise.op = Op::kIdentity;
  EXPECT_EQ(variant_problem(rowwise), "names an operator");
  Variant matmul{.code = OpCode::kMatMul};
  matmul.epilogue = kEpilogueRelu | kEpilogueSilu;
  EXPECT_EQ(variant_problem(matmul), "epilogue");
}

TEST(OpCodes, WrittenOperandsAreCountedFromTheEndBehindMany) {
  const Variant pointwise{.code = OpCode::kPointwise}, append{.code = OpCode::kKvAppend},
      reduce{.code = OpCode::kRecvReduce}, send{.code = OpCode::kSend};
  const auto written = [](const Variant& v, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += is_written(v, i, count) ? 'w' : 'r';
    return text;
  };
  EXPECT_EQ(written(pointwise, 4), "rrrw");
  EXPECT_EQ(written(append, 4), "rrww");
  EXPECT_EQ(written(reduce, 7), "rrrrrrw");  // own part, three inboxes, bias, residual, out
  EXPECT_EQ(written(send, 1), "r");
}

// A wrong size, kind or grid is found by the row alone.
TEST(OpCodes, PhasesThatBreakTheirRowAreRefused) {
  const Compiled sound = compiled(routed(Router::kRowwise), 1);
  ASSERT_EQ(validate(sound.programs, sound.bindings), std::vector<std::string>{});
  const auto error = [&](auto&& change) {
    std::vector<Program> programs = sound.programs;
    for (Phase& phase : programs[0].phases) {
      if (programs[0].variants[phase.variant].code == OpCode::kRowwise) change(programs[0], phase);
    }
    const auto errors = validate(programs, sound.bindings);
    return errors.empty() ? "" : errors[0];
  };
  const auto names = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(names(error([](Program&, Phase& p) { p.operands.pop_back(); }), "operands"));
  EXPECT_TRUE(names(error([](Program&, Phase& p) { p.operands[0] = {}; }), "'x' is absent"));
  EXPECT_TRUE(names(error([](Program& program, Phase& p) { p.operands[0] = {program.token_ids}; }),
                    "'x' is of another kind or type"));
  EXPECT_TRUE(names(error([](Program& program, Phase& p) { p.operands[0] = {program.logits}; }), "'out' is"));
  EXPECT_TRUE(
      names(error([](Program& program, Phase& p) { p.grid = program.buffers[program.logits].dims[1]; }),
            "its grid is not"));
}

// Against the same graph with the softmax written as its parts, whose phases are others; and equal bytes at every
// degree and on every executor.
TEST(OpCodes, SoftmaxIsThatOfItsParts) {
  const DecoderModel whole = routed(Router::kRowwise), parts = routed(Router::kComposed);
  const auto count = [](const Program& p) {
    return std::count_if(p.variants.begin(), p.variants.end(),
                         [](const Variant& v) { return v.code == OpCode::kRowwise; });
  };
  EXPECT_EQ(count(compiled(whole, 1).programs[0]), 1);
  EXPECT_EQ(count(compiled(parts, 1).programs[0]), 0);
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 42, 7, 8, 21, 64};
  RunnerSetup setup;
  setup.options.lockstep = true;
  const auto got = run_greedy(*make_runner(whole, setup), prompt, 16, 3);
  const auto wanted = run_greedy(*make_runner(parts, setup), prompt, 16, 3);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t row = 0; row < got.size(); ++row) {
    for (std::size_t i = 0; i < got[row].size(); ++i)
      EXPECT_TRUE(std::fabs(got[row][i] - wanted[row][i]) <= 1e-4f) << row << " " << i;
  }
  for (const int32_t ranks : {1, 2, 4}) {
    setup = {};
    setup.ranks = ranks;
    setup.options.threads = 2 * ranks;
    EXPECT_TRUE(same_bits(got, run_greedy(*make_runner(whole, setup), prompt, 4, 3))) << ranks;
  }
}

}  // namespace
}  // namespace ark::test
