// A NIC that reads and writes memory of devices, made of transport `socket`: it takes the memory by its descriptor, as
// verbs does a dma-buf, and what it has written there is not seen before it is flushed. Ranks of one process.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dma/arrivals.h"
#include "dma/endpoint.h"
#include "dma/transports.h"

namespace ark::dma::test {

// One rank's. The test sets what it does before the group is made, and reads the counts.
class FakeNic {
 public:
  // What it takes, and whether it works.
  bool takes = true;
  int refuses = 0;  // the n-th descriptor, from 1
  bool flushes = true, flush_fails = false;
  std::atomic<int> flushed{0}, registered{0}, adopted{0};

  struct Named {
    std::byte* device = nullptr;  // its address there
    Memory there, here;           // what the descriptor names; what lies with the NIC
    std::shared_ptr<void> owner;
    bool is_written = false;  // by the NIC
  };

  Memory adopt(const NamedMemory& memory) {
    if (++adopted == refuses) throw Error(Code::kUnsupported, "the NIC takes no dma-buf");
    auto* named = new Named;
    named->device = memory.region.base;
    named->owner = memory.owner;
    named->is_written = memory.for_peers;
    const std::shared_ptr<Named> owner(named, [this](Named* gone) {
      std::erase(all_, gone);
      --registered;
      delete gone;
    });
    named->there = map_shared(memory.file.number, memory.offset + memory.region.bytes, "named");
    named->there.region.base += memory.offset;
    named->here = allocate_private(memory.region.bytes, "with the NIC");
    ++registered;
    all_.push_back(named);
    return {memory.region, 0, owner, true};
  }
  // What was to be sent is fetched when it is.
  const std::byte* fetched(const std::byte* device, uint64_t bytes) {
    for (Named* named : all_) {
      const auto offset = static_cast<uint64_t>(device - named->device);
      if (!named->here.region.contains(offset, bytes)) continue;
      std::memcpy(named->here.region.base + offset, named->there.region.base + offset, bytes);
      return named->here.region.base + offset;
    }
    return nullptr;
  }
  std::byte* with_nic(const std::byte* device) const {
    for (const Named* named : all_)
      if (named->device == device) return named->here.region.base;
    return nullptr;
  }
  // Only what differs: others read there.
  bool flush() {
    ++flushed;
    if (flush_fails) return false;
    for (Named* named : all_) {
      if (!flushes || !named->is_written) continue;
      for (uint64_t at = 0; at < named->here.region.bytes; at += 8) {
        uint64_t* there = reinterpret_cast<uint64_t*>(named->there.region.base + at);
        const uint64_t word = *reinterpret_cast<const uint64_t*>(named->here.region.base + at);
        if (*there != word) std::atomic_ref(*there).store(word, std::memory_order_relaxed);
      }
    }
    return true;
  }

 private:
  std::vector<Named*> all_;
};

class FakeNicTransport final : public Transport {
 public:
  FakeNicTransport(std::unique_ptr<Transport> socket, FakeNic& nic) : socket_(std::move(socket)), nic_(nic) {}
  std::string_view name() const override { return socket_->name(); }
  Memory allocate(const std::string& name, uint64_t bytes) override { return socket_->allocate(name, bytes); }
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    return socket_->adopt(name, base, bytes);
  }
  bool takes_named() const override { return nic_.takes; }
  Memory adopt_named(const std::string&, const NamedMemory& memory) override { return nic_.adopt(memory); }
  std::string describe(const Memory& memory) override { return socket_->describe(memory); }
  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    return socket_->attach(peer, description, bytes);
  }
  void connected() override { socket_->connected(); }
  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    auto seen = std::make_unique<WireMap>(map);
    for (Memory& memory : seen->memory[map.rank])
      if (memory.on_device) memory.region.base = nic_.with_nic(memory.region.base);
    const size_t routes = map.memory.size() * map.channels * 2;
    auto counters = std::make_unique<std::vector<Counter64>>(routes);
    for (size_t route = 0; route < routes; ++route)
      (*counters)[route].value.store(map.counters[map.rank][route].load(), std::memory_order_relaxed);
    seen->counters[map.rank] = counters->data();
    auto wire = socket_->open_wire(*seen, bootstrap, deadline);
    return std::make_unique<NicWire>(map, std::move(seen), std::move(counters), std::move(wire), nic_);
  }

 private:
  // The socket's counters are the NIC's word to the host; from there on all is as with a real one.
  class NicWire final : public Wire {
   public:
    NicWire(const WireMap& map, std::unique_ptr<WireMap> seen,
            std::unique_ptr<std::vector<Counter64>> counters, std::unique_ptr<Wire> wire, FakeNic& nic)
        : map_(map),
          seen_(std::move(seen)),
          counters_(std::move(counters)),
          wire_(std::move(wire)),
          nic_(nic),
          arrivals_(map) {
      for (const Counter64& counter : *counters_) told_.push_back(counter.load());
    }
    bool is_ordered() const override { return true; }
    Submitted submit(const Transfer& transfer) override {
      Transfer sent = transfer;
      if (sent.bytes != 0 && map_.memory[map_.rank][sent.origin].on_device)
        sent.source = nic_.fetched(transfer.source, transfer.bytes);
      return wire_->submit(sent);
    }
    size_t poll(std::span<Completion> done) override {
      const size_t count = wire_->poll(done);
      arrivals_.looked();
      for (size_t route = 0; route < told_.size(); ++route) {
        const uint64_t now = (*counters_)[route].load(), by = now - told_[route];
        if (by == 0 || fault_) continue;
        told_[route] = now;
        if (!arrivals_.raise(static_cast<uint32_t>(route), by))
          fault_ = {FaultKind::kCut, {.what = "flush", .rank = map_.rank}};
      }
      return count;
    }
    void cancel(uint64_t id) override { wire_->cancel(id); }
    int64_t idle_sleep_ns() const override { return wire_->idle_sleep_ns(); }
    bool is_drained() const override { return wire_->is_drained(); }
    Fault fault() const override { return fault_ ? fault_ : wire_->fault(); }

   private:
    const WireMap& map_;
    const std::unique_ptr<WireMap> seen_;
    const std::unique_ptr<std::vector<Counter64>> counters_;
    const std::unique_ptr<Wire> wire_;
    FakeNic& nic_;
    Arrivals arrivals_;
    std::vector<uint64_t> told_;
    Fault fault_;
  };

  const std::unique_ptr<Transport> socket_;
  FakeNic& nic_;
};

}  // namespace ark::dma::test
