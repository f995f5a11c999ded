// A rank's end of all its channels: regions, counters, request queues, pump. Set-up is collective.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dma/channel.h"
#include "dma/pump.h"
#include "dma/transport.h"

namespace ark::dma {

struct RegionSpec {
  std::string name;         // equal on all ranks, in the same order; the index is the RegionId
  uint64_t bytes = 0;       // may differ between ranks
  void* adopted = nullptr;  // memory of another owner that outlives the endpoint; null: allocated here
};

// Where a rank's device has memory for the boxes of channels by_devices. They lie there, for pairs whose peers' memory
// is not addressable, if both ranks have such memory and the transport takes it; else in the host's.
struct DeviceBoxes {
  std::function<NamedMemory(const std::string& name, uint64_t bytes)> allocate;  // null: `why_not`
  std::function<bool()> settle;                                                  // as WireMap's
  std::string why_not = "not asked for";
};

struct EndpointSpec {
  std::vector<RegionSpec> regions;
  std::vector<ChannelSpec> channels;  // equal on all ranks; the index is the channel number
  DeviceBoxes device;
  bool force_posted = false;  // go through the pump even where peers' memory is addressable
  bool run_pump = true;       // false: the owner calls pump().run_once() itself
  uint64_t first_count = 0;   // start of all 64-bit counters; tests put it near 2^64
  PumpOptions pump;
};

class Endpoint {
 public:
  // Collective over `bootstrap`. If the ranks' specs differ, or memory of one cannot be had or reached, all
  // ranks throw Error(kUnavailable) that names the rank and the reason; kUnsupported for too large a group.
  // `abort` is raised by the pump when it gives up; it and `bootstrap` and `transport` outlive the endpoint.
  Endpoint(Bootstrap& bootstrap, Transport& transport, const EndpointSpec& spec, AbortFlag& abort,
           Deadline deadline);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const { return map_.rank; }
  int size() const { return static_cast<int>(map_.memory.size()); }

  // Handles to one channel, to and from `peer` (not the own rank). Valid as long as the endpoint.
  Sender sender(int peer, uint32_t channel) const;
  Receiver receiver(int peer, uint32_t channel) const;

  // Own memory of a region of the spec. Throws Error(kInternal) for other ids.
  Region region(RegionId id) const;

  // Why the boxes of channels by_devices with `peer` are in memory of the host; empty: they are in the devices'.
  // None where the peer's memory is addressable.
  std::optional<std::string> why_staged(int peer) const;

  // From now on they are in memory of the host. Both ends say so; handles that were made before are void.
  void stage(int peer, const std::string& why) { why_staged_[peer] = why; }

  // Whether the pump was asked for, on all ranks, though there may be nearer ways.
  bool is_posted_by_choice() const { return spec_.force_posted; }

  // Whether our pump alone raises the arrivals from `peer`.
  bool counts_arrivals(int peer) const { return wire_->counts_arrivals(peer); }

  Pump& pump() { return *pump_; }
  RequestQueues& queues() { return *queues_; }

 private:
  struct Layout;  // of the regions that the endpoint adds itself
  Layout layout() const;
  void allocate(Transport& transport);
  void place_on_device(Transport& transport);
  std::string describe(Transport& transport) const;
  std::vector<Memory> attach(Transport& transport, int peer, std::string_view description);
  void connect(Bootstrap& bootstrap, Transport& transport, Deadline deadline);
  RegionTable table(int rank) const;
  bool is_on_device(int peer, uint32_t channel) const;
  uint64_t device_start(uint32_t channel) const;
  Counter64* own_counters() const { return map_.counters[map_.rank]; }

  EndpointSpec spec_;
  WireMap map_;
  std::vector<std::vector<Region>> views_;  // of map_.memory, for the plain tables
  std::vector<std::string> why_none_;       // by rank: no boxes in memory of its device
  std::vector<std::string> why_staged_;     // by rank: not between the two, though both have such
  Memory queue_pages_;                      // pages of their own: a device may map them
  RequestQueues* queues_ = nullptr;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<Pump> pump_;
};

}  // namespace ark::dma
