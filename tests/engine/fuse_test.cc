// Which nodes share a phase, and in which order phases stand; that neither changes a bit, on any number of ranks, in
// any chunks; that the validator knows broken ones.
#include "engine/lower/fuse.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/ir/keys.h"
#include "engine/program/opcodes.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

std::vector<std::string> opcodes_of(const Program& p) {
  std::vector<std::string> codes;
  for (const Phase& phase : p.phases) codes.emplace_back(name_of(p.variants[phase.variant].code));
  return codes;
}
int64_t count(const Program& p, OpCode code) {
  const auto codes = opcodes_of(p);
  return std::count(codes.begin(), codes.end(), name_of(code));
}
Program lowered(const DecoderModel& model, int32_t ranks = 1) {
  CompileOptions o;
  o.ranks = ranks;
  o.max_tokens = 16;
  o.pages = 8;
  return compile_decoder(model, o).programs[0];
}

TEST(Fuse, MakesNinePhasesOfALayerOfLlama) {
  const auto codes = opcodes_of(lowered(llama_tokens()));
  const std::vector<std::string> layer = {"Norm",      "MatMul", "MatMul", "MatMul",      "RotaryAppend",
                                          "Attention", "MatMul", "Norm",   "GatedMatMul", "MatMul"};
  ASSERT_GE(codes.size(), layer.size() + 1);
  EXPECT_EQ(std::vector(codes.begin() + 1, codes.begin() + 1 + std::ssize(layer)), layer);
  for (const int32_t ranks : {1, 2, 4}) {
    const Program p = lowered(llama_tokens(), ranks);
    EXPECT_EQ(count(p, OpCode::kGatedMatMul), 2) << ranks;
    EXPECT_EQ(count(p, OpCode::kRotaryAppend), 2) << ranks;
    EXPECT_EQ(count(p, OpCode::kRotary) + count(p, OpCode::kKvAppend) + count(p, OpCode::kPointwise), 0)
        << ranks;
  }
}

TEST(Fuse, TakesWhatIsNotReadElsewhereOnly) {
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.is_apart = true;
  const Program apart = lowered(llama_tokens(o));
  EXPECT_EQ(count(apart, OpCode::kGatedMatMul) + count(apart, OpCode::kRotaryAppend), 0);
  EXPECT_EQ(count(apart, OpCode::kRotary), 4);
  EXPECT_EQ(count(apart, OpCode::kKvAppend), 2);

  // One of both products, or its activation, has another reader; both go through an activation; the rows differ.
  enum class Kind { kFused, kUpIsRead, kGateIsRead, kTwoActivations, kOtherRows, kSameProduct };
  const auto gated = [](Kind kind) {
    TokenGraphOptions options;
    TokenGraphBuilder b(options);
    const ValueId table = b.matrix(options.vocabulary, options.hidden, "table", 1);
    const ValueId x = b.gather("embed", table, b.ids);
    const ValueId other = b.same(Op::kTanh, "other", {x});
    const ValueId gate = b.same(Op::kSilu, "act", {b.linear(x, "gate", 32, false)});
    ValueId up = b.linear(kind == Kind::kOtherRows ? other : x, "up", 32, false);
    if (kind == Kind::kTwoActivations) up = b.same(Op::kRelu, "act_2", {up});
    ValueId h = b.same(Op::kMul, "mul", {gate, kind == Kind::kSameProduct ? gate : up});
    if (kind == Kind::kUpIsRead) h = b.same(Op::kAdd, "read", {h, up});
    if (kind == Kind::kGateIsRead) h = b.same(Op::kAdd, "read", {h, gate});
    const ValueId head =
        b.node(Op::kMatMul, "lm_head", {b.select(h, "rows"), table},
               {Expr::symbol("rows"), options.vocabulary}, TokenGraphBuilder::matmul_attributes(1));
    return b.finish(head).tokens;
  };
  for (const Kind kind : {Kind::kFused, Kind::kUpIsRead, Kind::kGateIsRead, Kind::kTwoActivations,
                          Kind::kOtherRows, Kind::kSameProduct}) {
    const std::vector<Cluster> clusters = fuse(gated(kind));
    const bool found =
        std::any_of(clusters.begin(), clusters.end(), [](const Cluster& c) { return !c.apart.empty(); });
    EXPECT_EQ(found, kind == Kind::kFused) << static_cast<int>(kind);
  }
}

// A product that is stored otherwise than its partner stays a phase of its own.
TEST(Fuse, LeavesWeightsOfTwoKindsApart) {
  DecoderModel model = llama_tokens();
  for (Node& node : model.tokens.nodes) {
    if (node.name.find("up_proj") == std::string::npos || node.op != Op::kMatMul) continue;
    Value& weight = model.tokens.value(node.inputs[1]);
    Tensor narrow = Tensor::empty(DType::kF16, weight.constant->dims);
    const Tensor wide = materialise(*weight.constant);
    for (int64_t i = 0; i < wide.size(); ++i)
      store_f32(DType::kF16, narrow.data.get(), i, 1, wide.as<float>() + i);
    weight.constant = make_constant(std::move(narrow), "narrow");
    weight.dtype = DType::kF16;
  }
  const Program p = lowered(model);
  EXPECT_EQ(count(p, OpCode::kGatedMatMul), 0);
  EXPECT_EQ(count(p, OpCode::kPointwise), 2);
}

struct FusedCase {
  const char* name;
  TokenGraphOptions options;
  Activations activations = Activations::kAuto;
  DType kv = DType::kF32;
  bool bf16_tiles = false;
};
class Fused : public ::testing::TestWithParam<FusedCase> {};
TEST_P(Fused, GivesTheBitsOfPhasesApart) {
  TokenGraphOptions o = GetParam().options;
  o.kv_heads = 2;
  const DecoderModel fused = llama_tokens(o);
  o.is_apart = true;
  const DecoderModel apart = llama_tokens(o);
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 42, 7, 8, 21, 64, 2, 30, 71, 55, 12, 90, 4, 66, 38, 27};
  RunnerSetup setup;
  setup.activations = GetParam().activations;
  setup.kv_dtype = GetParam().kv;
  setup.bf16_tiles = GetParam().bf16_tiles;
  setup.options.lockstep = true;
  const auto expected = run_greedy(*make_runner(apart, setup), prompt, 64, 3);
  for (const int32_t ranks : {1, 2, 4}) {
    setup.ranks = ranks;
    setup.options.lockstep = ranks == 1;
    setup.options.threads = 2 * ranks;
    for (const int32_t chunk : {64, 5, 1})
      EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(fused, setup), prompt, chunk, 3)))
          << ranks << " ranks, chunks of " << chunk;
  }
}
INSTANTIATE_TEST_SUITE_P(
    , Fused,
    ::testing::Values(FusedCase{"f32", {}},
                      FusedCase{"biases_gelu", {.mlp_bias = true, .activation = Op::kGelu}},
                      FusedCase{"no_activation_kv_int8",
                                {.mlp_bias = true, .activation = Op::kIdentity},
                                Activations::kAuto,
                                DType::kI8},
                      FusedCase{"f16_relu_kv_f16",
                                {.weight = DType::kF16, .activation = Op::kRelu},
                                Activations::kAuto,
                                DType::kF16},
                      FusedCase{"bf16_in_bf16", {.weight = DType::kBF16}, Activations::kBF16},
                      FusedCase{
                          "bf16_in_tiles", {.weight = DType::kBF16}, Activations::kBF16, DType::kF32, true},
                      FusedCase{"int8_in_int8", {.bits = 8}, Activations::kInt8},
                      FusedCase{"int4", {.bits = 4, .mlp_bias = true}, Activations::kF32}),
    [](const auto& test) { return std::string(test.param.name); });

// What the rows of both OpCodes do not allow.
TEST(Fuse, BrokenPhasesAreRefused) {
  CompileOptions options;
  options.max_tokens = 16;
  options.pages = 8;
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.mlp_bias = true;
  const Compiled sound = compile_decoder(llama_tokens(o), options);
  ASSERT_EQ(validate(sound.programs, sound.bindings), std::vector<std::string>{});
  // Of the first phase of that OpCode.
  const auto error = [&](OpCode code, auto&& change) -> std::string {
    std::vector<Program> programs = sound.programs;
    Program& p = programs[0];
    const auto phase = std::find_if(p.phases.begin(), p.phases.end(),
                                    [&](const Phase& each) { return p.variants[each.variant].code == code; });
    p.variants.push_back(p.variants[phase->variant]);
    phase->variant = static_cast<int32_t>(p.variants.size()) - 1;
    change(p, *phase);
    const auto errors = validate(programs, sound.bindings);
    return errors.empty() ? "" : errors[0];
  };
  const auto panels_of = [](Program& p, Phase& phase, int operand) -> WeightUse& {
    return p.weights[p.buffers[phase.operands[operand].buffer].weight];
  };
  const auto names = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  constexpr OpCode kGated = OpCode::kGatedMatMul, kAppend = OpCode::kRotaryAppend;
  names(error(kGated, [](Program&, Phase& p) { p.operands.pop_back(); }), "operands");
  names(error(kGated, [](Program&, Phase& p) { p.operands[3] = {}; }), "'up' is absent");
  names(error(kGated, [](Program&, Phase& p) { p.operands[3] = p.operands[0]; }), "'up' is of another kind");
  names(error(kGated, [](Program&, Phase& p) { p.operands[4] = p.operands[3]; }),
        "'up_bias' is of another kind");
  names(error(kGated,
              [](Program& program, Phase& p) {
                program.variants.back().epilogue |= kEpilogueBias;
                (void)p;
              }),
        "epilogue");
  names(error(kGated,
              [](Program& program, Phase& p) {
                program.variants.back().recipe.slabs[1] -= 2;
                (void)p;
              }),
        "slabs do not cover K");
  EXPECT_NE(error(kGated, [&](Program& program, Phase& p) { panels_of(program, p, 3).stored = DType::kF16; }),
            "");
  names(error(kGated,
              [&](Program& program, Phase& p) {
                WeightUse& up = panels_of(program, p, 3);
                up.stored = DType::kF16;
                program.buffers[p.operands[3].buffer].dtype = DType::kF16;
              }),
        "stored in different ways");
  names(error(kGated, [](Program& program, Phase& p) { p.grid = program.buffers[program.logits].dims[1]; }),
        "its grid is not");
  names(error(kAppend, [](Program&, Phase& p) { std::swap(p.operands[7], p.operands[8]); }),
        "is of another kind");
  names(error(kAppend, [](Program&, Phase& p) { std::swap(p.operands[0], p.operands[4]); }), "not [");
  names(error(kAppend, [](Program&, Phase& p) { p.operands[6] = p.operands[0]; }), "'out' is");
  names(error(kAppend,
              [](Program& program, Phase&) { program.variants.back().attributes.set(key::kRotaryDim, 4); }),
        "rotary size");
  names(
      error(kAppend, [](Program& program, Phase& p) { p.grid = program.buffers[program.token_ids].dims[0]; }),
      "its grid is not");
}

}  // namespace
}  // namespace ark::test
