// What the compiler makes of the loops of known models, without a GPU: registers, spills and shared memory of
// each architecture against budget.json, and compile time that does not grow with depth.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/compile.h"
#include "engine/cuda/codegen.h"
#include "engine/cuda/image.h"
#include "engine/cuda/nvrtc.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::cuda {
namespace {

using test::TokenGraphOptions;

KernelSource source_of_model(const DecoderModel& model, int32_t ranks) {
  CompileOptions options;
  options.ranks = ranks;
  const Compiled compiled = compile_decoder(model, options);
  std::vector<const Program*> programs;
  for (const Program& program : compiled.programs) programs.push_back(&program);
  return make_source(VariantSet(programs, Numerics::kExact));
}

// Of the models' kinds and widths; two layers and a small vocabulary, since neither is code.
KernelSource source_of_model(const std::string& name) {
  TokenGraphOptions o{.layers = 2, .vocabulary = 512, .max_positions = 64};
  if (name == "gpt2-124m-f16") {
    o.hidden = 768, o.heads = o.kv_heads = 12, o.head_dim = 64, o.intermediate = 3072, o.weight = DType::kF16;
    return source_of_model(test::gpt2_tokens(o), 1);
  }
  if (name == "smollm2-135m-f32") {
    o.hidden = 576, o.heads = 9, o.kv_heads = 3, o.head_dim = 64, o.intermediate = 1536;
    return source_of_model(test::llama_tokens(o), 1);
  }
  o.hidden = 2048, o.heads = 32, o.kv_heads = 8, o.head_dim = 64, o.intermediate = 8192,
  o.weight = DType::kBF16;
  o.layers = 1;
  return source_of_model(test::llama_tokens(o), 2);  // with what ranks exchange
}

KernelSource gpt2_of_depth(int64_t layers) {
  return source_of_model(test::gpt2_tokens({.layers = layers, .weight = DType::kF16}), 2);
}

class Sass : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    compiler_ = open_nvrtc(&why);
    if (!compiler_) GTEST_SKIP() << why;
  }
  std::unique_ptr<Compiler> compiler_;
};

TEST_F(Sass, KeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const auto budget = nlohmann::json::parse(in);
  for (const char* name : {"gpt2-124m-f16", "smollm2-135m-f32", "llama-1b-bf16"}) {
    const KernelSource source = source_of_model(name);
    for (const auto& [arch, limit] : budget.at("arch").items()) {
      const KernelFacts facts = compiler_->compile(source, arch).facts;
      std::cout << name << " " << arch << ": " << facts.registers << " registers, " << facts.spilled_bytes
                << " bytes spilled, " << facts.stack_bytes << " of stack, " << facts.static_shared
                << " static shared, compiled in " << facts.compile_seconds << " s\n";
      EXPECT_GT(facts.registers, 0) << "the compiler's log was not understood";
      EXPECT_LE(facts.registers, limit.at("registers").get<int>()) << name << " " << arch;
      EXPECT_EQ(facts.spilled_bytes, 0) << name << " " << arch;
      EXPECT_LE(facts.stack_bytes, limit.at("stack").get<int>()) << name << " " << arch;
      EXPECT_LE(facts.static_shared + static_cast<int>(shared_layout(limit.at("stages").get<int>()).total),
                limit.at("shared").get<int>())
          << name << " " << arch;
    }
  }
}

TEST_F(Sass, CompileTimeDoesNotGrowWithDepth) {
  const KernelSource shallow = gpt2_of_depth(12), deep = gpt2_of_depth(48);
  EXPECT_EQ(shallow.text, deep.text);
  const double twelve = compiler_->compile(shallow, "sm_90a").facts.compile_seconds;
  const double forty_eight = compiler_->compile(deep, "sm_90a").facts.compile_seconds;
  std::cout << "12 layers " << twelve << " s, 48 layers " << forty_eight << " s\n";
  // The same text: what differs is the machine's noise. Also holds where a test beside this one takes the
  // CPU.
  EXPECT_LE(forty_eight, 1.2 * twelve + 1);
}

}  // namespace
}  // namespace ark::cuda
