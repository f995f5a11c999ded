#include "dma/mixed/setup.h"

#include <utility>

#include "dma/blob.h"

namespace ark::dma {
namespace {

// A region as each of the two knows it; what `far` has registered goes before the memory does.
struct Halves {
  Memory near, far;
};

// Of memory that neither has, both are empty.
const Halves& halves_of(const Memory& memory) {
  static const Halves none;
  return memory.owner == nullptr ? none : *static_cast<const Halves*>(memory.owner.get());
}

Memory whole(Memory near, Memory far) {
  const Region region = near.region;
  return {region, 0, std::make_shared<Halves>(Halves{std::move(near), std::move(far)})};
}

// `map` as one of the two sees it.
std::unique_ptr<WireMap> half_of(const WireMap& map, Memory Halves::*half) {
  auto result = std::make_unique<WireMap>(map);
  for (std::vector<Memory>& memory : result->memory)
    for (Memory& region : memory) region = halves_of(region).*half;
  return result;
}

class MixedWire final : public Wire {
 public:
  MixedWire(std::unique_ptr<Wire> near, std::unique_ptr<Wire> far, std::vector<bool> is_near)
      : near_(std::move(near)), far_(std::move(far)), is_near_(std::move(is_near)) {}

  bool is_ordered() const override { return near_->is_ordered() && far_->is_ordered(); }
  Submitted submit(const Transfer& transfer) override {
    return (is_near_[transfer.peer] ? near_ : far_)->submit(transfer);
  }
  size_t poll(std::span<Completion> done) override {
    const size_t count = near_->poll(done);
    return count + far_->poll(done.subspan(count));
  }
  void cancel(uint64_t id) override {
    near_->cancel(id);
    far_->cancel(id);
  }
  bool counts_arrivals(int peer) const override {
    return (is_near_[peer] ? near_ : far_)->counts_arrivals(peer);
  }
  int64_t idle_sleep_ns() const override { return std::min(near_->idle_sleep_ns(), far_->idle_sleep_ns()); }
  bool is_drained() const override { return near_->is_drained() && far_->is_drained(); }
  Fault fault() const override {
    const Fault fault = near_->fault();
    return fault ? fault : far_->fault();
  }

 private:
  std::unique_ptr<Wire> near_, far_;
  std::vector<bool> is_near_;  // by rank
};

class MixedTransport final : public Transport {
 public:
  MixedTransport(std::string place, std::unique_ptr<Transport> near, std::unique_ptr<Transport> far)
      : place_(std::move(place)),
        near_(std::move(near)),
        far_(std::move(far)),
        name_(std::string(near_->name()) + "+" + std::string(far_->name())) {}

  std::string_view name() const override { return name_; }
  std::string_view name_to(int peer) const override { return (is_near_[peer] ? near_ : far_)->name(); }

  Memory allocate(const std::string& name, uint64_t bytes) override {
    Memory near = near_->allocate(name, bytes);
    Memory far = far_->adopt(name, near.region.base, bytes);
    return whole(std::move(near), std::move(far));
  }
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    Memory near = near_->adopt(name, base, bytes);
    return whole(std::move(near), far_->adopt(name, base, bytes));
  }
  // Of devices: `near` has no part in it.
  bool takes_named() const override { return far_->takes_named(); }
  Memory adopt_named(const std::string& name, const NamedMemory& memory) override {
    Memory far = far_->adopt_named(name, memory);
    const Region region = far.region;
    Memory named = whole({region, 0, nullptr}, std::move(far));
    named.on_device = true;
    return named;
  }
  Memory allocate_counters(uint64_t bytes) override {
    Memory near = near_->allocate_counters(bytes);
    const Region region = near.region;
    return whole(std::move(near), {region, 0, nullptr});
  }

  std::string describe(const Memory& memory) override {
    const Halves& halves = halves_of(memory);
    return BlobWriter()
        .text(place_)
        .text(memory.on_device ? std::string() : near_->describe(halves.near))
        .text(far_->describe(halves.far))
        .take();
  }

  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    BlobReader blob(description, "rank " + std::to_string(peer) + ": its memory");
    const bool is_near = blob.text() == place_;
    const std::string_view near = blob.text(), far = blob.text();
    blob.end();
    if (is_near_.size() <= static_cast<size_t>(peer)) is_near_.resize(static_cast<size_t>(peer) + 1);
    is_near_[peer] = is_near;
    if (is_near) return whole(near_->attach(peer, near, bytes), {});
    Memory there = far_->attach(peer, far, bytes);
    return whole({there.region, 0, nullptr}, there);
  }

  void connected() override {
    near_->connected();
    far_->connected();
  }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    is_near_.resize(map.memory.size());
    std::vector<bool> is_far(map.memory.size());
    for (size_t rank = 0; rank < is_far.size(); ++rank)
      is_far[rank] = !is_near_[rank] && rank != static_cast<size_t>(map.rank);
    near_map_ = half_of(map, &Halves::near);
    near_map_->carries = is_near_;
    far_map_ = half_of(map, &Halves::far);
    far_map_->carries = is_far;
    auto near = near_->open_wire(*near_map_, bootstrap, deadline);
    return std::make_unique<MixedWire>(std::move(near), far_->open_wire(*far_map_, bootstrap, deadline),
                                       is_near_);
  }

 private:
  const std::string place_;
  const std::unique_ptr<Transport> near_, far_;
  const std::string name_;
  std::vector<bool> is_near_;                    // by rank, once its memory is attached
  std::unique_ptr<WireMap> near_map_, far_map_;  // outlive the wires
};

}  // namespace

std::unique_ptr<Transport> make_mixed_transport(std::string place, std::unique_ptr<Transport> near,
                                                std::unique_ptr<Transport> far) {
  return std::make_unique<MixedTransport>(std::move(place), std::move(near), std::move(far));
}

}  // namespace ark::dma
