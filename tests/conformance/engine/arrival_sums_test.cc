// All-reduces that pumps add up: the bytes of one rank, and of processors, whoever adds.
#include <gtest/gtest.h>

#include "base/error.h"
#include "dma/transports.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "tests/engine/driving.h"
#include "tests/engine/schedules.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

using dma::SumsBy;
constexpr SumsBy kAllWays[] = {SumsBy::kDepth, SumsBy::kProcessors, SumsBy::kPump, SumsBy::kMixed};

// The transport of groups that are made meanwhile.
struct Over {
  explicit Over(const std::string& transport)
      : before(std::exchange(dma::transport_wish().transport, transport)) {}
  ~Over() { dma::transport_wish().transport = before; }
  const std::string before;
};

std::vector<std::string> wires() {
  std::vector<std::string> names = {""};  // memory, by the pump
  for (const dma::TransportKind& kind : dma::transports()) {
#ifdef __SANITIZE_THREAD__
    if (kind.name != "socket") continue;  // as in the suite of transports
#endif
    if (!kind.is_mixed && kind.name != "local" && kind.works_here()) names.emplace_back(kind.name);
  }
  return names;
}

// All-reduces of whole rows in a step, of all ranks; and those whose rows of zeros stay where they are.
struct Reduces {
  int64_t whole = 0, by_rows = 0;
};
Reduces reduces_of(const Compiled& compiled) {
  Reduces count;
  for (const Program& p : compiled.programs)
    for (const Instance& i : unroll(p)) {
      count.whole += p.variants[p.phases[i.phase].variant].code == OpCode::kRecvReduce;
      count.by_rows += p.variants[p.phases[i.phase].variant].code == OpCode::kRecvRows;
    }
  return count;
}

struct Course {
  Rows logits;
  ReduceCounts reduced;
  int64_t steps = 0;
};

// A prompt in chunks, then tokens of two sequences at once.
Course drive(StepRunner& runner) {
  Course all;
  std::vector<Sequence> live = {{.slot = 0, .tokens = random_tokens(23, 3)},
                                {.slot = 1, .tokens = random_tokens(11, 4)}};
  int32_t next_page = 0;
  for (int turn = 0; turn < 9; ++turn) {
    StepDescriptor step;
    std::vector<Sequence*> of_rows;
    for (Sequence& s : live) {
      const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached, count = std::min(left, 7);
      add_chunk(step, s, count, runner.limits().page_size, next_page, count == left,
                kWantToken | kWantLogits);
      if (count == left) of_rows.push_back(&s);
    }
    runner.post(step);
    StepResult result = wait_for(runner);
    ++all.steps;
    all.reduced += result.cost.reduced;
    for (std::size_t r = 0; r < of_rows.size(); ++r) {
      of_rows[r]->tokens.push_back(result.rows[r].token);
      all.logits.push_back(std::move(result.rows[r].logits));
    }
  }
  return all;
}

DecoderModel model_of(bool gpt2, int64_t vocabulary) {
  TokenGraphOptions o;
  o.vocabulary = vocabulary;  // a large one is split by rows
  return gpt2 ? gpt2_tokens(o) : llama_tokens(o);
}

TEST(ArrivalSums, ChangeNoBitAndAreCounted) {
  const std::vector<std::string> names = wires();
  EXPECT_GE(names.size(), 2u);
  for (const bool gpt2 : {false, true}) {
    const DecoderModel model = model_of(gpt2, gpt2 ? 4099 : 101);
    const Course one = drive(*make_runner(model, {}));
    for (const int32_t ranks : degrees({2, 3, 4})) {
      Rows of_ranks = ranks == 3 ? Rows{} : one.logits;  // three ranks cut weights, and so sums, elsewhere
      for (const std::string& name : names)
        for (const SumsBy by : kAllWays) {
          const int32_t processors = by == SumsBy::kDepth || ranks == 3 ? 2 : 1;
          SCOPED_TRACE("ranks " + std::to_string(ranks) + " by " + std::to_string(static_cast<int>(by)) +
                       " over " + name);
          const Over over(name);
          RunnerSetup setup;
          setup.ranks = ranks;
          setup.link = Link::kPosted;
          setup.options.threads = ranks * processors;
          setup.options.sums = by;
          const Reduces each = reduces_of(compile(model, setup));
          const Course got = drive(*make_runner(model, setup));
          if (of_ranks.empty()) of_ranks = got.logits;
          ASSERT_TRUE(same_bits(of_ranks, got.logits));
          ASSERT_EQ(each.by_rows, gpt2 ? ranks : 0);
          EXPECT_EQ(got.reduced.by_pump + got.reduced.by_processors, got.steps * (each.whole + each.by_rows));
          const int64_t all = got.steps * each.whole;
          const bool look_long =
              dma::SpinPolicy::adapted(setup.options.threads).spins > dma::Foresight::kBrief;
          if (by == SumsBy::kProcessors || (by == SumsBy::kDepth && look_long)) {
            EXPECT_EQ(got.reduced.by_pump, 0);
          } else if (by == SumsBy::kPump) {
            EXPECT_EQ(got.reduced.by_pump, all);
          } else if (by == SumsBy::kMixed) {
            EXPECT_GT(got.reduced.by_pump, 0);
            EXPECT_LT(got.reduced.by_pump, all);
          }
        }
    }
  }
}

TEST(ArrivalSums, OfMachinesComeInTwoRounds) {
  TokenGraphOptions o;
  o.heads = o.kv_heads = 4;
  const DecoderModel model = llama_tokens(o);
  const Course one = drive(*make_runner(model, {}));
  for (const SumsBy by : kAllWays) {
    RunnerSetup setup;
    setup.ranks = 4;
    setup.machine_ranks = 2;
    setup.link = Link::kPosted;
    setup.options.threads = 4;
    setup.options.sums = by;
    const Course got = drive(*make_runner(model, setup));
    EXPECT_TRUE(same_bits(one.logits, got.logits)) << static_cast<int>(by);
    EXPECT_TRUE(by != SumsBy::kPump || got.reduced.by_processors == 0);
  }
}

TEST(ArrivalSums, DirectLinksAreForProcessors) {
  RunnerSetup setup;
  setup.ranks = 2;
  setup.options.sums = SumsBy::kPump;
  const Course got = drive(*make_runner(model_of(false, 101), setup));
  EXPECT_EQ(got.reduced.by_pump, 0);
  EXPECT_GT(got.reduced.by_processors, 0);
}

// Batches, chunks, preemptions and leases, as they come.
TEST(ArrivalSums, RandomSchedulesChangeNothing) {
  const DecoderModel model = model_of(false, 61);
  RunnerSetup setup;
  setup.max_length = 40;
  setup.pages = 40;
  setup.max_slots = 6;
  setup.max_tokens = 48;
  setup.max_rows = 12;
  const auto oracle = make_runner(model, setup);
  std::vector<Job> jobs;
  for (int32_t i = 0; i < 4; ++i) {
    Job job;
    job.prompt = 1 + 5 * i;
    job.tokens = random_tokens(job.prompt, 20 + static_cast<uint32_t>(i), 61);
    job.sampling.temperature = i % 2 ? 0.9f : 0;
    run_job(*oracle, job, 28);
    jobs.push_back(std::move(job));
  }
  std::mt19937 random(9);
  for (const SumsBy by : {SumsBy::kDepth, SumsBy::kPump, SumsBy::kMixed})
    for (const std::string& name : {std::string(), std::string("socket")}) {
      const Over over(name);
      RunnerSetup tried = setup;
      tried.ranks = by == SumsBy::kMixed ? 4 : 2;
      tried.link = Link::kPosted;
      tried.options.threads = tried.ranks * 2;
      tried.options.sums = by;
      tried.options.counter_base = 0u - 1500;
      tried.options.lease = by == SumsBy::kPump ? 3 : 0;
      const auto runner = make_runner(model, tried);
      for (int32_t schedule = 0; schedule < rounds(4, 40); ++schedule) {
        const auto seed = static_cast<uint32_t>(random());
        ASSERT_EQ(RandomSchedule(*runner, jobs, seed).run(14), "") << static_cast<int>(by) << " " << seed;
      }
    }
}

TEST(ArrivalSums, AbortsEndStepsWhoeverAdds) {
  const DecoderModel model = model_of(false, 101);
  std::mt19937 random(6);
  for (int turn = 0; turn < 12; ++turn) {
    const Over over(turn % 2 ? "socket" : "");
    RunnerSetup setup;
    setup.ranks = turn % 3 == 0 ? 4 : 2;
    setup.link = Link::kPosted;
    setup.options.threads = setup.ranks * 2;
    setup.options.sums = kAllWays[turn / 3];
    const auto runner = make_runner(model, setup);
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
      runner->abort("the test says so");
    });
    std::string why;
    try {
      for (;;) run_greedy(*runner, {1, 2, 3, 4, 5}, 3, 4);
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_NE(why.find("the test says so"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace ark::test
