// Transport verbs: what it takes from a peer at set-up, and, in a machine with RDMA devices and links that the
// environment tells of (tests/end_to_end/test_verbs.py), what it and verbs-ud promise beyond the conformance suite.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "dma/group.h"
#include "dma/transports.h"
#include "dma/verbs/hello.h"
#include "tests/dma/deadline.h"
#include "tests/dma/device_boxes.h"

namespace ark::dma {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Of rank 1 of two.
VerbsHello good_hello() {
  VerbsHello hello;
  hello.at.gid[15] = 1;
  hello.at.lid = 3;
  hello.at.mtu = 5;
  hello.depth = 64;
  hello.told_key = 7;
  hello.queues = {{17, 0xffffff}, {0xffffff, 0}, {}, {}};
  return hello;
}

std::string refusal(const std::string& bytes) {
  try {
    VerbsHello::read(bytes, 1, 2, 0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(VerbsHello, IsReadAsItWasWritten) {
  const VerbsHello hello = VerbsHello::read(good_hello().write(), 1, 2, 0);
  EXPECT_EQ(hello.write(), good_hello().write());
  EXPECT_EQ(hello.queues[1].number, 0xffffffu);
}

TEST(VerbsHello, WhatCannotBeIsRefusedByName) {
  const auto refused_with = [](auto change) {
    VerbsHello hello = good_hello();
    change(hello);
    return refusal(hello.write());
  };
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.at.mtu = 0; }), HasSubstr("rank 1: its hello"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.at.mtu = 6; }), HasSubstr("MTU"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.depth = 0; }), HasSubstr("depth"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.depth = UINT32_MAX; }), HasSubstr("depth"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues[0].number = 0; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues[0].number = 1 << 24; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues[1].packet = 1 << 24; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues[2].number = 5; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues.pop_back(); }), HasSubstr("cut short"));
  EXPECT_THAT(refused_with([](VerbsHello& h) { h.queues.push_back({}); }), HasSubstr("too many"));
  const std::string whole = good_hello().write();
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(refusal(whole.substr(0, length)), "") << length;
  EXPECT_THAT(refusal(BlobWriter().text("short").take()), HasSubstr("GID"));
}

class Verbs : public ::testing::TestWithParam<const char*> {};

// rdma_rxe takes 8 MiB at once.
TEST_P(Verbs, ATransferLongerThanTheDevicesMessagesArrivesWhole) {
  if (const std::string why = Place::here().no_verbs; !why.empty()) GTEST_SKIP() << why;
  constexpr uint64_t kBytes = (17 << 20) + 4;
  EndpointSpec spec;
  spec.regions = {{"from", kBytes}, {"to", kBytes}};
  spec.channels = {{.name = "data"}};
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), transport_named(GetParam()).make(0, 2));
  std::byte *from = groups[0]->region(0).base, *to = groups[1]->region(1).base;
  for (uint64_t i = 0; i < kBytes; i += 4096)
    from[i] = from[std::min(i + 4095, kBytes - 1)] = std::byte(i / 4096 + 1);
  ASSERT_FALSE(groups[0]->sender(1, 0).put(0, 0, 1, 0, kBytes, {}));
  ASSERT_FALSE(groups[1]->receiver(0, 0).wait(1, {&groups[0]->abort(), soon(), {}}));
  EXPECT_EQ(std::memcmp(from, to, kBytes), 0);
}

// Also for transfers that it was too late for; devices give up in half a second to two.
TEST_P(Verbs, ARankThatLeavesInGoodOrderIsNoCut) {
  if (const std::string why = Place::here().no_verbs; !why.empty()) GTEST_SKIP() << why;
  EndpointSpec spec;
  spec.regions = {{"bytes", 1 << 16}};
  spec.channels = {{.name = "data"}};
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), transport_named(GetParam()).make(0, 2));
  const WaitContext context{nullptr, soon(), {}};
  const Sender to = groups[1]->sender(0, 0);
  ASSERT_FALSE(to.signal(context));
  ASSERT_FALSE(groups[0]->receiver(1, 0).wait(1, context));
  groups[0].reset();
  ASSERT_FALSE(to.put(0, 0, 0, 0, 1 << 16, context));
  ASSERT_FALSE(to.wait_completed(2, context));
  detail::blind_sleep(2'500'000'000);
  EXPECT_EQ(groups[1]->trouble(), "");
}

// By verbs, over devices that are files of memory. `settle` null: nothing is ever flushed.
std::vector<std::unique_ptr<Group>> groups_of_devices(std::vector<test::FakeDevice>& devices,
                                                      std::function<bool(int rank)> settle) {
  return make_local_groups(
      static_cast<int>(devices.size()),
      [&](int rank) {
        EndpointSpec spec;
        spec.channels = test::channels_of_devices();
        spec.device.allocate = [&device = devices[rank]](const std::string&, uint64_t bytes) {
          return device.allocate(bytes);
        };
        spec.device.settle = [settle, rank] { return settle(rank); };
        return spec;
      },
      soon(), transport_named("verbs").make(0, static_cast<int>(devices.size())));
}
void* preloaded(const char* function) {
  return dlsym(RTLD_DEFAULT, function);
}  // of tests/dma/fake/dmabuf.cc

// rdma_rxe is one.
TEST(VerbsMemory, ADeviceThatTakesNoDmaBufGetsMemoryOfTheHostAndIsNamed) {
  if (const std::string why = Place::here().no_verbs; !why.empty()) GTEST_SKIP() << why;
  if (preloaded("fake_dmabuf_flush")) GTEST_SKIP() << "dma-bufs are taken in its place";
  std::vector<test::FakeDevice> devices(2);
  int settled = 0;
  auto groups = groups_of_devices(devices, [&](int) { return ++settled; });
  EXPECT_THAT(groups[1]->endpoint().why_staged(0).value_or(""),
              ::testing::MatchesRegex("rank 1: rxe.* takes no dma-buf \\(inboxes of a device, .*"));
  EXPECT_EQ(devices[0].made, 1);
  EXPECT_EQ(devices[0].users.use_count(), 1);
  EXPECT_EQ(test::wrong_bytes(groups, 9), 0);
  EXPECT_EQ(settled, 0);
}

TEST(VerbsMemory, OfDevicesIsReadAndWrittenByTheNic) {
  if (const std::string why = Place::here().no_verbs; !why.empty()) GTEST_SKIP() << why;
  const auto flush = reinterpret_cast<void (*)()>(preloaded("fake_dmabuf_flush"));
  const auto count = reinterpret_cast<int (*)()>(preloaded("fake_dmabuf_count"));
  if (flush == nullptr) GTEST_SKIP() << "no device that takes dma-bufs";
  std::vector<test::FakeDevice> devices(3);
  std::atomic<int> settled{0};
  {
    auto groups = groups_of_devices(devices, [&](int) {
      flush();
      return ++settled != 0;
    });
    EXPECT_EQ(count(), 6);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(groups[rank]->endpoint().why_staged((rank + 1) % 3), "");
    EXPECT_EQ(test::wrong_bytes(groups, 40), 0);
    EXPECT_GT(settled, 0);
  }
  EXPECT_EQ(count(), 0);
  for (const test::FakeDevice& device : devices) EXPECT_EQ(device.users.use_count(), 1);
  // The test of the test: a raise before the flush would be seen.
  auto groups = groups_of_devices(devices, [&](int) { return true; });
  EXPECT_GT(test::wrong_bytes(groups, 2), 4096);
  groups.clear();
  // A driver that fails ends the group and tells nothing.
  groups = groups_of_devices(devices, [](int rank) { return rank != 1; });
  const WaitContext context{&groups[1]->abort(), soon(), {}};
  ASSERT_FALSE(groups[0]->sender(1, 1).commit(0, 0, 4096, context));
  EXPECT_EQ(groups[1]->receiver(0, 1).wait(1, context).kind, FaultKind::kAborted);
  EXPECT_FALSE(groups[1]->receiver(0, 1).has_arrived(1));
  EXPECT_THAT(groups[1]->fault().text(), HasSubstr("flush of what has come into memory of the device"));
}

// Pieces that a device has taken are out of the pump's hands. The link must be so slow that they are still there.
TEST_P(Verbs, DecodeOvertakesBulkThatTheDeviceHasTaken) {
  if (std::getenv("ARK_TEST_SLOW_LINK") == nullptr) GTEST_SKIP() << "no slow link";
  constexpr uint64_t kBulk = 2 << 20;
  EndpointSpec spec;
  spec.regions = {{"bulk", kBulk}};
  spec.channels = {{.name = "decode"}, {.name = "bulk", .priority = Priority::kBulk}};
  spec.run_pump = false;
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), transport_named(GetParam()).make(0, 2));
  const WaitContext context{nullptr, soon(), {}};
  Pump& pump = groups[0]->endpoint().pump();
  ASSERT_FALSE(groups[0]->sender(1, 1).put(0, 0, 0, 0, kBulk, context));
  for (uint64_t piece = 0; piece < kBulk / spec.pump.piece_bytes; ++piece) pump.run_once();
  ASSERT_FALSE(groups[0]->sender(1, 0).signal(context));
  const Receiver decode = groups[1]->receiver(0, 0), bulk = groups[1]->receiver(0, 1);
  bool was_first = false;
  while (!bulk.has_arrived(1) && !context.deadline.passed()) {
    pump.run_once();
    groups[1]->endpoint().pump().run_once();
    was_first |= decode.has_arrived(1) && !bulk.has_arrived(1);
  }
  EXPECT_TRUE(bulk.has_arrived(1) && was_first);
}

// One after the other, as the link stays cut.
TEST_P(Verbs, ACutLinkIsNamedByTheWireAndThenBySetUp) {
  const char* cut = std::getenv("ARK_TEST_CUT");
  if (cut == nullptr) GTEST_SKIP() << "no link to cut";
  const auto make = [] {
    EndpointSpec spec;
    spec.channels = {{.name = "data"}};
    return make_local_groups(
        2, [&](int) { return spec; }, soon(), transport_named(GetParam()).make(0, 2));
  };
  auto groups = make();
  const Sender to = groups[0]->sender(1, 0);
  WaitContext context{&groups[0]->abort(), soon(), {}};
  ASSERT_FALSE(to.signal(context));
  ASSERT_FALSE(groups[1]->receiver(0, 0).wait(1, context));
  ASSERT_EQ(std::system(cut), 0);
  context.deadline = Deadline::after(std::chrono::seconds(5));  // devices give up in half a second to two
  ASSERT_FALSE(to.signal(context));
  const Fault fault = groups[0]->receiver(1, 0).wait(1, context);
  EXPECT_EQ(fault.kind, FaultKind::kAborted) << fault.text();
  EXPECT_THAT(groups[0]->fault().text(),
              StartsWith(std::string("rank 0, peer 1: ") + (GetParam() == std::string("verbs")
                                                                ? "transport retry counter exceeded"
                                                                : "acknowledgement of a datagram")));
  groups.clear();
  try {
    make();
    FAIL() << "connected by a link that is cut";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot connect: "));
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("rank [01] at ::ffff:[0-9.]+ from rxe"));
  }
}

// Also where the switch loses what it carries: how long then is told by the wires' lines (debug), which count it.
TEST(Datagrams, AStreamBesideSmallMessagesGoesOn) {
  if (const std::string why = Place::here().no_verbs; !why.empty()) GTEST_SKIP() << why;
  constexpr uint64_t kBytes = 1 << 18, kPuts = 40, kSignals = 100;
  EndpointSpec spec;
  spec.regions = {{"bytes", kBytes}};
  spec.channels = {{.name = "decode"}, {.name = "bulk", .priority = Priority::kBulk}};
  set_log_level(LogLevel::kDebug);
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), transport_named("verbs-ud").make(0, 2));
  const WaitContext context{&groups[0]->abort(), soon(), {}};
  std::jthread stream([&, to = groups[0]->sender(1, 1)] {
    for (uint64_t put = 0; put < kPuts; ++put) EXPECT_FALSE(to.put(0, 0, 0, 0, kBytes, context));
  });
  for (uint64_t signal = 0; signal < kSignals; ++signal) {
    ASSERT_FALSE(groups[0]->sender(1, 0).signal(context));
    ASSERT_FALSE(groups[1]->receiver(0, 0).wait(signal + 1, context));
  }
  ASSERT_FALSE(groups[1]->receiver(0, 1).wait(kPuts, context));
  stream.join();
  groups.clear();
  set_log_level(LogLevel::kInfo);
}

INSTANTIATE_TEST_SUITE_P(Dma, Verbs, ::testing::Values("verbs", "verbs-ud"), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace ark::dma
