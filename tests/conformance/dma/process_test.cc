// Ranks as processes over each transport that connects them: this program starts itself again with the environment
// bootstrap set, and the copies run RankProcess.Body below instead of the suite.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "dma/group.h"
#include "dma/launch.h"
#include "dma/message.h"
#include "dma/transports.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

constexpr uint64_t kCapacity = 1 << 20;
constexpr uint64_t kCount = 1024;  // floats of the all-reduce
constexpr uint64_t kSteps = 40;
enum : uint32_t { kReduce, kMailbox };

EndpointSpec spec(bool posted) {
  EndpointSpec result;
  result.channels = {{.name = "reduce", .slot_bytes = kCount * sizeof(float)},
                     {.name = "mailbox", .slots = 4, .slot_bytes = message_slot_bytes(kCapacity)}};
  result.force_posted = posted;
  return result;
}

float partial(int rank, uint64_t step, uint64_t i) {
  return 1.0f / static_cast<float>(1 + rank * 17 + static_cast<int>(step) * 3 + static_cast<int>(i));
}

Fault all_reduce(Group& group, uint64_t step, std::vector<float>& sum, const WaitContext& context) {
  std::vector<float> mine(kCount);
  for (uint64_t i = 0; i < kCount; ++i) mine[i] = partial(group.rank(), step, i);
  const uint64_t bytes = kCount * sizeof(float);
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    const Sender to = group.sender(peer, kReduce);
    if (Fault fault = to.acquire(step, context)) return fault;
    std::memcpy(to.slot(step), mine.data(), bytes);
    if (Fault fault = to.commit(step, 0, bytes, context)) return fault;
  }
  sum.assign(kCount, 0);
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<float> theirs = mine;
    if (rank != group.rank()) {
      const Receiver from = group.receiver(rank, kReduce);
      if (Fault fault = from.wait(step + 1, context)) return fault;
      std::memcpy(theirs.data(), from.slot(step), bytes);
      if (Fault fault = from.release(context)) return fault;
    }
    for (uint64_t i = 0; i < kCount; ++i) sum[i] += theirs[i];
  }
  return {};
}

// `role`: "TRANSPORT_direct" or "TRANSPORT_posted", and more.
std::unique_ptr<Group> join(const Environment& environment, const std::string& role) {
  return join_group(join_environment(environment, soon()), role.substr(0, role.find('_')),
                    spec(role.find("posted") != std::string::npos), soon());
}

// A rank's loop: a step descriptor comes from rank 0, the ranks reduce, the result goes back.
Fault serve(Group& group, const WaitContext& context) {
  MessageReceiver steps(group.receiver(0, kMailbox));
  MessageSender results(group.sender(0, kMailbox));
  std::vector<float> sum;
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::span<const std::byte> descriptor;
    if (Fault fault = steps.receive(descriptor, context)) return fault;
    const bool good = descriptor.size() == kCapacity - step && descriptor.back() == std::byte(step);
    if (Fault fault = steps.release(context)) return fault;
    if (!good) return {FaultKind::kBadRequest, {.what = "descriptor"}};
    if (Fault fault = all_reduce(group, step, sum, context)) return fault;
    if (Fault fault = results.send(std::as_bytes(std::span(sum)), context)) return fault;
  }
  // Rank 0 has all results when it says so; until then a death would go unnoticed.
  return group.receiver(0, kMailbox).wait(kSteps + 1, context);
}

// Exit codes: 0 good, 69 a rank is dead, 70 anything else.
TEST(RankProcess, Body) {
  const char* role = std::getenv("ARK_TEST_ROLE");
  if (!Environment::is_set() || role == nullptr) return;  // only in the copies
  const auto group = join(Environment::from_process(), role);
  const WaitContext context{&group->abort(), soon(), {}};
  const Fault fault = std::strstr(role, "hang") != nullptr
                          ? group->receiver(0, kMailbox).wait(1'000'000, context)
                          : serve(*group, context);
  if (fault) std::fprintf(stderr, "%s; %s\n", fault.text().c_str(), group->death().c_str());
  std::fflush(stderr);
  if (fault) _exit(group->dead_rank() >= 0 ? 69 : 70);
}

class Processes : public ::testing::TestWithParam<std::string> {
 protected:
  static RankProcesses start(int size, const std::string& role) {
    setenv("ARK_TEST_ROLE", role.c_str(), 1);
    return RankProcesses(size, {"--gtest_filter=RankProcess.Body", "--gtest_brief=1"});
  }
  static std::unique_ptr<Group> join_as_rank_0(const RankProcesses& processes) {
    return join(processes.environment(), GetParam());
  }
};

TEST_P(Processes, ReduceAndReportOverSharedMemory) {
  const RankProcesses processes = start(3, GetParam());
  const auto group = join_as_rank_0(processes);
  const WaitContext context{&group->abort(), soon(), {}};
  std::vector<MessageSender> steps;
  std::vector<MessageReceiver> results;
  for (int peer = 1; peer < 3; ++peer) {
    steps.emplace_back(group->sender(peer, kMailbox));
    results.emplace_back(group->receiver(peer, kMailbox));
  }
  std::vector<float> sum;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const std::vector<std::byte> descriptor(kCapacity - step, std::byte(step));
    for (MessageSender& to : steps) ASSERT_FALSE(to.send(descriptor, context));
    const Fault fault = all_reduce(*group, step, sum, context);
    ASSERT_FALSE(fault) << fault.text() << group->death();
    for (MessageReceiver& from : results) {
      std::span<const std::byte> got;
      ASSERT_FALSE(from.receive(got, context));
      ASSERT_EQ(got.size(), kCount * sizeof(float));
      EXPECT_EQ(std::memcmp(got.data(), sum.data(), got.size()), 0) << "step " << step;
      ASSERT_FALSE(from.release(context));
    }
    float expected = 0;
    for (int rank = 0; rank < 3; ++rank) expected += partial(rank, step, kCount - 1);
    EXPECT_EQ(sum.back(), expected);
  }
  for (int peer = 1; peer < 3; ++peer) ASSERT_FALSE(group->sender(peer, kMailbox).signal(context));
  for (int rank = 1; rank < 3; ++rank) {
    int status = -1;
    ASSERT_EQ(waitpid(processes.pid(rank), &status, 0), processes.pid(rank));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(group->dead_rank(), -1) << group->death();
}

TEST_P(Processes, AKilledRankIsNamedByAllSoon) {
  const RankProcesses processes = start(3, GetParam() + "-hang");
  const auto group = join_as_rank_0(processes);
  const WaitContext context{&group->abort(), soon(), {}};
  kill(processes.pid(1), SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  const Fault fault = group->receiver(2, kReduce).wait(1, context);
  EXPECT_EQ(fault.kind, FaultKind::kAborted) << fault.text();
  EXPECT_EQ(group->dead_rank(), 1);
  EXPECT_EQ(group->abort().reason(), AbortReason::kDeadRank);
  int status = -1;
  ASSERT_EQ(waitpid(processes.pid(2), &status, 0), processes.pid(2));
  // Two seconds are the promise; a busy machine gets more, but less than any deadline.
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(15));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 69) << "rank 2 must notice it too: " << status;
}

// Rank 0's end, seen from the others: here a process that has joined as rank 0 just goes.
TEST_P(Processes, TheOthersEndWhenRankZeroGoes) {
  const RankProcesses processes = start(3, GetParam() + "-hang");
  auto group = join_as_rank_0(processes);
  group->abort().raise(AbortReason::kFault, 0);
  group.reset();  // does not leave in good order
  for (int rank = 1; rank < 3; ++rank) {
    int status = -1;
    ASSERT_EQ(waitpid(processes.pid(rank), &status, 0), processes.pid(rank));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 69) << status;
  }
}

TEST_P(Processes, AStoppedAndThenKilledRankIsNoticed) {
  const RankProcesses processes = start(2, GetParam() + "-hang");
  const auto group = join_as_rank_0(processes);
  kill(processes.pid(1), SIGSTOP);
  kill(processes.pid(1), SIGKILL);
  const Fault fault = group->receiver(1, kReduce).wait(1, {&group->abort(), soon(), {}});
  EXPECT_EQ(fault.kind, FaultKind::kAborted);
  EXPECT_EQ(group->dead_rank(), 1);
}

TEST_P(Processes, ARankThatDiesDuringSetUpIsNamed) {
  const RankProcesses processes = start(2, GetParam() + "-hang");
  const auto bootstrap = join_environment(processes.environment(), soon());
  kill(processes.pid(1), SIGKILL);
  try {
    bootstrap->barrier(soon());
    bootstrap->barrier(soon());
    FAIL() << "a dead rank took part";
  } catch (const std::exception& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("rank 1 is gone during set-up")) << error.what();
  }
}

std::vector<std::string> between_processes() {
  std::vector<std::string> all;
  for (const TransportKind& kind : transports()) {
    std::vector<Place> two(2, Place::here());
    ++two[1].process;
    if (!kind.can_connect(two)) continue;
    for (const char* link : {"_direct", "_posted"}) all.push_back(std::string(kind.name) + link);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dma, Processes, ::testing::ValuesIn(between_processes()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '+' || c == '-'; }, '_');
  return name;
});

}  // namespace
}  // namespace ark::dma
