// Semantic mutants of exported decoders, loaded as ark-serve loads them and run for two tokens: refused by name, or
// run (tests/engine/mutant_runs.h). None makes an unsound program.
#include "tests/engine/model_mutants.h"

#include <gtest/gtest.h>

#include "tests/engine/load_mutant.h"
#include "tests/engine/models.h"
#include "tests/engine/mutant_runs.h"

namespace ark::test {
namespace {

TEST(ModelMutants, AreRefusedByNameOrRun) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  std::vector<std::string> names = kDecoders;
  names.insert(names.end(), {"llama-genai-int4", "llama-int4", "llama-int4-qdq", "llama-int8-dynamic",
                             "phi3-genai-fp32", "t5-decoder-with-past", "whisper-decoder-with-past"});
  std::vector<onnx::Model> models;
  for (const std::string& name : names) models.push_back(onnx::parse_model(model_file(fixtures() / name)));
  expect_named_or_run(rounds(200), [&](std::mt19937_64& random, const auto& say) {
    const std::size_t which = random() % names.size();
    onnx::Model mutant = models[which];
    std::string label = names[which];
    ModelMutator mutator(mutant, random());
    for (std::size_t n = 1 + random() % 2; n > 0; --n) label += "; " + mutator.change();
    say(label);
    load_and_run(mutant);
  });
}

}  // namespace
}  // namespace ark::test
