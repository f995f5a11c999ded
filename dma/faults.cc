#include "dma/faults.h"

#include <algorithm>
#include <random>
#include <utility>

namespace ark::dma {
namespace {

class FaultyWire : public Wire {
 public:
  FaultyWire(std::unique_ptr<Wire> wire, const FaultPlan& plan)
      : wire_(std::move(wire)), plan_(plan), random_(plan.seed) {}

  bool is_ordered() const override { return false; }

  Submitted submit(const Transfer& transfer) override {
    if (taken_++ >= plan_.cut_after || chance(plan_.drop)) return Submitted::kInFlight;
    if (chance(plan_.refuse)) return Submitted::kLost;
    held_.push_back({transfer, polls_ + random_() % (plan_.delay_polls + 1)});
    return Submitted::kInFlight;
  }

  size_t poll(std::span<Completion> done) override {
    ++polls_;
    if (plan_.reorder) std::shuffle(held_.begin(), held_.end(), random_);
    size_t count = 0;
    for (size_t i = 0; i < held_.size() && count < done.size();) {
      const Submitted outcome =
          held_[i].due_poll > polls_ ? Submitted::kBusy : wire_->submit(held_[i].transfer);
      if (outcome == Submitted::kBusy) {
        ++i;
        continue;
      }
      if (outcome != Submitted::kInFlight) {
        done[count++] = {held_[i].transfer.id, outcome == Submitted::kLost};
      }
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return count + wire_->poll(done.subspan(count));
  }

  void cancel(uint64_t id) override {
    std::erase_if(held_, [id](const Held& held) { return held.transfer.id == id; });
    wire_->cancel(id);
  }

  bool counts_arrivals(int peer) const override { return wire_->counts_arrivals(peer); }
  int64_t idle_sleep_ns() const override { return wire_->idle_sleep_ns(); }
  bool is_drained() const override { return wire_->is_drained(); }
  Fault fault() const override { return wire_->fault(); }

 private:
  struct Held {
    Transfer transfer;
    uint64_t due_poll;
  };

  bool chance(double share) { return std::uniform_real_distribution<double>()(random_) < share; }

  const std::unique_ptr<Wire> wire_;
  const FaultPlan plan_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
  uint64_t taken_ = 0;
  uint64_t polls_ = 0;
};

class FaultyTransport : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> transport, const FaultPlan& plan)
      : transport_(std::move(transport)), plan_(plan), name_(std::string(transport_->name()) + "+faults") {}

  std::string_view name() const override { return name_; }
  Memory allocate(const std::string& name, uint64_t bytes) override {
    return transport_->allocate(name, bytes);
  }
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    return transport_->adopt(name, base, bytes);
  }
  Memory allocate_counters(uint64_t bytes) override { return transport_->allocate_counters(bytes); }
  std::string describe(const Memory& memory) override { return transport_->describe(memory); }
  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    return transport_->attach(peer, description, bytes);
  }
  void connected() override { transport_->connected(); }
  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    FaultPlan own = plan_;
    own.seed += static_cast<uint64_t>(map.rank);
    return std::make_unique<FaultyWire>(transport_->open_wire(map, bootstrap, deadline), own);
  }

 private:
  const std::unique_ptr<Transport> transport_;
  const FaultPlan plan_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Transport> with_faults(std::unique_ptr<Transport> transport, const FaultPlan& plan) {
  return std::make_unique<FaultyTransport>(std::move(transport), plan);
}

}  // namespace ark::dma
