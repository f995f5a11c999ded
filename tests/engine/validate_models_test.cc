// The validator on programs of exported models: it accepts every one, and refuses them broken.
#include <gtest/gtest.h>

#include "tests/engine/models.h"
#include "tests/engine/mutations.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

// The programs for 1 to 5 ranks are sound.
void expect_sound(const DecoderModel& model, const std::string& name) {
  for (const int32_t ranks : degrees({1, 2, 3, 4, 5})) {
    const Compiled c = compile_small(model, ranks);
    EXPECT_EQ(validate(c.programs, c.bindings), std::vector<std::string>()) << name << " tp " << ranks;
  }
}

TEST(ValidateModels, AcceptsEveryFixtureAtEveryTp) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  int seen = 0;
  for (const std::string& name : kDecoders) {
    if (is_sanitized() && ++seen % 4) continue;
    std::string why;
    const auto model = read_decoder(model_file(fixtures() / name), why);
    ASSERT_TRUE(model) << name << ": " << why;
    expect_sound(*model, name);
  }
}

TEST(ValidateModels, AcceptsTheWholeZooAtEveryTp) {
  if (!std::filesystem::exists(zoo())) GTEST_SKIP() << zoo() << " is missing: models/zoo.py makes it";
  int seen = 0, recognised = 0;
  for (const auto& entry : std::filesystem::directory_iterator(zoo())) {
    if (!std::filesystem::exists(entry.path() / "model.onnx")) continue;
    if (is_sanitized() && ++seen % 4) continue;
    std::string why;
    const auto model = read_decoder(entry.path() / "model.onnx", why);
    if (!model) continue;  // served plain; tests/importer/decoder says which may be
    ++recognised;
    expect_sound(*model, entry.path().filename());
  }
  EXPECT_GT(recognised, is_sanitized() ? 10 : 40);
}

TEST(ValidateModels, RefusesAThousandRandomMutations) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  std::vector<Compiled> sources;
  for (const char* name : {"tiny-random-gpt2", "gpt2-dynamo", "llama-optimum", "mistral-sliding"}) {
    std::string why;
    const auto model = read_decoder(model_file(fixtures() / name), why);
    ASSERT_TRUE(model) << name << ": " << why;
    for (const int32_t ranks : {1, 2, 3, 4}) sources.push_back(compile_small(*model, ranks));
  }
  expect_refusal(sources, rounds(1000), 7);
}

}  // namespace
}  // namespace ark::test
