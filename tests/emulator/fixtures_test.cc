// Exported decoders on an emulated GPU: prefill chunks mixed with decode, one and two ranks, another schedule
// of the threads each time. Tokens are the published ones, logits those of the CPU within a bound.
#include "tests/fixtures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/emulator/emulated_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/models.h"

namespace ark::test {
namespace {

using emulator::EmulatedGpu;
using emulator::Options;
using emulator::World;

// One published continuation.
struct Published {
  std::vector<int32_t> prompt, tokens;
  std::vector<double> margins;  // of each token's logit over the next best
};

struct PublishedDecoder {
  DecoderModel model;
  std::vector<Published> published;
  double tolerance = 0;
};

PublishedDecoder load(const std::string& name) {
  const auto folder = fixtures() / name;
  std::string why;
  auto model = read_decoder(folder / "model.onnx", why);
  if (!model) throw std::runtime_error(why);
  PublishedDecoder f{*std::move(model), {}, 0};
  const auto expected = nlohmann::json::parse(std::ifstream(folder / "expected.json"));
  f.tolerance = expected.at("tolerance");
  for (const auto& entry : expected.at("greedy")) {
    f.published.push_back({entry.at("prompt_ids"), entry.at("greedy_ids"), entry.at("margins")});
    if (f.published.size() == 3) break;
  }
  return f;
}

constexpr std::size_t kTokens = 3;  // generated a sequence

using Logits = std::vector<std::vector<std::vector<float>>>;  // [sequence][token]

// All sequences together, fed with the published tokens: chunks of any size, in any mix.
Logits drive(StepRunner& runner, const PublishedDecoder& f, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Sequence> live;
  Logits logits(f.published.size());
  for (std::size_t i = 0; i < f.published.size(); ++i) {
    Sequence s{.slot = static_cast<int32_t>((i + seed) % 8), .tokens = f.published[i].prompt};
    s.tokens.insert(s.tokens.end(), f.published[i].tokens.begin(),
                    f.published[i].tokens.begin() + kTokens - 1);
    live.push_back(std::move(s));
  }
  int32_t next_page = static_cast<int32_t>(random() % 40);
  const auto is_done = [](const auto& rows) { return rows.size() >= kTokens; };
  while (!std::all_of(logits.begin(), logits.end(), is_done)) {
    StepDescriptor step;
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < live.size(); ++i) {
      Sequence& s = live[i];
      if (is_done(logits[i]) || random() % 4 == 0) continue;
      const auto prompt = static_cast<int32_t>(f.published[i].prompt.size());
      const int32_t left = std::max(prompt - s.cached, 1);
      const int32_t count =
          random() % 2 ? left : 1 + static_cast<int32_t>(random() % static_cast<uint64_t>(left));
      const bool want = s.cached + count >= prompt;
      add_chunk(step, s, count, 4, next_page, want, kWantToken | kWantLogits);
      if (want) rows.push_back(i);
    }
    if (step.tokens.empty()) continue;
    runner.post(step);
    StepResult result = wait_for(runner);
    for (std::size_t r = 0; r < rows.size(); ++r) logits[rows[r]].push_back(std::move(result.rows[r].logits));
  }
  return logits;
}

RunnerSetup setup(int32_t ranks) {
  RunnerSetup s;
  s.ranks = ranks;
  s.max_tokens = 48;
  s.options.step_deadline = std::chrono::seconds(60);
  return s;
}

// tests/conformance/cuda/executor_test.cc derives it: two orders of sums of some hundred f32 products,
// carried through a few layers.
constexpr float kLogitsBound = 2.5e-4f;

void expect_published(const PublishedDecoder& f, const Logits& cpu, const Logits& gpu) {
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::vector<float>&want = cpu[i][t], &got = gpu[i][t];
      const auto best = static_cast<int32_t>(std::max_element(got.begin(), got.end()) - got.begin());
      if (best != f.published[i].tokens[t]) {
        EXPECT_LE(f.published[i].margins[t], 2 * f.tolerance) << "sequence " << i << " token " << t;
      }
      float scale = 1;
      for (const float v : want) scale = std::max(scale, std::fabs(v));
      for (std::size_t j = 0; j < want.size(); ++j) {
        ASSERT_TRUE(std::fabs(want[j] - got[j]) <= kLogitsBound * scale)
            << "sequence " << i << " token " << t << " logit " << j << ": " << want[j] << " and " << got[j];
      }
    }
  }
}

struct FixtureRuns {
  const char* name;
  int schedules;
  int arch = 900;  // 800: cp.async by a warp instead of bulk copies
};
class EmulatedDecoder : public testing::TestWithParam<FixtureRuns> {};

TEST_P(EmulatedDecoder, GivesThePublishedTokensInEverySchedule) {
  if (!std::filesystem::exists(fixtures() / GetParam().name)) GTEST_SKIP() << fixtures() << " is missing";
  const PublishedDecoder f = load(GetParam().name);
  RunnerSetup lockstep = setup(1);
  lockstep.options.lockstep = true;
  const Logits cpu = drive(*make_runner(f.model, lockstep), f, 1);
  const auto schedules = static_cast<uint64_t>(rounds(GetParam().schedules, 200));
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    Options options{.seed = seed};
    options.schedule = seed % 3 == 0 ? emulator::Schedule::kPct : emulator::Schedule::kRandom;
    options.landing = emulator::Landing::kRandom;
    options.detector = seed % 9 == 4;
    RunnerSetup device = setup(1 + static_cast<int32_t>(seed % 2));
    device.options.gpu = std::make_shared<EmulatedGpu>(std::make_shared<World>(options),
                                                       emulator::EmulatedGpuOptions{.arch = GetParam().arch});
    device.options.device.processors = 2;
    expect_published(f, cpu, drive(*make_runner(f.model, device), f, seed));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EmulatedDecoder,
                         testing::Values(FixtureRuns{"gpt2-optimum", 5}, FixtureRuns{"llama-optimum", 5},
                                         FixtureRuns{"llama-fp16", 4}, FixtureRuns{"mistral-sliding", 4},
                                         FixtureRuns{"llama-optimum", 4, 800}),
                         [](const auto& info) {
                           std::string name =
                               info.param.name + ("_sm" + std::to_string(info.param.arch / 10));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ark::test
