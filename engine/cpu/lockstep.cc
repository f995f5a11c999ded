// One thread drives all ranks, one phase instance at a time, round robin among those whose waits are over. It
// is the oracle of the loop; and where nobody can go on, it names the waits that are wrong.
#include <algorithm>

#include "base/error.h"
#include "engine/cpu/host_side.h"

namespace ark {
namespace {

class Lockstep final : public CpuExecutor {
 public:
  Timeline timeline() override {
    throw Error(Code::kUnsupported, "this executor records no timeline: it has no loop");
  }

 private:
  void on_prepared() override {
    for (const auto& rank : ranks_) {
      for (const Channel& channel : rank->program().channels) {
        ARK_CHECK(channel.link == Link::kDirect,
                  "lockstep has one thread and no pump: it needs direct links");
      }
    }
  }
  void on_post() override {}

  dma::Fault await_step(uint64_t n, std::chrono::microseconds) override {
    try {
      return run_step(n);
    } catch (const Error& error) {
      fail(error.what(), dma::AbortReason::kFault);
      throw;
    }
  }

  dma::Fault run_step(uint64_t n) {
    std::vector<std::size_t> next(ranks_.size(), 0);
    for (auto& rank : ranks_) rank->begin_step(n, rank->most_processors(n));
    active_ = ranks_[0]->most_processors(n);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        while (next[r] < ranks_[r]->schedule().size() &&
               ranks_[r]->is_ready(ranks_[r]->schedule()[next[r]])) {
          if (dma::Fault fault = run_instance(r, next[r])) return fault;
          ++next[r];
          moved = true;
        }
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (next[r] < ranks_[r]->schedule().size()) return stuck(r, next[r]);
      ranks_[r]->end_step(n);
    }
    return {};
  }

  dma::Fault run_instance(std::size_t r, std::size_t next) {
    Rank& rank = *ranks_[r];
    const Rank::Instance& instance = rank.schedule()[next];
    for (int32_t p = 0; p < active_; ++p) rank.run(instance, p);
    for (int32_t p = 0; p < active_; ++p) {
      if (dma::Fault fault = rank.finish(instance, p, step_context(r))) return fault;
    }
    return {};
  }

  // The fault of a wait that can never end: a deadline that has passed.
  dma::Fault stuck(std::size_t r, std::size_t next) {
    dma::WaitContext context = step_context(r);
    context.deadline = dma::Deadline::after(std::chrono::nanoseconds(0));
    context.spin = {0};
    dma::Fault fault = ranks_[r]->wait(ranks_[r]->schedule()[next], 0, false, context);
    fail(*ranks_[r], fault);
    return fault;
  }

  int32_t active_ = 0;  // processors of this step
};

}  // namespace

std::unique_ptr<HostExecutor> make_lockstep_executor() { return std::make_unique<Lockstep>(); }

}  // namespace ark
