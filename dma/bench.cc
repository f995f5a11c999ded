#include "dma/bench.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <thread>

#include "base/error.h"
#include "dma/bootstrap/socket.h"
#include "dma/group.h"
#include "dma/message.h"
#include "dma/transports.h"
#include "dma/wake_count.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;
using Groups = std::vector<std::unique_ptr<Group>>;

constexpr RegionId kSource = 0, kTarget = 1;
constexpr uint32_t kPingPong = 0, kFlood = 1;
constexpr RegionId kStreamSource = 2, kStreamTarget = 3;
constexpr uint32_t kBulkStream = 1, kOneQueue = 2;
constexpr int kBatch = BenchRow::kBatch;
constexpr uint64_t kStreamDepth = 2;  // puts of a stream that are under way
constexpr int kTurns = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void require(const Fault& fault) {
  if (fault) throw Error(Code::kUnavailable, "ark-bench dma: " + fault.text());
}

// Rank 1 of a measurement: answers every `every` puts of the other with one of `bytes` bytes.
class Echo {
 public:
  Echo(Group& group, uint32_t channel, uint64_t every, uint64_t bytes, WaitContext context) {
    context.abort = &stop_;
    thread_ = std::jthread([=, to = group.sender(0, channel), from = group.receiver(0, channel)] {
      for (uint64_t turn = 1;; ++turn) {
        if (from.wait(turn * every, context) || to.put(kSource, 0, kTarget, 0, bytes, context)) return;
      }
    });
  }
  ~Echo() { stop_.raise(AbortReason::kShutdown); }

 private:
  AbortFlag stop_;
  std::jthread thread_;  // ends first
};

// Runs `turn` again and again for `time`; returns the seconds of each, sorted.
std::vector<double> repeat(std::chrono::milliseconds time, const std::function<void()>& turn) {
  turn();  // warms pages, queues and threads
  std::vector<double> seconds;
  const Clock::time_point start = Clock::now();
  for (Clock::time_point before = start; seconds.size() < 3 || before - start < time;) {
    turn();
    const Clock::time_point after = Clock::now();
    seconds.push_back(std::chrono::duration<double>(after - before).count());
    before = after;
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// `rounds`: seconds of round trips.
Percentiles latency_us(const std::vector<double>& rounds) { return percentiles_of(rounds, 1e6 / 2); }

// There and back, the same bytes both ways.
class PingPong {
 public:
  PingPong(Groups& groups, uint64_t bytes, const WaitContext& context)
      : echo_(*groups[1], kPingPong, 1, bytes, context),
        to_(groups[0]->sender(1, kPingPong)),
        from_(groups[0]->receiver(1, kPingPong)),
        bytes_(bytes),
        context_(context) {}
  // Seconds of each, sorted.
  std::vector<double> play(std::chrono::milliseconds time) {
    return repeat(time, [&] {
      require(to_.put(kSource, 0, kTarget, 0, bytes_, context_));
      require(from_.wait(++sent_, context_));
    });
  }

 private:
  const Echo echo_;
  const Sender to_;
  const Receiver from_;
  const uint64_t bytes_;
  const WaitContext context_;
  uint64_t sent_ = 0;
};

// A batch of puts in flight, then one empty answer.
double puts_per_second(Groups& groups, uint64_t bytes, const BenchOptions& options,
                       const WaitContext& context) {
  const Echo echo(*groups[1], kFlood, kBatch, 0, context);
  const Sender to = groups[0]->sender(1, kFlood);
  const Receiver from = groups[0]->receiver(1, kFlood);
  uint64_t batches = 0;
  const std::vector<double> floods = repeat(options.time_per_row, [&] {
    for (int i = 0; i < kBatch; ++i) require(to.put(kSource, 0, kTarget, 0, bytes, context));
    require(from.wait(++batches, context));
  });
  return kBatch / floods[floods.size() / 2];
}

// Puts of rank 0 to rank 1, one behind the other, until it is stopped.
class Stream {
 public:
  Stream(Groups& groups, uint32_t channel, const WaitContext& context)
      : to_(groups[0]->sender(1, channel)), at_(groups[1]->receiver(0, channel)), context_(context) {}
  // Meanwhile `body` runs. Returns when all has come.
  void beside(const std::function<void()>& body) {
    std::atomic<bool> stops{false};
    const Clock::time_point start = Clock::now();
    const uint64_t before = sent_;
    std::jthread thread([&] {
      while (!stops && !fault_) {
        fault_ = to_.put(kStreamSource, 0, kStreamTarget, 0, LoadRow::kBulkBytes, context_);
        if (!fault_ && ++sent_ >= kStreamDepth) fault_ = at_.wait(sent_ + 1 - kStreamDepth, context_);
      }
      if (!fault_) fault_ = at_.wait(sent_, context_);
    });
    body();
    stops = true;
    thread.join();
    require(fault_);
    seconds_ += seconds_since(start);
    bytes_ += static_cast<double>((sent_ - before) * LoadRow::kBulkBytes);
  }
  double gigabytes_per_second() const { return bytes_ / seconds_ / 1e9; }

 private:
  const Sender to_;
  const Receiver at_;
  const WaitContext context_;
  Fault fault_;
  uint64_t sent_ = 0;
  double seconds_ = 0, bytes_ = 0;
};

LoadRow measure_load(const TransportKind& kind, const BenchOptions& options) {
  EndpointSpec spec;
  spec.regions = {{"source", LoadRow::kBytes},
                  {"target", LoadRow::kBytes},
                  {"stream source", LoadRow::kBulkBytes},
                  {"stream target", LoadRow::kBulkBytes}};
  spec.channels = {
      {.name = "ping-pong"}, {.name = "bulk", .priority = Priority::kBulk}, {.name = "one queue"}};
  spec.force_posted = true;
  Groups groups = make_local_groups(
      2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), kind.make(0, 2));
  for (auto& group : groups) {
    std::memset(group->region(kSource).base, 1, LoadRow::kBytes);
    std::memset(group->region(kStreamSource).base, 1, LoadRow::kBulkBytes);
  }
  const WaitContext context{nullptr, Deadline::after(std::chrono::seconds(60) + 3 * options.time_per_row),
                            SpinPolicy::adapted(2)};
  PingPong ping_pong(groups, LoadRow::kBytes, context);
  Stream bulk(groups, kBulkStream, context), one_queue(groups, kOneQueue, context);
  std::vector<double> alone, beside, in_line;
  const auto play = [&](std::vector<double>& all) {
    const std::vector<double> rounds = ping_pong.play(options.time_per_row / kTurns);
    all.insert(all.end(), rounds.begin(), rounds.end());
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    play(alone);
    bulk.beside([&] { play(beside); });
    one_queue.beside([&] { play(in_line); });
  }
  for (std::vector<double>* all : {&alone, &beside, &in_line}) std::sort(all->begin(), all->end());
  return {std::string(kind.name), latency_us(alone),           latency_us(beside),
          latency_us(in_line),    bulk.gigabytes_per_second(), one_queue.gigabytes_per_second()};
}

// Sends until the time is over, the last message with another first byte; receives until then. Returns messages a
// second.
double message_rate(std::chrono::milliseconds time,
                    const std::function<void(std::span<const std::byte>)>& send,
                    const std::function<std::byte()>& receive) {
  uint64_t sent = 0;
  const Clock::time_point start = Clock::now();
  std::jthread receiver([&] {
    while (receive() == std::byte{0}) {
    }
  });
  for (std::byte message[MessageRow::kBytes] = {}; message[0] == std::byte{0};) {
    if (++sent % kBatch == 0 && Clock::now() - start > time) message[0] = std::byte{1};
    send(message);
  }
  receiver.join();
  return static_cast<double>(sent) / seconds_since(start);
}

MessageRow measure_messages(const TransportKind& kind, bool posted, const BenchOptions& options) {
  EndpointSpec spec;
  spec.channels = {{.name = "messages",
                    .slots = MessageRow::kSlots,
                    .slot_bytes = message_slot_bytes(MessageRow::kBytes)}};
  spec.force_posted = posted;
  Groups groups = make_local_groups(
      2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), kind.make(0, 2));
  const WaitContext context{nullptr, Deadline::after(std::chrono::seconds(60) + options.time_per_row),
                            SpinPolicy::adapted(2)};
  MessageSender to(groups[0]->sender(1, 0));
  MessageReceiver from(groups[1]->receiver(0, 0));
  const uint64_t before = wakes_so_far();
  const auto send = [&](std::span<const std::byte> message) { require(to.send(message, context)); };
  const double rate = message_rate(options.time_per_row, send, [&] {
    std::span<const std::byte> message;
    const Fault fault = from.receive(message, context);
    const std::byte first = fault ? std::byte{1} : message[0];
    return !fault && !from.release(context) ? first : std::byte{1};
  });
  const double messages = rate * std::chrono::duration<double>(options.time_per_row).count();
  return {std::string(kind.name), groups[0]->sender(1, 0).link == Link::kDirect ? "direct" : "posted", rate,
          static_cast<double>(wakes_so_far() - before) / messages};
}

MessageRow measure_socketpair(const BenchOptions& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(Code::kOs, std::string("socketpair: ") + std::strerror(errno));
  const Socket from(ends[0]), to(ends[1]);
  const double rate = message_rate(
      options.time_per_row,
      [&](std::span<const std::byte> message) { ::send(to.descriptor(), message.data(), message.size(), 0); },
      [&] {
        std::byte message[MessageRow::kBytes];
        return ::recv(from.descriptor(), message, sizeof message, 0) > 0 ? message[0] : std::byte{1};
      });
  return {"socketpair", "", rate, 1};
}

}  // namespace

Percentiles percentiles_of(std::vector<double> values, double scale) {
  std::sort(values.begin(), values.end());
  const auto at = [&](std::size_t percent) { return scale * values[(values.size() - 1) * percent / 100]; };
  return {at(50), at(99), at(10)};
}

std::vector<BenchRow> bench_link(const std::string& transport, bool posted, const BenchOptions& options) {
  const TransportKind& kind = transport_named(transport);
  std::vector<BenchRow> rows;
  for (const uint64_t bytes : options.sizes) {
    EndpointSpec spec;
    spec.regions = {{"source", bytes}, {"target", bytes}};
    spec.channels = {{.name = "ping-pong"}, {.name = "flood"}};
    spec.force_posted = posted;
    spec.pump.spin = SpinPolicy::adapted(options.busy_threads + 2);
    Groups groups = make_local_groups(
        2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), kind.make(0, 2));
    const Link link = groups[0]->sender(1, 0).link;
    if (!posted && link == Link::kPosted) break;
    // Written once: untouched pages would all be read from the one zero page.
    for (auto& group : groups) std::memset(group->region(kSource).base, 1, bytes);
    const WaitContext context{nullptr, Deadline::after(std::chrono::seconds(60)),
                              SpinPolicy::adapted(options.busy_threads)};
    const std::vector<double> rounds = PingPong(groups, bytes, context).play(options.time_per_row);
    const double puts = puts_per_second(groups, bytes, options, context);
    rows.push_back({std::string(kind.name), link == Link::kDirect ? "direct" : "posted", bytes,
                    latency_us(rounds), static_cast<double>(bytes) * puts / 1e9, puts});
  }
  return rows;
}

std::vector<const TransportKind*> measured_transports(const BenchOptions& options) {
  std::vector<const TransportKind*> kinds;
  for (const TransportKind& kind : transports())
    if (!kind.is_mixed && kind.works_here() && (options.transport.empty() || kind.name == options.transport))
      kinds.push_back(&kind);
  return kinds;
}

std::vector<BenchRow> run_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  for (const TransportKind* kind : measured_transports(options))
    for (const bool posted : {false, true})
      for (BenchRow& row : bench_link(std::string(kind->name), posted, options))
        rows.push_back(std::move(row));
  return rows;
}

std::vector<LoadRow> run_load_bench(const BenchOptions& options) {
  std::vector<LoadRow> rows;
  for (const TransportKind* kind : measured_transports(options)) rows.push_back(measure_load(*kind, options));
  return rows;
}

std::vector<MessageRow> run_message_bench(const BenchOptions& options) {
  std::vector<MessageRow> rows;
  for (const TransportKind* kind : measured_transports(options))
    for (const bool posted : {false, true})
      if (!posted || rows.back().link == "direct") rows.push_back(measure_messages(*kind, posted, options));
  rows.push_back(measure_socketpair(options));
  return rows;
}

}  // namespace ark::dma
