// What every transport promises of a channel: order, credits, bounds, priorities, ends of waits.
#include <gtest/gtest.h>

#include <cstring>

#include "dma/message.h"
#include "tests/conformance/dma/backend.h"

namespace ark::dma::test {
namespace {

constexpr uint32_t kChannel = 0;

EndpointSpec spec_with_slots(uint32_t slots, uint64_t slot_bytes) {
  EndpointSpec spec;
  spec.channels = {{.name = "data", .slots = slots, .slot_bytes = slot_bytes}};
  return spec;
}

uint32_t pattern(uint64_t message, uint64_t word) {
  return static_cast<uint32_t>((message + 1) * 2654435761u + word * 40503u);
}

void fill(std::byte* slot, uint64_t message, uint64_t words) {
  for (uint64_t word = 0; word < words; ++word) {
    const uint32_t value = pattern(message, word);
    std::memcpy(slot + word * 4, &value, 4);
  }
}

bool is_filled(const std::byte* slot, uint64_t message, uint64_t words) {
  for (uint64_t word = 0; word < words; ++word) {
    const uint32_t value = pattern(message, word);
    if (std::memcmp(slot + word * 4, &value, 4) != 0) return false;
  }
  return true;
}

// Rank 0 sends `messages` of `words` words, rank 1 checks each. Slots are reused under credits.
Fault send_all(Group& group, const WaitContext& context, uint64_t messages, uint64_t words) {
  if (group.rank() == 0) {
    const Sender to = group.sender(1, kChannel);
    for (uint64_t message = 0; message < messages; ++message) {
      if (Fault fault = to.acquire(message, context)) return fault;
      fill(to.slot(message), message, words);
      if (Fault fault = to.commit(message, 0, words * 4, context)) return fault;
    }
    return to.wait_completed(messages, context);
  }
  const Receiver from = group.receiver(0, kChannel);
  for (uint64_t message = 0; message < messages; ++message) {
    if (Fault fault = from.wait(message + 1, context)) return fault;
    EXPECT_TRUE(is_filled(from.slot(message), message, words)) << "message " << message;
    if (Fault fault = from.release(context)) return fault;
  }
  return {};
}

TEST_P(Conformance, DataIsThereWhenItsArrivalIs) {
  auto groups = make_groups(2, spec_with_slots(2, 4096));
  run_ranks(groups,
            [](Group& group, const WaitContext& context) { return send_all(group, context, 500, 1024); });
}

TEST_P(Conformance, ManyLapsOverTheRing) {
  auto groups = make_groups(2, spec_with_slots(64, 64));
  run_ranks(groups, [](Group& group, const WaitContext& context) {
    return send_all(group, context, Ring::kSlots * 5 + 3, 4);
  });
}

TEST_P(Conformance, CountersWrapAround) {
  EndpointSpec spec = spec_with_slots(2, 64);
  for (const uint64_t start : {UINT64_MAX - 20, uint64_t{UINT32_MAX} - 20, uint64_t{INT64_MAX} - 20}) {
    spec.first_count = start;
    auto groups = make_groups(2, spec);
    run_ranks(groups,
              [](Group& group, const WaitContext& context) { return send_all(group, context, 50, 8); });
  }
}

TEST_P(Conformance, AThirdMessageWaitsForACredit) {
  auto groups = make_groups(2, spec_with_slots(2, 64));
  const Sender to = groups[0]->sender(1, kChannel);
  const Receiver from = groups[1]->receiver(0, kChannel);
  WaitContext brief{nullptr, Deadline::after(std::chrono::milliseconds(30)), {}};
  EXPECT_FALSE(to.acquire(0, brief));
  EXPECT_FALSE(to.acquire(1, brief));
  const Fault fault = to.acquire(2, brief);
  EXPECT_EQ(fault.kind, FaultKind::kDeadline);
  EXPECT_EQ(fault.at.rank, 0);
  EXPECT_EQ(fault.at.peer, 1);
  EXPECT_EQ(fault.seen, 0u);
  EXPECT_EQ(fault.needed, 1u);
  ASSERT_FALSE(from.release(context_of(*groups[1])));
  EXPECT_FALSE(to.acquire(2, context_of(*groups[0])));
}

TEST_P(Conformance, SeveralProcessorsFillOneMessage) {
  constexpr int kProcessors = 4;
  constexpr uint64_t kMessages = 200, kWords = 64;
  auto groups = make_groups(2, spec_with_slots(2, kProcessors * kWords * 4));
  const auto part = [](uint64_t message, int processor) { return message * kProcessors + processor; };
  run_ranks(groups, [&](Group& group, const WaitContext& context) -> Fault {
    if (group.rank() == 0) {
      const Sender to = group.sender(1, kChannel);
      Counter32 committed;  // nobody runs ahead of a processor that has not filled its part yet
      std::vector<std::jthread> processors;
      for (int processor = 0; processor < kProcessors; ++processor) {
        processors.emplace_back([&, processor] {
          for (uint64_t message = 0; message < kMessages; ++message) {
            if (wait_reached(committed, static_cast<uint32_t>(message * kProcessors), {}, context)) return;
            if (to.acquire(message, context)) return;
            const uint64_t offset = processor * kWords * 4;
            fill(to.slot(message) + offset, part(message, processor), kWords);
            if (to.commit(message, offset, kWords * 4, context)) return;
            committed.raise();
          }
        });
      }
      processors.clear();  // joins
      return {};
    }
    const Receiver from = group.receiver(0, kChannel);
    for (uint64_t message = 0; message < kMessages; ++message) {
      if (Fault fault = from.wait((message + 1) * kProcessors, context)) return fault;
      for (int processor = 0; processor < kProcessors; ++processor) {
        const std::byte* slot = from.slot(message) + processor * kWords * 4;
        EXPECT_TRUE(is_filled(slot, part(message, processor), kWords));
      }
      if (Fault fault = from.release(context)) return fault;
    }
    return {};
  });
}

TEST_P(Conformance, PutMovesBytesBetweenRegionsOfUnequalSize) {
  EndpointSpec spec;
  spec.regions = {{"from", 1 << 20}, {"to", 1 << 20}};
  spec.channels = {{.name = "bulk", .priority = Priority::kBulk}};
  spec.pump.piece_bytes = 10'000;  // pieces that do not divide the whole
  auto groups = make_groups(2, spec);
  std::byte* source = groups[0]->region(0).base;
  fill(source, 7, 1 << 18);
  const WaitContext context = context_of(*groups[0]);
  const Sender to = groups[0]->sender(1, kChannel);
  ASSERT_FALSE(to.put(0, 4, 1, 12, 777'776, context));
  ASSERT_FALSE(to.put(0, 0, 1, 0, 0, context));
  ASSERT_FALSE(to.signal(context));
  ASSERT_FALSE(to.wait_completed(3, context));
  ASSERT_FALSE(groups[1]->receiver(0, kChannel).wait(3, context));
  const std::byte* target = groups[1]->region(1).base;
  EXPECT_EQ(std::memcmp(target + 12, source + 4, 777'776), 0);
  const std::vector<std::byte> zeros(12);
  EXPECT_EQ(std::memcmp(target, zeros.data(), 12), 0);
  EXPECT_EQ(std::memcmp(target + 12 + 777'776, zeros.data(), 12), 0);
}

TEST_P(Conformance, ASourceMayChangeOnceItsPutIsCompleted) {
  constexpr uint64_t kWords = 1 << 18;
  EndpointSpec spec;
  spec.regions = {{"from", kWords * 4}, {"to", kWords * 4}};
  spec.channels = {{.name = "data"}};
  auto groups = make_groups(2, spec);
  const WaitContext context = context_of(*groups[0]);
  const Sender to = groups[0]->sender(1, kChannel);
  for (uint64_t message = 0; message < 8; ++message) {
    fill(groups[0]->region(0).base, message, kWords);
    ASSERT_FALSE(to.put(0, 0, 1, 0, kWords * 4, context));
    ASSERT_FALSE(to.wait_completed(message + 1, context));
    std::memset(groups[0]->region(0).base, 0xff, kWords * 4);
    ASSERT_FALSE(groups[1]->receiver(0, kChannel).wait(message + 1, context));
    EXPECT_TRUE(is_filled(groups[1]->region(1).base, message, kWords)) << message;
  }
}

TEST_P(Conformance, TransfersOutsideARegionAreRefused) {
  EndpointSpec spec;
  spec.regions = {{"small", 64}, {"large", 4096}};
  spec.channels = {{.name = "data"}};
  auto groups = make_groups(2, spec);
  const WaitContext context = context_of(*groups[0]);
  const Sender to = groups[0]->sender(1, kChannel);
  const auto kind = [&](RegionId source, uint64_t from, RegionId target, uint64_t at, uint64_t bytes) {
    return to.put(source, from, target, at, bytes, context).kind;
  };
  EXPECT_EQ(kind(1, 0, 0, 0, 68), FaultKind::kBadRequest);
  EXPECT_EQ(kind(0, 4, 1, 0, 64), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, 0, 0, 4, 64), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, UINT64_MAX - 3, 0, 0, 8), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, 0, 0, UINT64_MAX - 3, 8), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, 0, 0, 0, UINT64_MAX), FaultKind::kBadRequest);
  EXPECT_EQ(kind(999, 0, 0, 0, 4), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, 0, 999, 0, 4), FaultKind::kBadRequest);
  EXPECT_EQ(kind(1, 0, 0, 0, 64), FaultKind::kNone);
  EXPECT_FALSE(groups[1]->receiver(0, kChannel).wait(1, context));
  EXPECT_FALSE(groups[1]->receiver(0, kChannel).has_arrived(2));
}

TEST_P(Conformance, ABadRequestInTheRingIsAFaultAndEndsTheWaits) {
  EndpointSpec spec;
  spec.regions = {{"only", 64}};
  spec.channels = {{.name = "data"}};
  auto groups = make_groups(2, spec);
  // As a device would post it, past the checks of Sender::put.
  const Request outside{groups[0]->sender(1, kChannel).route, 0, 0, 0, 32, 64};
  RequestQueues& queues = groups[0]->endpoint().queues();
  ASSERT_FALSE(queues.post(Priority::kDecode, outside, {}, context_of(*groups[0])));
  const Fault waited = groups[0]->receiver(1, kChannel).wait(1, context_of(*groups[0]));
  EXPECT_EQ(waited.kind, FaultKind::kAborted);
  const Fault fault = groups[0]->fault();
  EXPECT_EQ(fault.kind, FaultKind::kBadRequest) << fault.text();
  EXPECT_EQ(fault.at.peer, 1);
  EXPECT_EQ(fault.seen, 64u);
  EXPECT_EQ(fault.needed, 96u);
}

TEST_P(Conformance, EveryWaitEndsByDeadlineAndByAbort) {
  auto groups = make_groups(2, spec_with_slots(2, 64));
  const Sender to = groups[0]->sender(1, kChannel);
  const Receiver from = groups[0]->receiver(1, kChannel);
  const std::vector<std::function<Fault(const WaitContext&)>> waits = {
      [&](const WaitContext& context) { return from.wait(1, context); },
      [&](const WaitContext& context) { return to.acquire(2, context); },
      [&](const WaitContext& context) {
        // Completion has nothing to wait for on a direct link.
        return to.link == Link::kPosted ? to.wait_completed(1, context) : from.wait(2, context);
      }};
  for (const auto& wait : waits) {
    AbortFlag abort;
    const Fault late = wait({&abort, Deadline::after(std::chrono::milliseconds(20)), {}});
    EXPECT_EQ(late.kind, FaultKind::kDeadline) << late.text();
    std::jthread aborter([&] {
      detail::blind_sleep(30'000'000);
      abort.raise(AbortReason::kShutdown);
    });
    const Fault aborted = wait({&abort, soon(), {}});
    EXPECT_EQ(aborted.kind, FaultKind::kAborted) << aborted.text();
    EXPECT_EQ(aborted.at.rank, 0);
    EXPECT_EQ(aborted.at.peer, 1);
  }
}

// Many small messages do not pass a large one before them, and none is refused for having come early.
TEST_P(Conformance, ManySignalsStayBehindALargeTransfer) {
  constexpr uint64_t kBytes = 1 << 20, kSignals = 2000;
  EndpointSpec spec;
  spec.regions = {{"from", kBytes}, {"to", kBytes}};
  spec.channels = {{.name = "data"}};
  auto groups = make_groups(2, spec);
  const WaitContext context = context_of(*groups[0]);
  const Sender to = groups[0]->sender(1, kChannel);
  const Receiver from = groups[1]->receiver(0, kChannel);
  fill(groups[0]->region(0).base, 1, kBytes / 4);
  ASSERT_FALSE(to.put(0, 0, 1, 0, kBytes, context));
  for (uint64_t i = 0; i < kSignals; ++i) ASSERT_FALSE(to.signal(context));
  ASSERT_FALSE(from.wait(1, context));
  EXPECT_TRUE(is_filled(groups[1]->region(1).base, 1, kBytes / 4));
  const Fault fault = from.wait(1 + kSignals, context);
  EXPECT_FALSE(fault) << fault.text() << "; " << groups[1]->trouble();
}

TEST_P(Conformance, DecodeIsNotHeldUpByBulk) {
  constexpr uint64_t kBulk = 2 << 20;
  EndpointSpec spec;
  spec.regions = {{"bulk", kBulk}};
  spec.channels = {{.name = "decode"}, {.name = "bulk", .priority = Priority::kBulk}};
  spec.force_posted = true;  // a direct link has no queue
  spec.run_pump = false;     // both requests are in the rings before the first turn
  spec.pump.piece_bytes = 64 << 10;
  auto groups = make_groups(2, spec);
  const WaitContext context = context_of(*groups[0]);
  ASSERT_FALSE(groups[0]->sender(1, 1).put(0, 0, 0, 0, kBulk, context));
  ASSERT_FALSE(groups[0]->sender(1, 0).signal(context));
  Pump& pump = groups[0]->endpoint().pump();
  const Receiver decode = groups[1]->receiver(0, 0), bulk = groups[1]->receiver(0, 1);
  const auto until = [&](const Receiver& from) {
    // By time and not by turns: a packet that is lost comes again after a time-out.
    for (const Deadline end = Deadline::after(std::chrono::seconds(20));
         !from.has_arrived(1) && !end.passed();) {
      pump.run_once();
      groups[1]->endpoint().pump().run_once();  // receiving is work for some wires
    }
    return from.has_arrived(1);
  };
  EXPECT_TRUE(until(decode));
  EXPECT_FALSE(bulk.has_arrived(1)) << "bulk was posted first, but decode goes first";
  EXPECT_TRUE(until(bulk));
}

TEST_P(Conformance, AReceiverThatDoesNotLookHoldsUpItsSenderAndLosesNothing) {
  constexpr uint64_t kSignals = 3000;  // more than a wire and a ring have places for
  EndpointSpec spec;
  spec.channels = {{.name = "data"}};
  spec.force_posted = true;
  spec.run_pump = false;
  auto groups = make_groups(2, spec);
  Pump& sending = groups[0]->endpoint().pump();
  Ring& ring = groups[0]->endpoint().queues().ring(Priority::kDecode);
  const Request signal{.route = groups[0]->sender(1, kChannel).route};
  const Receiver from = groups[1]->receiver(0, kChannel);
  uint64_t posted = 0;
  for (const Deadline deaf = Deadline::after(std::chrono::milliseconds(200)); !deaf.passed();) {
    posted += posted < kSignals && ring.try_push(signal);
    sending.run_once();
  }
  for (const Deadline deadline = soon();
       !from.has_arrived(kSignals) && !sending.fault() && !deadline.passed();) {
    posted += posted < kSignals && ring.try_push(signal);
    sending.run_once();
    groups[1]->endpoint().pump().run_once();
  }
  EXPECT_TRUE(from.has_arrived(kSignals)) << groups[0]->fault().text();
  EXPECT_FALSE(from.has_arrived(kSignals + 1));
}

TEST_P(Conformance, AllPairsAndChannelsAtOnce) {
  constexpr int kRanks = 3;
  constexpr uint64_t kMessages = 100, kWords = 256;
  EndpointSpec spec;
  spec.channels = {{.name = "a", .slot_bytes = kWords * 4},
                   {.name = "b", .priority = Priority::kBulk, .slots = 3, .slot_bytes = kWords * 4}};
  auto groups = make_groups(kRanks, spec);
  const auto tag = [](int from, int to, uint32_t channel, uint64_t message) {
    return ((message * kRanks + from) * kRanks + to) * 2 + channel;
  };
  run_ranks(groups, [&](Group& group, const WaitContext& context) -> Fault {
    const int me = group.rank();
    for (uint64_t message = 0; message < kMessages; ++message) {
      for (uint32_t channel = 0; channel < 2; ++channel) {
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == me) continue;
          const Sender to = group.sender(peer, channel);
          if (Fault fault = to.acquire(message, context)) return fault;
          fill(to.slot(message), tag(me, peer, channel, message), kWords);
          if (Fault fault = to.commit(message, 0, kWords * 4, context)) return fault;
        }
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == me) continue;
          const Receiver from = group.receiver(peer, channel);
          if (Fault fault = from.wait(message + 1, context)) return fault;
          EXPECT_TRUE(is_filled(from.slot(message), tag(peer, me, channel, message), kWords));
          if (Fault fault = from.release(context)) return fault;
        }
      }
    }
    return {};
  });
}

TEST_P(Conformance, MessagesOfAnyLengthKeepOrderAndLength) {
  constexpr uint64_t kCapacity = 1 << 20;
  EndpointSpec spec;
  spec.channels = {{.name = "steps", .slots = 4, .slot_bytes = message_slot_bytes(kCapacity)}};
  auto groups = make_groups(2, spec);
  const std::vector<uint64_t> lengths = {0, 1, 3, 4, 5, 63, 64, 65, 1000, kCapacity, 17, kCapacity - 1, 2};
  const auto letter = [](uint64_t length) { return static_cast<std::byte>(length % 251 + 1); };
  run_ranks(groups, [&](Group& group, const WaitContext& context) -> Fault {
    MessageSender out(group.sender(1 - group.rank(), kChannel));
    MessageReceiver in(group.receiver(1 - group.rank(), kChannel));
    for (const uint64_t length : lengths) {
      const std::vector<std::byte> message(length, letter(length));
      if (Fault fault = out.send(message, context)) return fault;
      std::span<const std::byte> got;
      if (Fault fault = in.receive(got, context)) return fault;
      EXPECT_EQ(std::vector<std::byte>(got.begin(), got.end()), message) << length;
      if (Fault fault = in.release(context)) return fault;
    }
    const std::vector<std::byte> too_long(out.capacity() + 1);
    EXPECT_EQ(out.send(too_long, context).kind, FaultKind::kBadRequest);
    return {};
  });
}

INSTANTIATE_TEST_SUITE_P(Dma, Conformance, ::testing::ValuesIn(all_backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ark::dma::test
