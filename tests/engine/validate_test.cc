// The validator accepts what the lowering makes and refuses what somebody broke.
#include "engine/validate/validate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/compile.h"
#include "tests/engine/mutations.h"
#include "tests/engine/soundness.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

Compiled compiled(bool gpt2, int32_t ranks, int64_t layers = 3, bool early = true) {
  TokenGraphOptions o{.layers = layers, .kv_heads = 2, .select_early = early};
  CompileOptions c{
      .ranks = ranks, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = 8};
  return compile_decoder(gpt2 ? gpt2_tokens(o) : llama_tokens(o), c);
}

std::string first_error(const Compiled& c) {
  const auto errors = validate(c.programs, c.bindings);
  return errors.empty() ? "" : errors[0];
}

TEST(Validate, AcceptsWhatLoweringMakes) {
  for (const bool gpt2 : {false, true}) {
    for (const int64_t layers : {1, 2, 3, 6}) {
      for (const bool early : {true, false}) {
        for (const int32_t ranks : degrees({1, 2, 3, 4, 8})) {
          EXPECT_EQ(first_error(compiled(gpt2, ranks, layers, early)), "")
              << gpt2 << layers << early << ranks;
        }
      }
    }
  }
}

TEST(Validate, LoweringPassesTheIndependentArgumentToo) {
  for (const int32_t ranks : {1, 2, 3}) {
    const Compiled c = compiled(false, ranks, 3);
    EXPECT_EQ(StallRun(c.programs, c.bindings).problem(), "") << ranks;
  }
}

TEST(Validate, RefusesAThousandRandomMutations) {
  std::vector<Compiled> sources;
  for (const int32_t ranks : {1, 2, 3}) {
    sources.push_back(compiled(false, ranks, 4));
    sources.push_back(compiled(true, ranks, 3));
  }
  expect_refusal(sources, rounds(1000), 20240607);
}

TEST(Validate, EveryWaitOfAProgramIsNeeded) {
  const Compiled source = compiled(false, 2, 4);
  for (std::size_t i = 0; i < source.programs[0].phases.size(); ++i) {
    for (std::size_t w = 0; w < source.programs[0].phases[i].waits.size(); ++w) {
      std::vector<Program> programs = source.programs;
      std::vector<Wait>& waits = programs[0].phases[i].waits;
      waits.erase(waits.begin() + static_cast<int64_t>(w));
      EXPECT_FALSE(validate(programs, source.bindings).empty()) << "phase " << i << " wait " << w;
    }
  }
}

TEST(Validate, NamesRankPhaseAndReason) {
  Compiled c = compiled(false, 2);
  for (Phase& phase : c.programs[1].phases) {
    if (phase.name == "layers.0.q_proj") phase.waits.clear();
  }
  const std::string error = first_error(c);
  EXPECT_NE(error.find("rank 1, phase"), std::string::npos) << error;
  EXPECT_NE(error.find("layers.0.q_proj"), std::string::npos) << error;
  EXPECT_NE(error.find("before it is written"), std::string::npos) << error;
  EXPECT_THROW(check_programs(c.programs, c.bindings), Error);
}

}  // namespace
}  // namespace ark::test
