// Transport verbs-ud without RDMA: what it takes from a peer, and its sessions over a made-up network that loses,
// doubles, delays and reorders, in virtual time. ARK_FULL=1: ten thousand programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "dma/verbs/hello.h"
#include "dma/verbs/session.h"
#include "tests/dma/deadline.h"
#include "tests/fixtures.h"

namespace ark::dma {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

// Of rank 1 of two.
DatagramHello good_datagram_hello() {
  DatagramHello hello;
  hello.at.gid[15] = 1;
  hello.at.mtu = 5;
  hello.window = 64;
  hello.key = 77;
  hello.queues = {17, 0xffffff};
  hello.secrets = {3, 4};
  return hello;
}

TEST(DatagramHello, IsReadAsItWasWrittenAndRefusedByName) {
  const std::string whole = good_datagram_hello().write();
  EXPECT_EQ(DatagramHello::read(whole, 1, 2).write(), whole);
  const auto refused = [](std::string_view bytes) {
    return error_of([&] { DatagramHello::read(bytes, 1, 2); });
  };
  const auto refused_with = [&](auto change) {
    DatagramHello hello = good_datagram_hello();
    change(hello);
    return refused(hello.write());
  };
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.at.mtu = 6; }), HasSubstr("rank 1: its hello"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.window = 1; }), HasSubstr("window"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.window = UINT32_MAX; }), HasSubstr("window"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.key = 1u << 31; }), HasSubstr("key"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.queues[0] = 0; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.queues[1] = 1 << 24; }), HasSubstr("queue pair"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.secrets.pop_back(); }), HasSubstr("cut short"));
  EXPECT_THAT(refused_with([](DatagramHello& h) { h.secrets.push_back(5); }), HasSubstr("too many"));
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(refused(whole.substr(0, length)), "") << length;
}

// One of two ranks, with one channel: a region, its counters, and a session with the other rank.
struct End {
  static constexpr uint64_t kRegion = 1 << 20;

  int rank;
  std::vector<std::byte> region = std::vector<std::byte>(kRegion);
  WireMap map;
  DatagramSession session;
  std::vector<uint64_t> ended;
  bool is_deaf = false;

  End(int of, DatagramSession made) : rank(of), session(std::move(made)) {
    map.rank = rank;
    map.channels = 1;
    map.memory.resize(2);
    map.memory[rank] = {{{region.data(), kRegion}, 0, nullptr}, {{nullptr, 64}, 0, nullptr}};
  }
  End(const End&) = delete;
};

TEST(Datagram, OneThatAsksForMoreThanIsItsSendersIsRefused) {
  const End end(0, DatagramSession(4, 100, 1e9));
  const auto allowed = [&](auto change, size_t bytes = 8) {
    Datagram head{.target_offset = End::kRegion - 8,
                  .raise_by = 1,
                  .bytes = 8,
                  .counter = 2,
                  .sender = 1,
                  .kind = Datagram::kTransfer};
    change(head);
    return allows(end.map, head, 1, Priority::kDecode, bytes);
  };
  EXPECT_TRUE(allowed([](Datagram&) {}));
  EXPECT_TRUE(allowed([](Datagram& d) { d.counter = 3; }));
  EXPECT_TRUE(allowed([](Datagram& d) { d.bytes = 0, d.target = 9; }, 0));
  EXPECT_FALSE(allowed([](Datagram&) {}, 7)) << "cut short";
  EXPECT_FALSE(allowed([](Datagram& d) { d.target_offset += 4; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.target_offset = UINT64_MAX; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.target = 1; })) << "the counters";
  EXPECT_FALSE(allowed([](Datagram& d) { d.target = 2; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.counter = 1; })) << "of rank 0 itself";
  EXPECT_FALSE(allowed([](Datagram& d) { d.counter = 4; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.sender = 0; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.priority = 1; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.kind = 0; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.kind = 6; }));
  EXPECT_FALSE(allowed([](Datagram& d) { d.kind = Datagram::kTaken; })) << "with a payload";
}

struct Packet {
  Datagram head;
  std::vector<std::byte> payload;
};

// What is between two ends.
struct Network {
  double loss = 0, doubled = 0, late = 0;
  int64_t delay = 5 * kMicrosecond, lateness = 0;
  double bandwidth = 0;            // bytes a second of each direction; 0: any
  int64_t most_queue = INT64_MAX;  // what would wait longer is dropped
  std::function<bool(int from, const Datagram&)> drops = [](int, const Datagram&) { return false; };
  std::mt19937 random{1};

  int64_t free_at[2] = {};                                    // by sender
  std::multimap<int64_t, std::pair<int, Packet>> on_the_way;  // by arrival; to whom

  bool chance(double share) { return std::uniform_real_distribution<double>()(random) < share; }
  int64_t queue(int from, int64_t now) const { return std::max<int64_t>(0, free_at[from] - now); }

  void send(int from, const Packet& packet, int64_t now) {
    if (drops(from, packet.head) || chance(loss) || queue(from, now) > most_queue) return;
    if (bandwidth != 0)
      free_at[from] = std::max(free_at[from], now) +
                      static_cast<int64_t>(
                          1e9 * static_cast<double>(packet.payload.size() + sizeof(Datagram)) / bandwidth);
    for (int copy = 0, copies = 1 + chance(doubled); copy < copies; ++copy)
      on_the_way.emplace(
          std::max(now, free_at[from]) + delay +
              (chance(late) ? static_cast<int64_t>(random() % static_cast<uint64_t>(lateness + 1)) : 0),
          std::pair(1 - from, packet));
  }
};

class World {
 public:
  using OnTaken = std::function<void(End&, const Datagram&)>;

  World(uint32_t window, uint32_t payload, uint32_t first, double rate = 1e9)
      : ends{End(0, DatagramSession(window, payload, rate, first)),
             End(1, DatagramSession(window, payload, rate, first))} {}

  // As the wire does: takes what has come, looks at the clock, sends, answers. Returns whether anything happened.
  bool poll(End& end) {
    if (end.is_deaf) return false;
    bool heard = false, sent = false;
    while (!network.on_the_way.empty() && network.on_the_way.begin()->first <= now) {
      const auto [to, packet] = std::move(network.on_the_way.begin()->second);
      network.on_the_way.erase(network.on_the_way.begin());
      if (ends[to].is_deaf) {
        unheard[to].push_back(packet);
        continue;
      }
      hear(ends[to], packet);
      heard = true;
    }
    for (const Packet& packet : std::exchange(unheard[end.rank], {})) hear(end, packet);
    end.session.look_at_clock(now);
    for (; end.session.may_send(now); sent = true) {
      Packet packet;
      uint64_t offset = 0;
      const Transfer& transfer = end.session.next(packet.head, offset, now);
      packet.payload.assign(transfer.source + offset, transfer.source + offset + packet.head.bytes);
      send(end, packet);
    }
    if (end.session.owes(now)) {
      Packet packet;
      end.session.acknowledge(packet.head, now);
      send(end, packet);
    }
    return heard || sent;
  }

  // Until `done`, or `limit` of time has passed.
  bool run(int64_t limit, const std::function<bool()>& done) {
    for (const int64_t end = now + limit; !done();) {
      if (now >= end) return false;
      const bool acted = poll(ends[0]) | poll(ends[1]);
      if (on_turn) on_turn();
      // Time in which nothing happens is skipped, in steps that time-outs do not notice.
      const int64_t arrival = network.on_the_way.empty() ? INT64_MAX : network.on_the_way.begin()->first;
      now += acted ? 2 * kMicrosecond : std::clamp<int64_t>(arrival - now, kMicrosecond, 50 * kMicrosecond);
    }
    return true;
  }
  bool is_drained() const { return ends[0].session.is_drained() && ends[1].session.is_drained(); }

  End ends[2];
  Network network;
  int64_t now = kSecond;
  std::vector<Packet> unheard[2];
  OnTaken on_taken = [](End&, const Datagram&) {};
  std::function<void()> on_turn;

 private:
  void send(End& end, Packet& packet) {
    packet.head.sender = static_cast<uint16_t>(end.rank);
    network.send(end.rank, packet, now);
  }

  void hear(End& end, const Packet& packet) {
    ASSERT_TRUE(allows(end.map, packet.head, 1 - end.rank, Priority::kDecode, packet.payload.size()));
    if (!end.session.take(packet.head, now, end.ended)) return;
    if (!packet.payload.empty())
      std::memcpy(end.region.data() + packet.head.target_offset, packet.payload.data(),
                  packet.payload.size());
    on_taken(end, packet.head);
  }
};

// A transfer and what it shall do, by its number among those of its sender.
struct Planned {
  std::vector<std::byte> source, bytes;
  Transfer transfer;
};

Planned plan_transfer(uint64_t id, int from, uint64_t bytes, uint64_t offset) {
  Planned planned;
  for (uint64_t i = 0; i < bytes; ++i)
    planned.bytes.push_back(std::byte(i * 7 + id * 31 + static_cast<uint64_t>(from) + (i >> 8)));
  planned.source = planned.bytes;
  planned.transfer = {.id = id,
                      .peer = 1 - from,
                      .target_offset = offset,
                      .bytes = bytes,
                      .counter = static_cast<uint32_t>(from) * 2,
                      .raise_by = id};
  return planned;
}

// Both ends send what is planned, and each source changes once its transfer has ended, as it may.
class Program {
 public:
  Program(World& world, std::vector<Planned> (&plans)[2]) : world_(world), plans_(plans) {
    world.on_taken = [this](End& end, const Datagram& head) {
      if (head.raise_by == 0) return;
      const int from = 1 - end.rank;
      ASSERT_EQ(head.raise_by, ++raised_[from]) << "each once, and in order";
      const Planned& planned = plans_[from][head.raise_by - 1];
      EXPECT_TRUE(
          std::equal(planned.bytes.begin(), planned.bytes.end(),
                     end.region.begin() + static_cast<std::ptrdiff_t>(planned.transfer.target_offset)))
          << "bytes of transfer " << head.raise_by;
    };
    world.on_turn = [this] { turn(); };
  }

  bool is_done() const {
    for (const int from : {0, 1})
      if (raised_[from] != plans_[from].size() || ended_[from] != plans_[from].size()) return false;
    return world_.is_drained();
  }
  double pushes = 0.3;  // how soon

 private:
  void turn() {
    for (const int from : {0, 1}) {
      End& end = world_.ends[from];
      for (const uint64_t id : std::exchange(end.ended, {})) {
        ASSERT_EQ(id, ++ended_[from]) << "each ends once, and in order";
        std::ranges::fill(plans_[from][id - 1].source, std::byte{0xff});
      }
      if (pushed_[from] == plans_[from].size() || !end.session.has_room() || !world_.network.chance(pushes))
        continue;
      Planned& next = plans_[from][pushed_[from]++];
      next.transfer.source = next.source.data();
      end.session.push(next.transfer);
    }
  }

  World& world_;
  std::vector<Planned> (&plans_)[2];
  size_t pushed_[2] = {};
  uint64_t raised_[2] = {}, ended_[2] = {};
};

TEST(DatagramSession, RandomProgramsArriveOnceAndInOrderOverAnyNetwork) {
  uint64_t again = 0, gaps = 0, time_outs = 0, turns = 0;
  for (int seed = 0, n = ark::test::rounds(400, 10'000); seed < n && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto below = [&](uint64_t limit) { return random() % limit; };
    const auto first = static_cast<uint32_t>(below(2) ? UINT32_MAX - below(60) : random());
    World world(2 + static_cast<uint32_t>(below(63)), 4 * (1 + static_cast<uint32_t>(below(500))), first);
    world.network.random.seed(static_cast<uint32_t>(seed));
    world.network.loss = static_cast<double>(below(4)) * 0.08;
    world.network.doubled = static_cast<double>(below(3)) * 0.1;
    world.network.late = static_cast<double>(below(3)) * 0.1;
    world.network.lateness = static_cast<int64_t>(below(8)) * kMillisecond;
    world.network.delay = static_cast<int64_t>(1 + below(200)) * kMicrosecond;
    std::vector<Planned> plans[2];
    for (const int from : {0, 1})
      for (uint64_t id = 1, count = below(20); id <= count; ++id) {
        const uint64_t bytes = below(4) == 0 ? 0 : below(below(2) ? 100 : 20'000);
        plans[from].push_back(plan_transfer(id, from, bytes, below(End::kRegion - bytes)));
      }
    Program program(world, plans);
    program.pushes = 1.0 / static_cast<double>(1 + below(20));
    EXPECT_TRUE(world.run(60 * kSecond, [&] { return program.is_done() || ::testing::Test::HasFailure(); }));
    for (const End& end : world.ends) {
      const DatagramSession::Counts& counts = end.session.counts();
      EXPECT_FALSE(end.session.is_cut(world.now));
      again += counts.again, gaps += counts.gaps, time_outs += counts.time_outs;
    }
    turns += first > UINT32_MAX - 61;
  }
  EXPECT_GT(std::min({again, gaps, time_outs, turns}), 0u);
}

// A stream of 100 datagrams one way, of which `lost` of the transmissions of `from` are lost.
DatagramSession::Counts stream_that_loses(int from, uint64_t lost, int64_t& took) {
  World world(16, 1000, UINT32_MAX - 50);
  std::vector<Planned> plans[2];
  for (uint64_t id = 1; id <= 10; ++id) plans[0].push_back(plan_transfer(id, 0, 10'000, id * 10'000));
  Program program(world, plans);
  program.pushes = 1;
  uint64_t sent = 0;
  world.network.drops = [&](int by, const Datagram&) { return by == from && sent++ == lost; };
  const int64_t start = world.now;
  EXPECT_TRUE(world.run(kSecond, [&] { return program.is_done(); }));
  took = world.now - start;
  return world.ends[0].session.counts();
}

TEST(DatagramSession, ALossStallsNoLongerThanTheTimeOut) {
  int64_t took = 0;
  const DatagramSession::Counts none = stream_that_loses(0, UINT64_MAX, took);
  EXPECT_EQ(none.again, 0u);
  for (const int from : {0, 1})
    for (uint64_t lost = 0; lost < 100; ++lost) {
      SCOPED_TRACE("loss " + std::to_string(lost) + " of what rank " + std::to_string(from) + " sends");
      const DatagramSession::Counts counts = stream_that_loses(from, lost, took);
      const bool is_last = from == 0 && lost == 99;
      // What follows tells of a loss at once; nothing follows the last.
      EXPECT_LE(counts.time_outs, from == 1 || is_last ? 1u : 0u);
      if (counts.time_outs == 0) {
        EXPECT_LT(counts.longest_stall, 100 * kMicrosecond);
      }
      EXPECT_LE(counts.longest_stall, counts.longest_time_out + 200 * kMicrosecond);
      EXPECT_LE(counts.longest_time_out, 20 * kMillisecond);
      EXPECT_EQ(counts.most_attempts, counts.time_outs);
      EXPECT_GE(counts.again, from == 0 ? 1u : 0u);
    }
}

// Of every twenty datagrams one, for ever: 5 %.
TEST(DatagramSession, ManyLossesStallNoLongerThanTimeOutsInARow) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    World world(64, 4000, DatagramSession::kFirst);
    world.network.random.seed(seed);
    world.network.loss = 0.05;
    std::vector<Planned> plans[2];
    for (const int from : {0, 1})
      for (uint64_t id = 1; id <= 40; ++id) plans[from].push_back(plan_transfer(id, from, 65'536, 0));
    Program program(world, plans);
    EXPECT_TRUE(world.run(5 * kSecond, [&] { return program.is_done(); }));
    for (const End& end : world.ends) {
      const DatagramSession::Counts& counts = end.session.counts();
      // One for each attempt; another that has not ended, as something else came first.
      EXPECT_LE(counts.longest_stall,
                (counts.most_attempts + 1) * std::max(counts.longest_time_out, end.session.time_out()));
      EXPECT_LE(counts.longest_time_out, 20 * kMillisecond);
      EXPECT_LT(counts.most_attempts, 5u);
    }
  }
}

TEST(DatagramSession, WhoDoesNotLookIsNotFloodedAndGoesOnWhereItWas) {
  World world(64, 1000, DatagramSession::kFirst);
  std::vector<Planned> plans[2];
  for (uint64_t id = 1; id <= 20; ++id) plans[0].push_back(plan_transfer(id, 0, 10'000, 0));
  Program program(world, plans);
  program.pushes = 1;
  world.ends[1].is_deaf = true;
  world.run(1'900 * kMillisecond, [] { return false; });
  const DatagramSession& session = world.ends[0].session;
  EXPECT_FALSE(session.is_cut(world.now));
  EXPECT_GE(session.counts().time_outs, DatagramSession::kLeastAttempts);
  // Within a window, what the other has posted receives for is twice that.
  EXPECT_LE(world.unheard[1].size(), 64u + 24u);
  world.ends[1].is_deaf = false;
  EXPECT_TRUE(world.run(100 * kMillisecond, [&] { return program.is_done(); }));
  EXPECT_LE(session.counts().again, session.counts().time_outs) << "what was only late was not lost";
}

TEST(DatagramSession, OneThatNeverAnswersIsCutAfterTwoSeconds) {
  World world(64, 1000, DatagramSession::kFirst);
  std::vector<Planned> plans[2] = {{}, {}};
  plans[0].push_back(plan_transfer(1, 0, 100'000, 0));
  Program program(world, plans);
  world.ends[1].is_deaf = true;
  const int64_t start = world.now;
  const DatagramSession& session = world.ends[0].session;
  ASSERT_TRUE(world.run(10 * kSecond, [&] { return session.is_cut(world.now); }));
  EXPECT_GE(world.now - start, 2 * kSecond);
  EXPECT_LE(world.now - start, 2'300 * kMillisecond);
  // One whose own machine has stood still has not asked often enough.
  World paused(64, 1000, DatagramSession::kFirst);
  Program again(paused, plans);
  paused.ends[1].is_deaf = true;
  paused.run(kMillisecond, [] { return false; });
  paused.now += 30 * kSecond;
  paused.run(kMillisecond, [] { return false; });
  EXPECT_FALSE(paused.ends[0].session.is_cut(paused.now));
}

TEST(DatagramSession, TheRateFallsToWhatTheWayCarriesAndRecovers) {
  World world(64, 4000, DatagramSession::kFirst, 1e9);
  std::vector<std::byte> source(1 << 17);
  uint64_t arrived = 0, id = 0;
  world.on_taken = [&](End&, const Datagram& head) { arrived += head.bytes; };
  world.on_turn = [&] {
    while (world.ends[0].session.has_room())
      world.ends[0].session.push({.id = ++id,
                                  .peer = 1,
                                  .source = source.data(),
                                  .bytes = source.size(),
                                  .counter = 0,
                                  .raise_by = 1});
    world.ends[0].ended.clear();
  };
  const auto megabytes_per_second = [&](int64_t time) {
    const uint64_t before = arrived;
    world.run(time, [] { return false; });
    return static_cast<double>(arrived - before) / static_cast<double>(time) * 1e3;
  };
  world.network.bandwidth = 1e9;
  EXPECT_GT(megabytes_per_second(50 * kMillisecond), 600);
  EXPECT_GT(world.ends[0].session.rate(), 0.9e9) << "nothing slows it down where nothing is in the way";
  world.network.bandwidth = 50e6;
  megabytes_per_second(200 * kMillisecond);
  int64_t longest = 0, sum = 0, turns = 0;
  const auto refill = std::exchange(world.on_turn, [] {});
  world.on_turn = [&] {
    refill();
    longest = std::max(longest, world.network.queue(0, world.now));
    sum += world.network.queue(0, world.now), ++turns;
  };
  const double narrow = megabytes_per_second(400 * kMillisecond);
  EXPECT_GT(narrow, 35) << "of 50";
  EXPECT_LT(world.ends[0].session.rate(), 0.2e9);
  // A window would wait 5 ms: 64 datagrams of 4,056 bytes at 50 MB/s.
  EXPECT_LT(sum / turns, 2 * kMillisecond);
  EXPECT_EQ(world.ends[0].session.counts().again, 0u);
  world.network.bandwidth = 1e9;
  megabytes_per_second(50 * kMillisecond);
  EXPECT_GT(megabytes_per_second(50 * kMillisecond), 600);
}

}  // namespace
}  // namespace ark::dma
