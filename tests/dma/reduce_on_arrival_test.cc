// Who makes a sum, case by case: a pump without a thread, which looks when the test says so.
#include "dma/reduce_on_arrival.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "dma/faults.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

constexpr uint64_t kFloats = 64 << 10;

// Rank 0 of two, whose part is `own`; the other one only sends.
struct Two {
  explicit Two(SumsBy by = SumsBy::kDepth, bool counts_arrivals = true, bool refuses = false) {
    EndpointSpec spec;
    spec.channels = {{.name = "sum", .slots = 2, .slot_bytes = kFloats * sizeof(float)}};
    spec.force_posted = true;
    spec.run_pump = false;
    spec.pump.attempts = UINT32_MAX;
    auto transports = make_local_transports(2);
    for (auto& transport : transports)
      transport =
          with_faults(std::move(transport), {.refuse = refuses && &transport == &transports[0] ? 1.0 : 0.0});
    groups = make_local_groups(
        2, [&](int) { return spec; }, soon(), std::move(transports));
    const Sender to = groups[0]->sender(1, 0);
    std::vector<ArrivalSums::Sum> all(1);
    all[0].parts = {ArrivalSums::Part::of(to, groups[0]->endpoint().pump().taken(to.route), 0, 1, 1),
                    ArrivalSums::Part::of(groups[0]->receiver(1, 0), 0, 1, 1)};
    all[0].counts_arrivals = counts_arrivals;
    sums = std::make_unique<ArrivalSums>(std::move(all), Adder{add, nullptr}, by);
    groups[0]->endpoint().pump().look_after(sums.get());
  }
  ~Two() { groups[0]->endpoint().pump().look_after(nullptr); }

  static void add(const void*, const float* const* parts, int count, float* sum, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      float total = parts[0][i];
      for (int p = 1; p < count; ++p) total += parts[p][i];
      sum[i] = total;
    }
  }

  // Rank's part of a round, of value rank + 1.
  void send(int rank, uint64_t round) {
    const Sender to = groups[rank]->sender(1 - rank, 0);
    reinterpret_cast<float*>(to.slot(round))[0] = static_cast<float>(rank) + 1;
    ASSERT_FALSE(to.commit(round, 0, sizeof(float), context()));
    if (rank == 1)
      while (!groups[1]->endpoint().pump().is_idle()) groups[1]->endpoint().pump().run_once();
  }
  size_t turn() { return groups[0]->endpoint().pump().run_once(); }
  void turns() {
    Pump& pump = groups[0]->endpoint().pump();
    for (const Deadline deadline = soon(); !pump.is_idle() && !deadline.passed();) pump.run_once();
    pump.run_once();
    EXPECT_TRUE(pump.is_idle()) << pump.fault().text();
  }
  float arrived(uint64_t round) const {
    return reinterpret_cast<const float*>(groups[0]->receiver(1, 0).slot(round))[0];
  }
  static WaitContext context() { return {nullptr, soon(), {}}; }
  Fault await(uint64_t round, WaitContext context = Two::context()) {
    return sums->await(0, round, {.what = "message", .rank = 0}, context, foresight, 0);
  }

  std::vector<std::unique_ptr<Group>> groups;
  std::unique_ptr<ArrivalSums> sums;
  Foresight foresight{1};
};

TEST(ReduceOnArrival, APumpThatComesFirstAdds) {
  Two two;
  two.sums->open(0, 0, 1);
  two.send(1, 0);
  two.turns();
  EXPECT_EQ(two.arrived(0), 2) << "the own part is missing: nothing is to be added yet";
  two.send(0, 0);
  two.turns();
  ASSERT_FALSE(two.await(0));
  ASSERT_NE(two.sums->in_place(0, 0), nullptr);
  EXPECT_EQ(*reinterpret_cast<const float*>(two.sums->in_place(0, 0)), 3);
}

TEST(ReduceOnArrival, AProcessorThatComesFirstLeavesNothingToThePump) {
  for (const bool counts_arrivals : {true, false}) {
    Two two(SumsBy::kDepth, counts_arrivals);
    two.sums->open(0, 0, 1);
    two.send(1, 0);
    ASSERT_FALSE(two.await(0));  // without the pump's doing
    EXPECT_EQ(two.sums->in_place(0, 0), nullptr);
    two.send(0, 0);
    two.turns();
    EXPECT_EQ(two.arrived(0), 2);
    EXPECT_EQ(two.sums->in_place(0, 0), nullptr);
  }
}

TEST(ReduceOnArrival, WhatIsToBeSentGoesFirst) {
  for (const bool refuses : {false, true}) {
    Two two(SumsBy::kDepth, true, refuses);
    two.sums->open(0, 0, 1);
    two.send(0, 0);
    two.turn();  // refused, it waits to be tried again
    two.send(1, 0);
    two.turn();
    EXPECT_EQ(two.arrived(0), refuses ? 2 : 3);
    // It has told that all is there: who sleeps wakes, and adds.
    ASSERT_FALSE(two.await(0));
    EXPECT_EQ(two.sums->in_place(0, 0) != nullptr, !refuses);
  }
}

TEST(ReduceOnArrival, ManyBytesAreForProcessorsUnlessThePumpMust) {
  for (const SumsBy by : {SumsBy::kDepth, SumsBy::kPump}) {
    Two two(by);
    two.sums->open(0, 0, kFloats + 1);
    two.send(1, 0);
    two.send(0, 0);
    if (by == SumsBy::kPump) two.sums->open(0, 0, kFloats);
    two.turns();
    ASSERT_FALSE(two.await(0));
    EXPECT_EQ(two.sums->in_place(0, 0) != nullptr, by == SumsBy::kPump);
    EXPECT_EQ(two.arrived(0), by == SumsBy::kPump ? 3 : 2);
  }
}

// The pump sleeps through some rounds: it adds to none of them, and to the next one again.
TEST(ReduceOnArrival, ALatePumpTouchesNoRoundThatIsOver) {
  Two two(SumsBy::kDepth, false);
  for (uint64_t round = 0; round < 5; ++round) {
    two.sums->open(0, round, 1);
    if (round == 3) two.turns();  // from 0 to 2 at once; round 3 has not come
    two.send(1, round);
    if (round == 4) {
      two.send(0, round);
      two.turns();
    }
    ASSERT_FALSE(two.await(round));
    EXPECT_EQ(two.sums->in_place(0, round) != nullptr, round == 4);
    EXPECT_EQ(two.arrived(round), round == 4 ? 3 : 2);
    if (round != 4) two.send(0, round);
  }
}

TEST(ReduceOnArrival, NobodyAddsWherePumpAloneMayAndAFaultSaysWhomItWaitsFor) {
  Two two(SumsBy::kPump);
  two.sums->open(0, 0, 1);
  two.send(0, 0);
  two.turns();
  WaitContext brief = Two::context();
  brief.deadline = Deadline::after(std::chrono::milliseconds(1));
  Fault fault = two.await(0, brief);
  EXPECT_EQ(fault.kind, FaultKind::kDeadline);
  EXPECT_EQ(fault.at.peer, 1);
  EXPECT_EQ(fault.seen, 0u);
  EXPECT_EQ(fault.needed, 1u);
  two.send(1, 0);
  brief.deadline = Deadline::after(std::chrono::milliseconds(1));
  fault = two.await(0, brief);
  EXPECT_EQ(fault.kind, FaultKind::kDeadline);
  EXPECT_STREQ(fault.at.what, "sum by the pump");
  two.turns();
  EXPECT_FALSE(two.await(0));
}

// Processors sleep, the pump's thread wakes them by one counter.
TEST(ReduceOnArrival, WhoSleepsIsWokenOnceAllIsThere) {
  Two two;
  WaitMeter meter;
  const Deadline deadline = soon();
  // Until it has come so early that it waits.
  for (uint64_t round = 0; meter.peers_ns == 0 && !deadline.passed(); ++round) {
    two.sums->open(0, round, 1);
    two.send(0, round);
    two.turns();
    std::jthread processor([&] {
      WaitContext context = Two::context();
      context.meter = &meter;
      EXPECT_FALSE(two.await(round, context));
    });
    detail::blind_sleep(2'000'000);
    two.send(1, round);
    two.turn();
  }
  EXPECT_GT(meter.peers_ns, 0);
  EXPECT_EQ(meter.longest_peer, 1);
}

TEST(ReduceOnArrival, TheEnvironmentSaysWhoAdds) {
  const char* before = std::getenv("ARK_SUMS");
  const std::string kept = before ? before : "";
  const auto wish = [](const char* text) {
    setenv("ARK_SUMS", text, 1);
    return sums_wish();
  };
  EXPECT_EQ(wish(""), SumsBy::kDepth);
  EXPECT_EQ(wish("depth"), SumsBy::kDepth);
  EXPECT_EQ(wish("processors"), SumsBy::kProcessors);
  EXPECT_EQ(wish("pump"), SumsBy::kPump);
  EXPECT_EQ(wish("mixed"), SumsBy::kMixed);
  EXPECT_THROW(wish("Pump"), Error);
  unsetenv("ARK_SUMS");
  EXPECT_EQ(sums_wish(), SumsBy::kDepth);
  if (before) setenv("ARK_SUMS", kept.c_str(), 1);
}

}  // namespace
}  // namespace ark::dma
