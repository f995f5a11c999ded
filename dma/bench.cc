#include "dma/bench.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "dma/group.h"
#include "dma/transports.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;
using Groups = std::vector<std::unique_ptr<Group>>;

constexpr RegionId kSource = 0, kTarget = 1;
constexpr uint32_t kPingPong = 0, kFlood = 1;
constexpr int kBatch = 16;

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
  while (seconds.size() < 3 || Clock::now() - start < time) {
    const Clock::time_point before = Clock::now();
    turn();
    seconds.push_back(seconds_since(before));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// There and back, the same bytes both ways.
double latency_us(Groups& groups, uint64_t bytes, const BenchOptions& options, const WaitContext& context) {
  const Echo echo(*groups[1], kPingPong, 1, bytes, context);
  const Sender to = groups[0]->sender(1, kPingPong);
  const Receiver from = groups[0]->receiver(1, kPingPong);
  uint64_t sent = 0;
  const std::vector<double> rounds = repeat(options.time_per_row, [&] {
    for (int i = 0; i < kBatch; ++i) {
      require(to.put(kSource, 0, kTarget, 0, bytes, context));
      require(from.wait(++sent, context));
    }
  });
  return rounds[rounds.size() / 2] / kBatch / 2 * 1e6;
}

// A batch of puts in flight, then one empty answer.
double gigabytes_per_second(Groups& groups, uint64_t bytes, const BenchOptions& options,
                            const WaitContext& context) {
  const Echo echo(*groups[1], kFlood, kBatch, 0, context);
  const Sender to = groups[0]->sender(1, kFlood);
  const Receiver from = groups[0]->receiver(1, kFlood);
  uint64_t batches = 0;
  const std::vector<double> floods = repeat(options.time_per_row, [&] {
    for (int i = 0; i < kBatch; ++i) require(to.put(kSource, 0, kTarget, 0, bytes, context));
    require(from.wait(++batches, context));
  });
  return static_cast<double>(bytes) * kBatch / floods[floods.size() / 2] / 1e9;
}

}  // namespace

std::vector<BenchRow> run_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  for (const TransportKind& kind : transports()) {
    if (kind.is_mixed || !kind.works_here()) continue;
    for (const bool posted : {false, true}) {
      for (const uint64_t bytes : options.sizes) {
        EndpointSpec spec;
        spec.regions = {{"source", bytes}, {"target", bytes}};
        spec.channels = {{.name = "ping-pong"}, {.name = "flood"}};
        spec.force_posted = posted;
        spec.pump.spin = SpinPolicy::adapted(4);
        Groups groups = make_local_groups(
            2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), kind.make(0, 2));
        const Link link = groups[0]->sender(1, 0).link;
        if (!posted && link == Link::kPosted) break;  // there are no direct links: measured once
        // Written once: untouched pages would all be read from the one zero page.
        for (auto& group : groups) std::memset(group->region(kSource).base, 1, bytes);
        const WaitContext context{nullptr, Deadline::after(std::chrono::seconds(60)), SpinPolicy::adapted(2)};
        rows.push_back({std::string(kind.name), link == Link::kDirect ? "direct" : "posted", bytes,
                        latency_us(groups, bytes, options, context),
                        gigabytes_per_second(groups, bytes, options, context)});
      }
    }
  }
  return rows;
}

}  // namespace ark::dma
