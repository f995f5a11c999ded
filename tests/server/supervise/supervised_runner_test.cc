// Processes that serve a fake model, and die, stop and lie.
#include "server/supervise/supervised_runner.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "dma/launch.h"
#include "server/supervise/model_process.h"
#include "tests/server/schedule/requests.h"

namespace ark::supervise {
namespace {

using namespace std::chrono_literals;

using test::small_limits;

StepDescriptor step_of_tokens(std::vector<int32_t> tokens) {
  StepDescriptor step;
  step.sequences = {{0, 0, static_cast<int>(tokens.size()), 0}};
  for (int i = 0; i * 4 < static_cast<int>(tokens.size()); ++i) step.page_deltas.push_back({0, i, i});
  step.rows.resize(1);
  step.rows[0].token = static_cast<int>(tokens.size()) - 1;
  step.tokens = std::move(tokens);
  return step;
}

// What a process does instead of a step whose first token is 13.
class Cursed : public test::FakeRunner {
 public:
  explicit Cursed(std::function<void()> curse) : FakeRunner(small_limits()), curse_(std::move(curse)) {}
  uint64_t post(const StepDescriptor& step) override {
    if (step.tokens[0] == 13) curse_();
    return FakeRunner::post(step);
  }
  // A while after the model was loaded: what fails before that fails the load.
  std::string failure() const override {
    return std::chrono::steady_clock::now() - made_ > 300ms ? failure_ : "";
  }
  std::string failure_;

 private:
  std::function<void()> curse_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

std::shared_ptr<StepRunner> cursed(std::function<void()> curse) {
  return std::make_shared<Cursed>(std::move(curse));
}

using Load = std::function<OwnModel(const ModelTerms&)>;

SupervisedRunner::Start started(const std::function<int()>& body, pid_t* pid = nullptr) {
  return [body, pid](int descriptor) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::dup2(descriptor, dma::kHandedDescriptor) < 0) ::_exit(1);
      ::close_range(dma::kHandedDescriptor + 1, ~0u, 0);
      ::_exit(body());
    }
    if (pid) *pid = child;
    return child;
  };
}

SupervisedRunner::Start serving(const Load& load, pid_t* pid = nullptr) {
  return started([load] { return serve_model(load); }, pid);
}

Load loaded(const std::function<void()>& curse = [] {}) {
  return [curse](const ModelTerms&) { return OwnModel{cursed(curse), "same"}; };
}

StepResult run(SupervisedRunner& runner, const StepDescriptor& step) {
  while (!runner.ready(100ms)) {
  }
  const uint64_t number = runner.post(step);
  for (;;)
    if (auto result = runner.poll(100ms)) {
      EXPECT_EQ(result->step, number);
      return *result;
    }
}

// The reason of the loss that running the step comes to.
std::string loss(SupervisedRunner& runner, const StepDescriptor& step) {
  try {
    run(runner, step);
  } catch (const RunnerLost& lost) {
    return lost.what();
  }
  return "no loss";
}

void expect_runs(SupervisedRunner& runner) {
  for (int i = 0; i < 3; ++i) {
    const StepResult result = run(runner, step_of_tokens({3, 1, 4, 1, 5}));
    ASSERT_EQ(result.rows.size(), 1u);
    EXPECT_EQ(result.rows[0].token, test::FakeRunner::next({3, 1, 4, 1, 5}, 50));
  }
}

TEST(SupervisedRunner, StepsGoThereAndResultsComeBack) {
  SupervisedRunner runner(serving(loaded()), 0);
  EXPECT_EQ(runner.limits().pages, 24);
  expect_runs(runner);
}

TEST(SupervisedRunner, AStepArrivesWhole) {
  StepDescriptor step = step_of_tokens({3, 1, 4, 1, 5});
  step.page_copies = {{1, 2}};
  step.bias = {{7, 0.5f}};
  step.masks = {9, 1};
  step.processors = 3;  // as --energy-weight asks for
  const StepDescriptor read = step_of(to_blob(step));
  EXPECT_EQ(read.tokens, step.tokens);
  EXPECT_EQ(read.sequences.size(), 1u);
  EXPECT_EQ(read.page_deltas.size(), 2u);
  EXPECT_EQ(read.page_copies.size(), 1u);
  EXPECT_EQ(read.rows.size(), 1u);
  EXPECT_EQ(read.bias, step.bias);
  EXPECT_EQ(read.masks, step.masks);
  EXPECT_EQ(read.processors, 3);
}

TEST(SupervisedRunner, TermsArriveAndTheNextProcessTakesThePagesOfTheFirst) {
  pid_t pid = 0;
  SupervisedRunner runner(serving(
                              [](const ModelTerms& terms) {
                                if (terms.config_length != 77) throw Error(Code::kInternal, "other terms");
                                RunnerLimits limits = small_limits();
                                limits.pages = terms.pages ? terms.pages : 30;
                                return OwnModel{std::make_shared<test::FakeRunner>(limits), ""};
                              },
                              &pid),
                          77);
  EXPECT_EQ(runner.limits().pages, 30);
  ::kill(pid, SIGKILL);
  EXPECT_NE(loss(runner, step_of_tokens({1})).find("was ended by signal 9"), std::string::npos);
  expect_runs(runner);
}

TEST(SupervisedRunner, EveryEndIsNamedAndTheNextProcessServes) {
  const std::pair<std::function<void()>, std::string> ends[] = {
      {[] { ::_exit(3); }, "ended with status 3"},
      {[] { ::raise(SIGKILL); }, "was ended by signal 9"},
      {[] { ::raise(SIGSTOP); }, "has been silent for 1500 ms"},
      {[] { throw Error(Code::kUnavailable, "rank 1 is dead"); }, "rank 1 is dead"},
      {[] { throw std::bad_alloc(); }, "out of memory"},
      {[] { throw std::out_of_range("map::at"); }, "internal: map::at"},
  };
  for (const auto& [curse, why] : ends) {
    SupervisedRunner runner(serving(loaded(curse)), 0);
    expect_runs(runner);
    for (int i = 0; i < 2; ++i) {
      const std::string lost = loss(runner, step_of_tokens({13}));
      EXPECT_NE(lost.find(why), std::string::npos) << lost << ", not " << why;
    }
    expect_runs(runner);
  }
}

// More than a socket holds, for a process that is in the middle of a long step.
TEST(SupervisedRunner, StepsOfAnySizeWaitForAProcessThatIsBusy) {
  SupervisedRunner runner(serving(loaded([] { std::this_thread::sleep_for(3s); })), 0);
  StepDescriptor step = step_of_tokens({13, 1});
  step.bias.assign(200'000, {1, 0.f});
  runner.post(step);
  const uint64_t last = runner.post(step);
  std::optional<StepResult> result;
  while (!result || result->step < last) {
    ASSERT_TRUE(runner.ready(50ms));
    if (auto next = runner.poll(50ms)) result = std::move(next);
  }
}

TEST(SupervisedRunner, AnIdleProcessIsWatched) {
  pid_t pid = 0;
  SupervisedRunner runner(serving(loaded(), &pid), 0);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    expect_runs(runner);
    ::kill(pid, signal);
    const auto since = std::chrono::steady_clock::now();
    EXPECT_THROW(
        while (std::chrono::steady_clock::now() - since < 10s) {
          runner.ready(50ms);
          std::this_thread::sleep_for(10ms);
        },
        RunnerLost);
  }
  expect_runs(runner);
}

TEST(SupervisedRunner, AFailureBetweenStepsIsTold) {
  auto model = std::make_shared<Cursed>([] {});
  SupervisedRunner runner(serving([&](const ModelTerms& terms) {
                            if (terms.pages == 0) model->failure_ = "rank 2 is dead";
                            return OwnModel{model, ""};
                          }),
                          0);
  try {
    for (int i = 0; i < 1000; ++i) runner.ready(50ms), std::this_thread::sleep_for(1ms);
    ADD_FAILURE() << "no loss";
  } catch (const RunnerLost& lost) {
    EXPECT_STREQ(lost.what(), "rank 2 is dead");
  }
  expect_runs(runner);
}

TEST(SupervisedRunner, TheStageOfTheFirstLoadIsTold) {
  std::atomic<const char*> stage = "parse";
  std::vector<std::string> seen;
  const auto load = [&](const ModelTerms&) {
    for (const char* next : {"lower", "pack"}) {
      std::this_thread::sleep_for(600ms);
      stage = next;
    }
    std::this_thread::sleep_for(600ms);
    return OwnModel{cursed([] {}), ""};
  };
  SupervisedRunner runner(started([&] { return serve_model(load, [&] { return stage.load(); }); }), 0,
                          [&](std::string_view now) {
                            if (!now.empty() && (seen.empty() || now != seen.back())) seen.emplace_back(now);
                          });
  EXPECT_EQ(seen, (std::vector<std::string>{"parse", "lower", "pack"}));
}

// A process that gives one life sign, of this thread, and four seconds later the result of a step.
SupervisedRunner::Start silent(const std::function<void()>& for_a_while) {
  return started([for_a_while] {
    const dma::Socket socket(dma::kHandedDescriptor);
    const auto send = [&](dma::FrameKind kind, int number, const std::string& payload) {
      dma::send_frame(socket, kind, number, 0, payload, dma::Deadline::never());
    };
    send(dma::FrameKind::kAlive, ::gettid(), "");
    send(dma::FrameKind::kBlob, 0, to_blob(ModelFacts{small_limits(), ""}));
    for_a_while();
    send(dma::FrameKind::kResult, 0, to_blob(StepResult{1, {RowResult{.token = 1}}}));
    ::pause();
    return 0;
  });
}

TEST(SupervisedRunner, WhoWouldSpeakButGetsNoProcessorIsNotDead) {
  const auto wants_to_run = [] {
    for (const auto end = std::chrono::steady_clock::now() + 4s; std::chrono::steady_clock::now() < end;) {
    }
  };
  {
    SupervisedRunner starved(silent(wants_to_run), 0);
    EXPECT_EQ(run(starved, step_of_tokens({1})).rows.at(0).token, 1);
  }
  SupervisedRunner stuck(silent([] { std::this_thread::sleep_for(4s); }), 0);
  EXPECT_EQ(loss(stuck, step_of_tokens({1})), "the model's process has been silent for 2500 ms");
}

// A process whose memory is spoilt: it loads, and answers a step with these bytes.
SupervisedRunner::Start answering(const std::string& bytes) {
  return started([bytes] {
    const dma::Socket socket(dma::kHandedDescriptor);
    const auto forever = dma::Deadline::never();
    dma::send_frame(socket, dma::FrameKind::kBlob, 0, 0, to_blob(ModelFacts{small_limits(), ""}), forever);
    dma::Frame frame;
    for (int i = 0; i < 2; ++i)
      dma::receive_frame(socket, frame, dma::kMaxPayload, forever);  // terms, a step
    if (::send(socket.descriptor(), bytes.data(), bytes.size(), 0) > 0) ::pause();
    return 0;
  });
}

TEST(SupervisedRunner, ResultsThatDoNotFitTheirStepAreLosses) {
  StepResult more{1, std::vector<RowResult>(2, {.token = 1})}, no_token{1, {RowResult{.token = 50}}},
      negative{1, {RowResult{.token = -2}}}, no_top{1, {RowResult{.token = 1, .top = {{50, -1.f}}}}};
  const std::string good = to_blob(StepResult{1, {RowResult{.token = 1}}});
  for (const std::string& result : {to_blob(more), to_blob(no_token), to_blob(negative), to_blob(no_top),
                                    good.substr(1), good + "x", std::string()}) {
    SupervisedRunner runner(answering(dma::frame_bytes(dma::FrameKind::kResult, 0, 0, result)), 0);
    EXPECT_EQ(loss(runner, step_of_tokens({1})),
              "the model's process gives a result that does not fit its step");
  }
}

TEST(SupervisedRunner, NoiseIsALoss) {
  const std::string facts = dma::frame_bytes(dma::FrameKind::kBlob, 0, 0, "once more");
  for (const auto& [bytes, why] :
       {std::pair(std::string(100, 'x'), "sends what is no message"),
        std::pair(facts, "sends a message out of turn"),
        std::pair(facts.substr(0, 30), "has stopped in the middle of a message")}) {
    SupervisedRunner runner(answering(bytes), 0);
    EXPECT_EQ(loss(runner, step_of_tokens({1})), std::string("the model's process ") + why);
  }
}

TEST(SupervisedRunner, WhatTheFirstProcessCannotDoIsThrownWithItsCode) {
  const auto code_of = [](const SupervisedRunner::Start& start) {
    try {
      SupervisedRunner runner(start, 0);
    } catch (const RunnerLost&) {
      return -1;
    } catch (const Error& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
      return error.exit_code();
    }
    return 0;
  };
  EXPECT_EQ(code_of(serving([](const ModelTerms&) -> OwnModel { throw Error(Code::kBadModel, "bad"); })), 65);
  EXPECT_EQ(code_of(serving([](const ModelTerms&) -> OwnModel { throw std::bad_alloc(); })), 69);
  EXPECT_EQ(code_of(started([] { return 70; })), 69);
  EXPECT_EQ(code_of([](int) -> pid_t { throw Error(Code::kOs, "no more processes"); }), 71);
}

TEST(SupervisedRunner, AnotherModelIsNoNextProcess) {
  pid_t pid = 0;
  SupervisedRunner runner(serving(
                              [](const ModelTerms& terms) {
                                return OwnModel{cursed([] {}), terms.pages ? "another" : "one"};
                              },
                              &pid),
                          0);
  ::kill(pid, SIGKILL);
  EXPECT_THROW(run(runner, step_of_tokens({1})), RunnerLost);
  try {
    run(runner, step_of_tokens({1}));
    ADD_FAILURE() << "it serves";
  } catch (const RunnerLost& lost) {
    ADD_FAILURE() << lost.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 69);
    EXPECT_NE(std::string(error.what()).find("no longer those that were loaded"), std::string::npos);
  }
}

TEST(SupervisedRunner, LoadsThatFailAreTriedAgainLaterAndLater) {
  pid_t pid = 0;
  SupervisedRunner runner(serving(
                              [](const ModelTerms& terms) -> OwnModel {
                                if (terms.pages) throw Error(Code::kExhausted, "no memory now");
                                return {cursed([] {}), ""};
                              },
                              &pid),
                          0);
  ::kill(pid, SIGKILL);
  EXPECT_THROW(run(runner, step_of_tokens({1})), RunnerLost);
  const auto since = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(loss(runner, step_of_tokens({1})), "no memory now");
  EXPECT_GE(std::chrono::steady_clock::now() - since, 300ms);  // 100 and 200 between three
}

}  // namespace
}  // namespace ark::supervise
