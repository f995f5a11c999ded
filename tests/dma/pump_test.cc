#include "dma/pump.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "dma/bench.h"
#include "dma/faults.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "dma/transports.h"

namespace ark::dma {
namespace {

std::vector<std::unique_ptr<Group>> faulty_pair(
    const FaultPlan& plan, bool run_pump, uint32_t attempts = 10,
    std::chrono::microseconds retry_after = std::chrono::milliseconds(5)) {
  EndpointSpec spec;
  spec.regions = {{"data", 4096}};
  spec.channels = {{.name = "data"}};
  spec.force_posted = true;
  spec.run_pump = run_pump;
  spec.pump.attempts = attempts;
  spec.pump.retry_after = retry_after;
  auto transports = make_local_transports(2);
  for (auto& transport : transports) transport = with_faults(std::move(transport), plan);
  return make_local_groups(
      2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(20)), std::move(transports));
}

TEST(Pump, RunsWithoutAThread) {
  auto groups = faulty_pair({}, false);
  Pump& pump = groups[0]->endpoint().pump();
  EXPECT_TRUE(pump.is_idle());
  ASSERT_FALSE(groups[0]->sender(1, 0).signal({}));
  EXPECT_FALSE(pump.is_idle());
  for (int turn = 0; turn < 20 && !pump.is_idle(); ++turn) pump.run_once();
  EXPECT_TRUE(pump.is_idle());
  EXPECT_TRUE(groups[1]->receiver(0, 0).has_arrived(1));
  EXPECT_EQ(pump.run_once(), 0u);
}

TEST(Pump, NoArrivalBeforeAllEarlierDataOfTheChannel) {
  // Transfers take effect in random order, up to 20 polls late: the count must never run ahead of the data.
  auto groups =
      faulty_pair({.seed = 3, .drop = 0.02, .refuse = 0.1, .delay_polls = 20, .reorder = true}, false);
  auto* source = reinterpret_cast<uint32_t*>(groups[0]->region(0).base);
  auto* target = reinterpret_cast<uint32_t*>(groups[1]->region(0).base);
  const Sender to = groups[0]->sender(1, 0);
  const Receiver from = groups[1]->receiver(0, 0);
  constexpr uint32_t kPuts = 400;
  for (uint32_t i = 0; i < kPuts; ++i) {
    source[i] = i + 1;
    ASSERT_FALSE(to.put(0, i * 4, 0, i * 4, 4, {}));
  }
  Pump& pump = groups[0]->endpoint().pump();
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  for (uint32_t arrived = 0; arrived < kPuts && !deadline.passed();) {
    pump.run_once();
    ASSERT_FALSE(pump.fault()) << pump.fault().text();
    while (arrived < kPuts && from.has_arrived(arrived + 1)) {
      ASSERT_EQ(target[arrived], arrived + 1);
      ++arrived;
    }
  }
  EXPECT_TRUE(from.has_arrived(kPuts));
  EXPECT_FALSE(from.has_arrived(kPuts + 1)) << "a retry must not count twice";
}

TEST(Pump, ALateFirstAttemptNeverOverwritesNewerData) {
  // Most transfers are slower than the first timers, so they are repeated while the first is under way.
  auto groups = faulty_pair({.seed = 4, .delay_polls = 4000}, false, 1000, std::chrono::microseconds(20));
  auto* source = reinterpret_cast<uint32_t*>(groups[0]->region(0).base);
  auto* target = reinterpret_cast<uint32_t*>(groups[1]->region(0).base);
  const Sender to = groups[0]->sender(1, 0);
  const Receiver from = groups[1]->receiver(0, 0);
  Pump& pump = groups[0]->endpoint().pump();
  constexpr uint32_t kPuts = 30;
  for (uint32_t i = 1; i <= kPuts; ++i) {
    *source = i;
    ASSERT_FALSE(to.put(0, 0, 0, 0, 4, {}));
    while (!pump.is_idle()) {
      pump.run_once();
      ASSERT_TRUE(*target == i || *target == i - 1) << "put " << i << " sees " << *target;
    }
    ASSERT_FALSE(pump.fault()) << pump.fault().text();
    ASSERT_EQ(*target, i);
  }
  for (int turn = 0; turn < 50'000; ++turn) pump.run_once();
  EXPECT_EQ(*target, kPuts);
  EXPECT_TRUE(from.has_arrived(kPuts));
  EXPECT_FALSE(from.has_arrived(kPuts + 1)) << "a late first attempt must not count either";
}

// A GPU rings no doorbell: while it may post, the pump must look without being told.
TEST(Pump, LooksAgainAndAgainWhileAProducerThatCannotRingMayPost) {
  auto groups = faulty_pair({}, true);
  Pump& pump = groups[0]->endpoint().pump();
  std::atomic<bool> may_post{true};
  std::atomic<uint64_t> asked{0};
  pump.poll_while([&] { return ++asked, may_post.load(); }, 0);
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));  // asleep, it would take 20 s
  while (asked < 1000 && !deadline.passed()) std::this_thread::yield();
  EXPECT_GE(asked, 1000u);
  RequestQueues& queues = groups[0]->endpoint().queues();
  ASSERT_TRUE(queues.ring(Priority::kDecode).try_push({groups[0]->sender(1, 0).route}));
  EXPECT_FALSE(groups[1]->receiver(0, 0).wait(1, {nullptr, Deadline::after(std::chrono::seconds(10)), {}}));
  may_post = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const uint64_t before = asked;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LE(asked - before, 50u) << "it does not sleep";
  pump.poll_while(nullptr, 0);
  const uint64_t last = asked;
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(asked, last);
}

constexpr int64_t kHourNs = 3'600'000'000'000;

// Whose pumps may sleep as long as they like.
class SleepyWire final : public Wire {
 public:
  explicit SleepyWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
  bool is_ordered() const override { return wire_->is_ordered(); }
  Submitted submit(const Transfer& transfer) override { return wire_->submit(transfer); }
  size_t poll(std::span<Completion> done) override { return wire_->poll(done); }
  void cancel(uint64_t id) override { wire_->cancel(id); }
  int64_t idle_sleep_ns() const override { return kHourNs; }

 private:
  std::unique_ptr<Wire> wire_;
};

class SleepyTransport final : public Transport {
 public:
  explicit SleepyTransport(std::unique_ptr<Transport> local) : local_(std::move(local)) {}
  std::string_view name() const override { return local_->name(); }
  Memory allocate(const std::string& name, uint64_t bytes) override { return local_->allocate(name, bytes); }
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    return local_->adopt(name, base, bytes);
  }
  std::string describe(const Memory& memory) override { return local_->describe(memory); }
  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    return local_->attach(peer, description, bytes);
  }
  void connected() override { local_->connected(); }
  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    return std::make_unique<SleepyWire>(local_->open_wire(map, bootstrap, deadline));
  }

 private:
  std::unique_ptr<Transport> local_;
};

// What is posted before the function says no is seen before the pump sleeps, which nobody ends here.
TEST(Pump, LooksOnceMoreAfterTheLastPost) {
  EndpointSpec spec;
  spec.channels = {{.name = "data"}};
  spec.force_posted = true;
  spec.pump.idle_sleep_ns = kHourNs;
  auto transports = make_local_transports(2);
  for (auto& transport : transports) transport = std::make_unique<SleepyTransport>(std::move(transport));
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(20)), std::move(transports));
  std::atomic<int> asked{0};
  groups[0]->endpoint().pump().poll_while(
      [&] {
        if (++asked != 100) return asked < 100;
        const Request request{.route = groups[0]->sender(1, 0).route};
        EXPECT_TRUE(groups[0]->endpoint().queues().ring(Priority::kDecode).try_push(request));
        return false;
      },
      0);
  EXPECT_FALSE(groups[1]->receiver(0, 0).wait(1, {nullptr, Deadline::after(std::chrono::seconds(20)), {}}));
  EXPECT_GE(asked, 100);
  groups[0]->endpoint().pump().poll_while(nullptr, 0);
}

// A loop that ends late must not keep a CPU busy with a pump that serves nothing any more.
TEST(Pump, SleepsAfterAFailureThoughAProducerMayPost) {
  for (const bool aborted : {false, true}) {
    auto groups = faulty_pair({}, true);
    std::atomic<uint64_t> asked{0};
    groups[0]->endpoint().pump().poll_while([&] { return ++asked, true; }, 0);
    if (aborted) {
      groups[0]->abort().raise(AbortReason::kShutdown);
    } else {
      RequestQueues& queues = groups[0]->endpoint().queues();
      ASSERT_TRUE(queues.ring(Priority::kDecode).try_push({.route = 2047}));  // there is no such route
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    while (!groups[0]->abort().raised() && !deadline.passed()) std::this_thread::yield();
    ASSERT_TRUE(groups[0]->abort().raised());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t before = asked;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LE(asked - before, 50u);
    EXPECT_EQ(groups[0]->trouble(), aborted ? "the group was aborted" : groups[0]->fault().text());
    EXPECT_NE(groups[0]->trouble(), "");
    groups[0]->endpoint().pump().poll_while(nullptr, 0);
  }
}

TEST(Pump, ACutWireIsNamedAndEndsTheWaits) {
  auto groups = faulty_pair({.cut_after = 3}, true, 4);
  const Sender to = groups[0]->sender(1, 0);
  const WaitContext context{&groups[0]->abort(), Deadline::after(std::chrono::seconds(20)), {}};
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(to.put(0, 0, 0, 0, 64, context));
  EXPECT_EQ(to.wait_completed(10, context).kind, FaultKind::kAborted);
  EXPECT_EQ(groups[0]->abort().reason(), AbortReason::kFault);
  EXPECT_EQ(groups[0]->fault().text(),
            "rank 0, peer 1: attempts of a transfer: the wire is cut (saw 4, needed 4)");
}

// Also where a loop then raises the abort word because it ends: that is no death.
TEST(Pump, WhatWasPostedBeforeTheEndStillArrives) {
  for (const bool has_parted : {false, true}) {
    auto groups = faulty_pair({}, true);
    for (int i = 0; i < 1000; ++i) ASSERT_FALSE(groups[0]->sender(1, 0).signal({}));
    if (has_parted) {
      groups[0]->part();
      groups[0]->abort().raise(AbortReason::kShutdown);
    }
    groups[0].reset();
    EXPECT_TRUE(groups[1]->receiver(0, 0).has_arrived(1000));
    EXPECT_EQ(groups[1]->trouble(), "");
  }
}

TEST(Bench, GivesARowPerTransportLinkAndSize) {
  const std::vector<BenchRow> rows = run_bench({{4, 65536}, std::chrono::milliseconds(1)});
  std::vector<std::string> names;
  for (const BenchRow& row : rows) {
    EXPECT_GT(row.latency_us.p50, 0);
    EXPECT_GT(row.gigabytes_per_second, 0);
    if (row.bytes == 65536) names.push_back(row.transport + " " + row.link);
  }
  EXPECT_EQ(rows.size(), 2 * names.size());
  std::vector<std::string> expected;
  for (const TransportKind& kind : transports()) {
    if (kind.is_mixed || !kind.works_here()) continue;
    // Those with links of one kind are measured once.
    if (kind.name == "local" || kind.name == "shm") expected.push_back(std::string(kind.name) + " direct");
    expected.push_back(std::string(kind.name) + " posted");
  }
  EXPECT_EQ(names, expected);
  EXPECT_GE(names.size(), 5u);
}

}  // namespace
}  // namespace ark::dma
