#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "base/error.h"
#include "dma/bench.h"
#include "dma/group.h"
#include "dma/transports.h"

namespace ark::dma {
namespace {

// A rank's part in sums that follow one another.
class Reducer {
 public:
  Reducer(Group& group, int ranks, uint64_t bytes, const WaitContext& context)
      : context_(context), own_(bytes / sizeof(float), 1), sum_(own_.size()) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == group.rank()) continue;
      to_.push_back(group.sender(peer, 0));
      from_.push_back(group.receiver(peer, 0));
    }
    before_ = static_cast<std::size_t>(group.rank());
  }
  Fault step() {
    const uint64_t bytes = own_.size() * sizeof(float);
    for (const Sender& to : to_) {
      if (Fault fault = to.acquire(step_, context_)) return fault;
      std::memcpy(to.slot(step_), own_.data(), bytes);
      if (Fault fault = to.commit(step_, 0, bytes, context_)) return fault;
    }
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    for (std::size_t i = 0; i <= from_.size(); ++i) {
      if (i == before_) add(own_.data());
      if (i == from_.size()) break;
      if (Fault fault = from_[i].wait(step_ + 1, context_)) return fault;
      add(reinterpret_cast<const float*>(from_[i].slot(step_)));
      if (Fault fault = from_[i].release(context_)) return fault;
    }
    ++step_;
    return {};
  }
  // Of the last step: as many as there are ranks, everywhere.
  bool is_sum() const {
    const auto ranks = static_cast<float>(to_.size() + 1);
    return std::ranges::all_of(sum_, [&](float v) { return v == ranks; });
  }

 private:
  void add(const float* part) {
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += part[i];
  }

  const WaitContext context_;
  std::vector<Sender> to_;
  std::vector<Receiver> from_;
  std::size_t before_ = 0;  // ranks before the own one
  std::vector<float> own_, sum_;
  uint64_t step_ = 0;
};

Percentiles measure_reduce(std::vector<std::unique_ptr<Group>>& groups, uint64_t bytes,
                           std::chrono::milliseconds time) {
  constexpr uint64_t kAtLeast = 8, kFirst = 3;  // steps; those that warm pages and threads
  const auto ranks = static_cast<int>(groups.size());
  std::atomic<uint64_t> last{std::numeric_limits<uint64_t>::max()};
  std::vector<Fault> faults(groups.size());
  std::vector<char> wrong(groups.size(), 0);
  std::vector<double> micros;
  const auto work = [&](std::size_t r) {
    const WaitContext context{nullptr, Deadline::after(std::chrono::seconds(60) + time),
                              SpinPolicy::adapted(ranks)};
    Reducer reducer(*groups[r], ranks, bytes, context);
    const int64_t begin = steady_ns();
    int64_t before = begin;
    // The first rank says which step is the last before it sends its part of that one: so all know by then.
    for (uint64_t step = 0; step <= last; ++step) {
      if (r == 0 && step >= kAtLeast && last > step &&
          before - begin > std::chrono::nanoseconds(time).count())
        last = step;
      if ((faults[r] = reducer.step())) return;
      const int64_t now = steady_ns();
      if (r == 0 && step >= kFirst) micros.push_back(static_cast<double>(now - before) / 1e3);
      before = now;
    }
    wrong[r] = !reducer.is_sum();
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t r = 1; r < groups.size(); ++r) others.emplace_back(work, r);
    work(0);
  }
  for (std::size_t r = 0; r < groups.size(); ++r) {
    if (faults[r]) throw Error(Code::kUnavailable, "ark-bench dma: " + faults[r].text());
    ARK_CHECK(!wrong[r], "a sum of all ranks is wrong");
  }
  return percentiles_of(std::move(micros));
}

}  // namespace

std::vector<ReduceRow> run_reduce_bench(const BenchOptions& options, const std::vector<int32_t>& ranks) {
  std::vector<ReduceRow> rows;
  for (const TransportKind* kind : measured_transports(options))
    for (const bool posted : {false, true})
      for (const int32_t n : ranks)
        for (const uint64_t bytes : options.sizes) {
          EndpointSpec spec;
          spec.channels = {{.name = "all-reduce", .slots = 2, .slot_bytes = bytes}};
          spec.force_posted = posted;
          auto groups = make_local_groups(
              n, [&](int) { return spec; }, Deadline::after(std::chrono::seconds(30)), kind->make(0, n));
          const Link link = groups[0]->sender(1, 0).link;
          if (!posted && link == Link::kPosted) break;  // there are no direct links: measured once
          rows.push_back({std::string(kind->name), link == Link::kDirect ? "direct" : "posted", n, bytes,
                          measure_reduce(groups, bytes, options.time_per_row)});
        }
  return rows;
}

}  // namespace ark::dma
