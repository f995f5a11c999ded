// Whatever the schedule, the degree, the executor and the instruction set: equal bytes. ARK_FULL=1 runs all
// 10,000.
#include "tests/engine/schedules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

constexpr int32_t kVocabulary = 61, kLength = 30;

DecoderModel small_model(int32_t which) {
  TokenGraphOptions o;
  o.layers = which == 2 ? 1 : 2;
  o.hidden = which == 2 ? 20 : 16;
  o.heads = 4;
  o.kv_heads = which == 1 ? 4 : 2;
  o.head_dim = which == 2 ? 6 : 4;
  o.intermediate = 24;
  o.vocabulary = kVocabulary;
  o.max_positions = 40;
  o.tied = which != 2;
  o.select_early = which != 1;
  o.seed = 5 + static_cast<uint64_t>(which);
  if (which >= 3) {  // in int8 and bf16: blocks of 8 rows, heads and ranks end with them
    o.hidden = o.intermediate = 32;
    o.head_dim = 8;
    if (which == 3) o.bits = 4, o.block = 16;
    if (which >= 4) o.weight = DType::kBF16;
  }
  return which == 1 ? gpt2_tokens(o) : llama_tokens(o);
}

RunnerSetup small_setup(int32_t which) {
  RunnerSetup s;
  s.kv_dtype =
      std::array{DType::kF32, DType::kI8, DType::kF16, DType::kF8E4M3, DType::kBF16, DType::kBF16}[which];
  s.activations = which == 3 ? Activations::kInt8 : which >= 4 ? Activations::kBF16 : Activations::kAuto;
  s.bf16_tiles = which == 5;
  s.max_tokens = 48;
  s.max_rows = 12;
  s.max_slots = 6;
  s.max_length = 40;
  s.pages = 40;
  s.options.step_deadline = std::chrono::seconds(30);
  return s;
}

std::vector<Job> jobs_of(const DecoderModel& model, int32_t which) {
  RunnerSetup oracle = small_setup(which);
  oracle.options.lockstep = true;
  oracle.options.threads = 1;
  oracle.options.isa = Isa::kScalar;
  const auto runner = make_runner(model, oracle);
  std::mt19937 random(11);
  std::vector<Job> jobs;
  for (int32_t i = 0; i < 8; ++i) {
    Job job;
    job.prompt = 1 + 3 * i;
    for (int32_t k = 0; k < job.prompt; ++k)
      job.tokens.push_back(static_cast<int32_t>(random() % kVocabulary));
    job.sampling.temperature = i % 2 ? 0.9f : 0;
    job.sampling.seed = random();
    if (i % 3 == 1) job.sampling.top_k = 7;
    if (i % 4 == 3) job.sampling.top_p = 0.8f;
    if (i >= 4) job.sampling.frequency_penalty = 0.4f, job.sampling.repetition_penalty = 1.2f;
    if (i == 5) job.bias = {{3, 2.f}, {7, -5.f}};
    if (i == 6) job.mask = {0x5a5a5a5a, 0xf0f0f0f0};
    run_job(*runner, job, kLength - 2 * (i % 3));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

struct Configuration {
  std::string name;
  RunnerSetup setup;
};

// Every degree with every executor, instruction set, lease, link and place of the counters, in turn.
Configuration configuration(int32_t which, int32_t number, uint32_t random) {
  Configuration c{"", small_setup(which)};
  RaggedOptions& o = c.setup.options;
  c.setup.ranks = std::array{1, 2, 4}[number % 3];
  o.lockstep = number % 4 == 3;
  const int32_t processors = number % 5 == 1 ? 3 : number % 2 ? 2 : 1;
  o.threads = c.setup.ranks * processors;
  o.isa = std::min(best_isa(), static_cast<Isa>((number / 3) % static_cast<int32_t>(kIsaNames.size())));
  o.lease = number % 7 == 2 ? 1 + random % 4 : 0;
  o.barrier = number % 11 == 5;
  o.yields_cores = number % 2 == 0;
  o.counter_base = 0u - random % 3000;
  if (number % 6 == 4 && !o.lockstep) c.setup.link = Link::kPosted;
  if (c.setup.link == Link::kPosted) o.sums = static_cast<dma::SumsBy>((which + number / 6) % 4);
  c.name = "tp " + std::to_string(c.setup.ranks) + (o.lockstep ? " lockstep" : " loop") + " processors " +
           std::to_string(processors) + " isa " + std::to_string(static_cast<int>(o.isa)) + " lease " +
           std::to_string(o.lease) + " base " + std::to_string(o.counter_base) + " barrier " +
           std::to_string(o.barrier) + " yields " + std::to_string(o.yields_cores) + " posted " +
           std::to_string(c.setup.link == Link::kPosted) + " sums " +
           std::to_string(static_cast<int>(o.sums));
  return c;
}

class Schedules : public ::testing::TestWithParam<int32_t> {};

TEST_P(Schedules, ChangeNoBit) {
  const int32_t each = rounds(8, 56), configurations = is_sanitized() ? 7 : 36;  // of 6 models
  const DecoderModel model = small_model(GetParam());
  const std::vector<Job> jobs = jobs_of(model, GetParam());
  std::mt19937 random(static_cast<uint32_t>(GetParam()) + 1);
  for (int32_t n = 0; n < configurations; ++n) {
    const Configuration c = configuration(GetParam(), n, static_cast<uint32_t>(random()));
    const auto runner = make_runner(model, c.setup);
    for (int32_t schedule = 0; schedule < each; ++schedule) {
      const auto seed = static_cast<uint32_t>(random());
      const std::string wrong = RandomSchedule(*runner, jobs, seed).run(14);
      ASSERT_EQ(wrong, "") << c.name << ", schedule " << schedule << " seed " << seed;
      if (schedule % 16 == 7) std::this_thread::sleep_for(std::chrono::milliseconds(4));  // the gang parks
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Schedules, ::testing::Range(0, 6));

}  // namespace
}  // namespace ark::test
