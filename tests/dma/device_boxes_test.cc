// Boxes of channels in memory of devices: what carries them, who must flush before whom, and what a refusal costs.
#include "tests/dma/device_boxes.h"

#include <gmock/gmock.h>

#include "dma/mixed/setup.h"
#include "dma/shm/setup.h"
#include "tests/dma/fake_nic.h"
#include "tests/open_files.h"

namespace ark::dma::test {
namespace {

using ::testing::HasSubstr;

// ---- Arrivals

TEST(Arrivals, SettleBeforeTheyAreTold) {
  std::vector<Counter64> counters(4);
  int settled = 0;
  bool works = true;
  WireMap map{.rank = 0, .channels = 2, .counters = {counters.data()}};
  map.on_device = {false, true};
  map.settle = [&] {
    EXPECT_EQ(counters[2].load(), static_cast<uint64_t>(settled)) << "told before it is settled";
    ++settled;
    return works;
  };
  Arrivals arrivals(map);
  const auto arrived = [](uint32_t channel) { return route_of(0, 2, channel, RouteEnd::kArrived); };
  arrivals.looked();
  EXPECT_TRUE(arrivals.raise(arrived(0), 1));  // of the host's memory
  EXPECT_TRUE(arrivals.raise(route_of(0, 2, 1, RouteEnd::kCredit), 1));
  EXPECT_EQ(settled, 0);
  EXPECT_TRUE(arrivals.raise(arrived(1), 1));
  EXPECT_EQ(settled, 1);
  EXPECT_TRUE(arrivals.raise(arrived(1), 0));  // of the same look
  EXPECT_EQ(settled, 1);
  arrivals.looked();
  EXPECT_TRUE(arrivals.raise(arrived(1), 1));
  EXPECT_EQ(settled, 2);
  arrivals.looked();
  works = false;
  EXPECT_FALSE(arrivals.raise(arrived(1), 1));
  EXPECT_EQ(counters[2].load(), 2u) << "told, though the device does not see it";
  map.settle = nullptr;
  EXPECT_TRUE(arrivals.raise(arrived(1), 1));
}

// ---- boxes

using ark::test::open_files;

struct BoxWorld {
  explicit BoxWorld(int size) : devices(static_cast<size_t>(size)), nics(static_cast<size_t>(size)) {
    for (auto& nic : nics) nic = std::make_unique<FakeNic>();
    spec.channels = channels_of_devices();
    spec.first_count = ~uint64_t{0} - 3;
  }
  std::vector<std::unique_ptr<Group>> join(bool two_machines = false) {
    const auto size = static_cast<int>(nics.size());
    std::vector<std::unique_ptr<Transport>> transports = transport_named("socket").make(0, size);
    for (int rank = 0; rank < size; ++rank) {
      transports[rank] = std::make_unique<FakeNicTransport>(std::move(transports[rank]), *nics[rank]);
      if (two_machines)
        transports[rank] =
            make_mixed_transport(std::to_string(rank / 2), make_shm_transport(), std::move(transports[rank]));
    }
    return make_local_groups(
        size,
        [&](int rank) {
          EndpointSpec own = spec;
          if (change) change(rank, own);
          if (!own.device.why_not.empty() && own.device.why_not != "not asked for") return own;
          own.device.allocate = [&device = devices[rank]](const std::string&, uint64_t bytes) {
            return device.allocate(bytes);
          };
          own.device.settle = [nic = nics[rank].get()] { return nic->flush(); };
          return own;
        },
        soon(), std::move(transports));
  }

  EndpointSpec spec;
  std::function<void(int rank, EndpointSpec&)> change;
  std::vector<FakeDevice> devices;
  std::vector<std::unique_ptr<FakeNic>> nics;
};

TEST(DeviceBoxes, AreReadAndWrittenThere) {
  const auto before = open_files();
  BoxWorld world(3);
  {
    auto groups = world.join();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(world.nics[rank]->registered, 2);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(groups[rank]->endpoint().why_staged(peer), "");
        EXPECT_FALSE(groups[rank]->sender(peer, 0).on_device);
        EXPECT_TRUE(groups[rank]->sender(peer, 1).on_device);
        EXPECT_TRUE(groups[rank]->receiver(peer, 2).on_device);
      }
    }
    EXPECT_EQ(wrong_bytes(groups, 9), 0);
    for (const auto& nic : world.nics) EXPECT_GT(nic->flushed, 0);
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world.nics[rank]->registered, 0);
    EXPECT_EQ(world.devices[rank].users.use_count(), 1) << "memory of a device is left";
  }
  EXPECT_EQ(open_files(), before);
}

// What shows that the test above would see a raise before the flush.
TEST(DeviceBoxes, WithoutTheFlushTheDeviceSeesOldBytes) {
  BoxWorld world(2);
  world.nics[1]->flushes = false;
  auto groups = world.join();
  EXPECT_GT(wrong_bytes(groups, 2), 4096);
}

TEST(DeviceBoxes, ChannelsOfTheHostAreNotFlushedFor) {
  BoxWorld world(2);
  auto groups = world.join();
  const WaitContext context{&groups[0]->abort(), soon(), {}};
  ASSERT_FALSE(groups[0]->sender(1, 0).commit(0, 0, 256, context));
  ASSERT_FALSE(groups[1]->receiver(0, 0).wait(1, context));
  EXPECT_EQ(world.nics[1]->flushed, 0);
}

TEST(DeviceBoxes, AFlushThatFailsIsAFaultAndTellsNothing) {
  BoxWorld world(2);
  world.nics[1]->flush_fails = true;
  auto groups = world.join();
  const WaitContext context{&groups[1]->abort(), soon(), {}};
  ASSERT_FALSE(groups[0]->sender(1, 1).commit(0, 0, 4096, context));
  const Receiver from = groups[1]->receiver(0, 1);
  EXPECT_EQ(from.wait(1, context).kind, FaultKind::kAborted);
  EXPECT_FALSE(from.has_arrived(1));
  EXPECT_THAT(groups[1]->fault().text(), HasSubstr("flush"));
}

TEST(DeviceBoxes, WhateverRefusesThemCostsTheWayAlone) {
  struct Case {
    std::function<void(BoxWorld&)> change;
    std::string why;
  };
  const Case cases[] = {
      {[](BoxWorld& w) { w.devices[1].refuses = 1; }, "rank 1: the device is full"},
      {[](BoxWorld& w) { w.devices[1].refuses = 2; }, "rank 1: the device is full"},
      {[](BoxWorld& w) { w.nics[1]->refuses = 1; }, "rank 1: the NIC takes no dma-buf"},
      {[](BoxWorld& w) { w.nics[1]->refuses = 2; }, "rank 1: the NIC takes no dma-buf"},
      {[](BoxWorld& w) { w.nics[1]->takes = false; },
       "rank 1: transport socket reaches no memory of devices"},
      {[](BoxWorld& w) {
         w.change = [](int rank, EndpointSpec& spec) {
           if (rank == 1) spec.device.why_not = "somebody asks for it";
         };
       },
       "rank 1: somebody asks for it"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.why);
    const auto before = open_files();
    BoxWorld world(2);
    c.change(world);
    {
      auto groups = world.join();
      for (int rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(groups[rank]->endpoint().why_staged(1 - rank), c.why);
        EXPECT_FALSE(groups[rank]->sender(1 - rank, 1).on_device);
      }
      for (int rank = 0; rank < 2; ++rank) {  // also of the one that was not refused: nobody uses it
        EXPECT_EQ(world.nics[rank]->registered, 0);
        EXPECT_EQ(world.devices[rank].users.use_count(), 1);
      }
      EXPECT_EQ(wrong_bytes(groups, 5), 0);
      for (const auto& nic : world.nics) EXPECT_EQ(nic->flushed, 0);
    }
    EXPECT_EQ(open_files(), before);
  }
}

TEST(DeviceBoxes, AreForPairsThatReachEachOtherByTheNicAlone) {
  BoxWorld world(4);
  auto groups = world.join(true);
  for (int rank = 0; rank < 4; ++rank) {
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == rank) continue;
      const bool is_near = peer / 2 == rank / 2;
      EXPECT_EQ(groups[rank]->endpoint().why_staged(peer),
                is_near ? std::nullopt : std::optional<std::string>(""));
      EXPECT_EQ(groups[rank]->sender(peer, 1).on_device, !is_near);
      EXPECT_EQ(groups[rank]->sender(peer, 1).link, is_near ? Link::kDirect : Link::kPosted);
    }
  }
  EXPECT_EQ(wrong_bytes(groups, 7), 0);
}

TEST(DeviceBoxes, RanksThatDifferInThemRefuseEachOther) {
  BoxWorld world(2);
  world.change = [](int rank, EndpointSpec& spec) { spec.channels[2].by_devices = rank == 0; };
  EXPECT_THAT(error_of([&] { world.join(); }), HasSubstr("the size of its boxes"));
}

TEST(DeviceBoxes, RequestsOutsideThemAreRefused) {
  BoxWorld world(2);
  auto groups = world.join();
  const Sender to = groups[0]->sender(1, 1);
  const uint64_t bytes = to.here.regions[to.outbox].bytes;
  EXPECT_EQ(to.there.regions[to.outbox].bytes, 0u) << "a peer's outboxes are nobody else's";
  ASSERT_FALSE(to.queues->post(to.priority, {to.route, to.outbox, to.inbox, bytes - 4, 0, 8}, {}, {}));
  const WaitContext context{&groups[0]->abort(), soon(), {}};
  EXPECT_EQ(to.wait_completed(1, context).kind, FaultKind::kAborted);
  EXPECT_EQ(groups[0]->fault().kind, FaultKind::kBadRequest);
}

}  // namespace
}  // namespace ark::dma::test
