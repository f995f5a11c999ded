#include "dma/bench.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "base/error.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "dma/shm/setup.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;
using Groups = std::vector<std::unique_ptr<Group>>;

constexpr RegionId kSource = 0, kTarget = 1;
constexpr int kBatch = 16;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void require(const Fault& fault) {
  if (fault) throw Error(Code::kUnavailable, "ark-bench dma: " + fault.text());
}

// Rank 1 of a measurement: answers every put of the other with one signal. Ends by its abort word.
class Echo {
 public:
  Echo(Group& group, const WaitContext& context)
      : group_(group), thread_([&group, context] {
          const Sender to = group.sender(0, 0);
          const Receiver from = group.receiver(0, 0);
          for (uint64_t turn = 1;; ++turn) {
            if (from.wait(turn, context) || to.signal(context)) return;
          }
        }) {}

  ~Echo() { group_.abort().raise(AbortReason::kShutdown); }

 private:
  Group& group_;
  std::jthread thread_;
};

class Measurement {
 public:
  Measurement(Groups& groups, uint64_t bytes, const BenchOptions& options)
      : groups_(groups),
        bytes_(bytes),
        options_(options),
        to_(groups[0]->sender(1, 0)),
        from_(groups[0]->receiver(1, 0)) {
    context_.deadline = Deadline::after(std::chrono::seconds(30));
    context_.abort = &groups[0]->abort();
    context_.spin = SpinPolicy::adapted(2);
  }

  // Runs turns for the row's time; returns the seconds of each.
  std::vector<double> repeat(const std::function<void()>& turn) const {
    turn();  // warms pages, queues and threads
    std::vector<double> seconds;
    const Clock::time_point start = Clock::now();
    while (seconds.size() < 3 || Clock::now() - start < options_.time_per_row) {
      const Clock::time_point before = Clock::now();
      turn();
      seconds.push_back(seconds_since(before));
    }
    return seconds;
  }

  BenchRow run() {
    WaitContext theirs = context_;
    theirs.abort = &groups_[1]->abort();
    BenchRow row;
    row.bytes = bytes_;
    row.link = to_.link == Link::kDirect ? "direct" : "posted";
    const Echo echo(*groups_[1], theirs);
    std::vector<double> rounds = repeat([this] {
      for (int i = 0; i < kBatch; ++i) {
        put();
        require(from_.wait(sent_, context_));
      }
    });
    std::nth_element(rounds.begin(), rounds.begin() + rounds.size() / 2, rounds.end());
    row.latency_us = rounds[rounds.size() / 2] / kBatch / 2 * 1e6;
    const std::vector<double> floods = repeat([this] {
      for (int i = 0; i < kBatch; ++i) put();
      require(from_.wait(sent_, context_));
    });
    double total = 0;
    for (double one : floods) total += one;
    row.gigabytes_per_second =
        static_cast<double>(bytes_) * kBatch * static_cast<double>(floods.size()) / total / 1e9;
    return row;
  }

 private:
  void put() {
    require(to_.put(kSource, 0, kTarget, 0, bytes_, context_));
    ++sent_;
  }

  Groups& groups_;
  const uint64_t bytes_;
  const BenchOptions& options_;
  const Sender to_;
  const Receiver from_;
  WaitContext context_;
  uint64_t sent_ = 0;
};

std::vector<std::unique_ptr<Transport>> transports(const std::string& name) {
  if (name == "local") return make_local_transports(2);
  std::vector<std::unique_ptr<Transport>> both;
  for (int rank = 0; rank < 2; ++rank) both.push_back(make_shm_transport());
  return both;
}

}  // namespace

std::vector<BenchRow> run_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  for (const std::string name : {"local", "shm"}) {
    for (const bool posted : {false, true}) {
      for (const uint64_t bytes : options.sizes) {
        EndpointSpec spec;
        spec.regions = {{"source", bytes}, {"target", bytes}};
        spec.channels = {{.name = "bench"}};
        spec.force_posted = posted;
        spec.pump.spin = SpinPolicy::adapted(4);
        Groups groups = make_local_groups(
            2, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), transports(name));
        rows.push_back(Measurement(groups, bytes, options).run());
        rows.back().transport = name;
      }
    }
  }
  return rows;
}

}  // namespace ark::dma
