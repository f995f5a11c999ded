// What transport `socket` takes from a peer, byte by byte: the other end of the connection is the test.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <vector>

#include "dma/pump.h"
#include "dma/socket/wire.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

constexpr uint32_t kChannels = 2;
constexpr char kPayload[] = "abcd";
const std::byte* as_bytes(const char* text) { return reinterpret_cast<const std::byte*>(text); }

// Rank 0 of two ranks, with a region of 64 bytes and the counters behind it.
struct Connection {
  Connection() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    peer = Socket(pair[1]);
    map.channels = kChannels;
    map.memory.resize(2);
    for (const uint64_t bytes : {sizeof region, sizeof counters}) {
      auto* base = bytes == sizeof region ? region : reinterpret_cast<std::byte*>(counters);
      map.memory[0].push_back({{base, bytes}, 0, nullptr});
      map.memory[1].push_back({{nullptr, bytes}, 0, nullptr});
    }
    map.counters = {counters, nullptr};
    std::vector<Socket> sockets(2);
    sockets[1] = Socket(pair[0]);
    wire = make_socket_wire(map, std::move(sockets));
  }

  // Of rank 1, into bytes 8 to 12, with one arrival on channel 0.
  static WireFrame good() {
    WireFrame frame;
    frame.kind = WireFrame::kTransfer;
    frame.target_offset = 8;
    frame.bytes = 4;
    frame.counter = route_of(1, kChannels, 0, RouteEnd::kArrived);
    frame.raise_by = 1;
    frame.seal(as_bytes(kPayload));
    return frame;
  }
  void send(const void* bytes, size_t size) {
    ASSERT_EQ(::send(peer.descriptor(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  void send(const WireFrame& frame) { send(&frame, sizeof frame); }
  // What the wire says in the end, polled as a pump does.
  Fault fault_within(std::chrono::milliseconds time) {
    for (const Deadline deadline = Deadline::after(time); !deadline.passed(); detail::blind_sleep(100'000)) {
      wire->poll({});
      if (const Fault fault = wire->fault()) return fault;
    }
    return {};
  }

  std::byte region[64] = {};
  Counter64 counters[8];
  WireMap map;
  Socket peer;
  std::unique_ptr<Wire> wire;
};

TEST(SocketWire, AFrameInAnyPiecesTakesEffectOnceItIsWhole) {
  Connection c;
  const WireFrame frame = Connection::good();
  std::vector<std::byte> bytes(sizeof frame + 4);
  std::memcpy(bytes.data(), &frame, sizeof frame);
  std::memcpy(bytes.data() + sizeof frame, kPayload, 4);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(c.counters[frame.counter].load(), 0u) << i;
    c.send(&bytes[i], 1);
    c.wire->poll({});
  }
  EXPECT_EQ(c.counters[frame.counter].load(), 1u);
  EXPECT_EQ(std::memcmp(c.region + 8, "abcd", 4), 0);
  EXPECT_FALSE(c.wire->fault());
}

TEST(SocketWire, AFrameThatAsksForMoreThanAPeerMayIsAFault) {
  const auto refused = [&](auto change) {
    Connection one;
    WireFrame frame = Connection::good();
    change(frame);
    frame.head_sum = frame.sum_of_head();
    one.send(frame);
    const Fault fault = one.fault_within(std::chrono::seconds(20));
    EXPECT_EQ(fault.at.peer, 1);
    for (const std::byte byte : one.region) EXPECT_EQ(byte, std::byte{0});
    for (const Counter64& counter : one.counters) EXPECT_EQ(counter.load(), 0u);
    return fault.kind == FaultKind::kBadRequest;
  };
  EXPECT_TRUE(refused([](WireFrame& f) { f.bytes = 60; })) << "beyond the region";
  EXPECT_TRUE(refused([](WireFrame& f) { f.bytes = UINT32_MAX; }));
  EXPECT_TRUE(refused([](WireFrame& f) { f.target_offset = UINT64_MAX - 1; })) << "the sum overflows";
  EXPECT_TRUE(refused([](WireFrame& f) { f.target = 1; })) << "the counters";
  EXPECT_TRUE(refused([](WireFrame& f) { f.target = 2; })) << "no such region";
  EXPECT_TRUE(refused([](WireFrame& f) { f.counter = 0; })) << "another rank's";
  EXPECT_TRUE(refused([](WireFrame& f) { f.counter = 8; })) << "beyond the routes";
  EXPECT_TRUE(refused([](WireFrame& f) { f.kind = 0; }));
  EXPECT_TRUE(refused([](WireFrame& f) { f.kind = 3; }));
}

TEST(SocketWire, NoChangedBitTakesEffect) {
  const WireFrame frame = Connection::good();
  std::vector<std::byte> bytes(sizeof frame + 4);
  std::memcpy(bytes.data(), &frame, sizeof frame);
  std::memcpy(bytes.data() + sizeof frame, kPayload, 4);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Connection c;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    c.send(bytes.data(), bytes.size());
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    const Fault fault = c.fault_within(std::chrono::seconds(20));
    EXPECT_EQ(fault.kind, FaultKind::kBadRequest) << bit;
    EXPECT_EQ(fault.at.peer, 1);
    EXPECT_NE(fault.text().find("damaged on its way"), std::string::npos) << fault.text();
    for (const Counter64& counter : c.counters) EXPECT_EQ(counter.load(), 0u) << bit;
  }
}

TEST(SocketWire, ACutConnectionNamesThePeer) {
  Connection c;
  const WireFrame frame = Connection::good();
  c.send(&frame, 10);
  c.peer = Socket();
  const Fault fault = c.fault_within(std::chrono::seconds(20));
  EXPECT_EQ(fault.kind, FaultKind::kCut);
  EXPECT_EQ(fault.text(), "rank 0, peer 1: bytes of a connection: the wire is cut (saw 10, needed 11)");
}

TEST(SocketWire, APeerThatLeavesInGoodOrderIsNoFault) {
  Connection c;
  WireFrame frame;
  frame.kind = WireFrame::kLeaving;
  frame.seal(nullptr);
  c.send(frame);
  c.peer = Socket();
  EXPECT_FALSE(c.fault_within(std::chrono::milliseconds(600)));
  Transfer transfer;
  transfer.peer = 1;
  EXPECT_EQ(c.wire->submit(transfer), Submitted::kDone) << "nobody is there to take it";
}

TEST(SocketWire, WhatAPeerDoesNotTakeWaitsUpToALimit) {
  Connection c;
  const std::vector<std::byte> piece(256 << 10, std::byte{7});
  Transfer transfer;
  transfer.peer = 1;
  transfer.source = piece.data();
  transfer.bytes = piece.size();
  int taken = 0;
  while (c.wire->submit(transfer) == Submitted::kDone) ASSERT_LT(++taken, 100) << "nothing limits it";
  EXPECT_GT(taken, 1);
  EXPECT_FALSE(c.wire->is_drained());
  // Every byte comes, in order, once the peer reads.
  size_t got = 0;
  std::vector<std::byte> bytes(1 << 20);
  const Deadline deadline = soon();
  while (got < static_cast<size_t>(taken) * (sizeof(WireFrame) + piece.size()) && !deadline.passed()) {
    c.wire->poll({});
    const ssize_t more = recv(c.peer.descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (more > 0) got += static_cast<size_t>(more);
  }
  EXPECT_EQ(got, static_cast<size_t>(taken) * (sizeof(WireFrame) + piece.size()));
  EXPECT_TRUE(c.wire->is_drained());
}

// What the kernel has of bulk, and what waits behind it, holds up no decode: neither in the wire nor in the pump. With
// one connection for both, the plain twin, decode waits.
TEST(SocketWire, DecodeOvertakesBulkThatAPeerDoesNotTake) {
  for (const bool is_apart : {true, false}) {
    static std::byte bulk[256 << 10] = {};
    Counter64 counters[kChannels * 2 * 2 + kChannels * 2];
    WireMap map;
    map.channels = kChannels;
    map.memory.resize(2);
    for (std::vector<Memory>& memory : map.memory) memory = {{{bulk, sizeof bulk}, 0, nullptr}};
    map.counters = {counters, nullptr};
    Socket peers[kPriorities];
    std::vector<Socket> own[kPriorities];
    for (int priority = 0; priority < 1 + is_apart; ++priority) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
      own[priority].resize(2);
      own[priority][1] = Socket(pair[0]);
      peers[priority] = Socket(pair[1]);
    }
    const auto wire = make_socket_wire(map, std::move(own[0]), std::move(own[1]));
    const Region regions[] = {{bulk, sizeof bulk}};
    const auto queues = std::make_unique<RequestQueues>();
    AbortFlag abort;
    Pump pump({0, kChannels, {{regions, 1}, {regions, 1}}, queues.get(), counters, wire.get(), &abort}, {});
    const auto route = static_cast<RouteId>(route_of(1, kChannels, 0, RouteEnd::kArrived));
    for (int i = 0; i < 16; ++i)
      ASSERT_TRUE(queues->ring(Priority::kBulk).try_push({route, 0, 0, 0, 0, sizeof bulk}));
    for (int turn = 0; turn < 64; ++turn) pump.run_once();
    EXPECT_FALSE(pump.is_idle()) << "4 MiB are more than wire and kernel take";
    ASSERT_TRUE(queues->ring(Priority::kDecode).try_push({static_cast<RouteId>(route + 2), 0, 0, 0, 0, 4}));
    for (int turn = 0; turn < 4; ++turn) pump.run_once();
    WireFrame first;
    ASSERT_EQ(recv(peers[0].descriptor(), &first, sizeof first, 0), static_cast<ssize_t>(sizeof first));
    EXPECT_EQ(first.bytes == 4, is_apart);
    for (Socket& peer : peers) peer = Socket();  // who leaves does not wait for it
  }
}

}  // namespace
}  // namespace ark::dma
