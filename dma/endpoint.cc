#include "dma/endpoint.h"

#include <algorithm>

#include "base/error.h"
#include "dma/blob.h"

namespace ark::dma {
namespace {

constexpr uint64_t kMagic = 0x33302d616d642d6b;  // version of the description; changes with its layout
constexpr uint64_t kSlotAlignment = 64;
constexpr size_t kMostReason = 300;  // bytes of a reason that ranks tell each other

std::string name_of(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

// Behind the spec's regions: per channel the inboxes of all peers and the outboxes to all peers; all inboxes and all
// outboxes that lie in memory of the device; last, as wires know, the control region with all counters that peers
// raise, then the `completed` counters.
struct Endpoint::Layout {
  uint32_t first_box = 0;
  uint32_t channels = 0;
  uint32_t ranks = 0;

  RegionId inbox(uint32_t channel) const { return static_cast<RegionId>(first_box + channel * 2); }
  RegionId outbox(uint32_t channel) const { return static_cast<RegionId>(first_box + channel * 2 + 1); }
  RegionId device_inbox() const { return static_cast<RegionId>(first_box + channels * 2); }
  RegionId device_outbox() const { return static_cast<RegionId>(first_box + channels * 2 + 1); }
  RegionId control() const { return static_cast<RegionId>(first_box + channels * 2 + 2); }
  uint32_t regions() const { return first_box + channels * 2 + 3; }
  uint32_t routes() const { return ranks * channels * 2; }
  uint32_t counters() const { return routes() + ranks * channels; }
};

Endpoint::Layout Endpoint::layout() const {
  return {static_cast<uint32_t>(spec_.regions.size()), static_cast<uint32_t>(spec_.channels.size()),
          static_cast<uint32_t>(map_.memory.size())};
}

Endpoint::Endpoint(Bootstrap& bootstrap, Transport& transport, const EndpointSpec& spec, AbortFlag& abort,
                   Deadline deadline)
    : spec_(spec),
      queue_pages_(allocate_private(sizeof(RequestQueues), "request queues")),
      queues_(reinterpret_cast<RequestQueues*>(queue_pages_.region.base)) {
  why_none_.resize(static_cast<size_t>(bootstrap.size()));
  why_staged_.resize(why_none_.size());
  map_.rank = bootstrap.rank();
  map_.channels = static_cast<uint32_t>(spec_.channels.size());
  map_.memory.resize(bootstrap.size());
  map_.counters.resize(bootstrap.size());
  for (ChannelSpec& channel : spec_.channels) {
    ARK_CHECK(channel.slots > 0 && channel.slot_bytes < Request::kOffsetLimit,
              "channel without usable slots");
    channel.slot_bytes = (channel.slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }
  const Layout boxes = layout();
  if (boxes.routes() > Request::kRoutes || boxes.regions() > Request::kRegions) {
    throw Error(Code::kUnsupported,
                "a group of " + std::to_string(boxes.ranks) + " ranks with " +
                    std::to_string(boxes.channels) + " channels and " + std::to_string(spec_.regions.size()) +
                    " regions is too large: at most 1024 channels in all and 1024 regions");
  }
  connect(bootstrap, transport, deadline);
  wire_ = transport.open_wire(map_, bootstrap, deadline);

  Pump::Parts parts{map_.rank,   boxes.channels, {}, queues_, own_counters() + boxes.routes(),
                    wire_.get(), &abort};
  for (int rank = 0; rank < size(); ++rank) parts.regions.push_back(table(rank));
  pump_ = std::make_unique<Pump>(parts, spec_.pump);
  // Nobody sends before all can receive: also the wires are open now.
  bootstrap.barrier(deadline);
  if (spec_.run_pump && size() > 1) pump_->start();
}

Endpoint::~Endpoint() = default;

void Endpoint::allocate(Transport& transport) {
  const Layout boxes = layout();
  std::vector<Memory>& own = map_.memory[map_.rank];
  for (const RegionSpec& region : spec_.regions) {
    own.push_back(region.adopted != nullptr ? transport.adopt(region.name, region.adopted, region.bytes)
                                            : transport.allocate(region.name, region.bytes));
  }
  for (const ChannelSpec& channel : spec_.channels) {
    const uint64_t bytes = channel.slot_bytes * channel.slots * boxes.ranks;
    own.push_back(transport.allocate(channel.name + " inbox", bytes));
    own.push_back(transport.allocate(channel.name + " outbox", bytes));
  }
  place_on_device(transport);
  own.push_back(transport.allocate_counters(boxes.counters() * sizeof(Counter64)));
  auto* counters = reinterpret_cast<Counter64*>(own.back().region.base);
  map_.counters[map_.rank] = counters;
  // Relaxed: no peer has attached yet; the exchange of the descriptions orders this before its raises.
  for (uint32_t i = 0; i < boxes.counters(); ++i) {
    counters[i].value.store(spec_.first_count, std::memory_order_relaxed);
  }
}

// All or none; what the device, its driver, the transport or its device refuse costs the way, not the group.
void Endpoint::place_on_device(Transport& transport) {
  const uint64_t bytes = device_start(static_cast<uint32_t>(spec_.channels.size()));
  const auto adopted = [&](const std::string& name, bool for_peers) {
    NamedMemory named = spec_.device.allocate(name, bytes);
    named.for_peers = for_peers;
    Memory memory = transport.adopt_named(name, named);
    ARK_CHECK(memory.on_device && memory.region.bytes == bytes, "adopted memory of another kind or size");
    return memory;
  };
  Memory inbox, outbox;
  try {
    if (!spec_.device.allocate) throw Error(Code::kUnsupported, spec_.device.why_not);
    if (!transport.takes_named())
      throw Error(Code::kUnsupported,
                  "transport " + std::string(transport.name()) + " reaches no memory of devices");
    if (bytes == 0 || bytes >= Request::kOffsetLimit)
      throw Error(Code::kUnsupported, "boxes of " + std::to_string(bytes) +
                                          " bytes; transfers reach up to 16 GiB of a device's memory");
    Memory in = adopted("inboxes of a device", true);
    outbox = adopted("outboxes of a device", false);
    inbox = std::move(in);
  } catch (const Error& error) {
    why_none_[map_.rank] = escaped(error.what(), kMostReason);
  }
  map_.memory[map_.rank].push_back(std::move(inbox));
  map_.memory[map_.rank].push_back(std::move(outbox));
}

std::string Endpoint::describe(Transport& transport) const {
  BlobWriter blob;
  blob.number(kMagic).text(transport.name()).number(spec_.first_count);
  blob.number(static_cast<uint32_t>(spec_.channels.size()));
  for (const ChannelSpec& channel : spec_.channels) {
    blob.text(channel.name).number(static_cast<uint8_t>(channel.priority));
    blob.number(channel.slots).number(channel.slot_bytes);
  }
  blob.number(static_cast<uint32_t>(spec_.regions.size()));
  for (const RegionSpec& region : spec_.regions) blob.text(region.name);
  // Up to here equal on all ranks; from here on each rank's own.
  const std::vector<Memory>& own = map_.memory[map_.rank];
  for (size_t id = 0; id < own.size(); ++id) {
    // Nobody else has a use for the outboxes.
    const bool is_told = id == layout().device_inbox() ? own[id].on_device : id != layout().device_outbox();
    blob.number(is_told ? own[id].region.bytes : 0).text(is_told ? transport.describe(own[id]) : "");
  }
  return blob.text(why_none_[map_.rank]).take();
}

std::vector<Memory> Endpoint::attach(Transport& transport, int peer, std::string_view description) {
  const std::string who = name_of(peer);
  BlobReader blob(description, who + ": its description");
  const auto differ = [&](const std::string& what) -> void {
    throw Error(Code::kUsage, who + " differs from rank " + std::to_string(map_.rank) + " in " + what +
                                  "; start all ranks with the same model and options");
  };
  if (blob.number<uint64_t>() != kMagic) blob.malformed("has another version");
  if (blob.text() != transport.name()) differ("its transport");
  if (blob.number<uint64_t>() != spec_.first_count) differ("its first count");
  if (blob.number<uint32_t>() != spec_.channels.size()) differ("the number of channels");
  for (const ChannelSpec& channel : spec_.channels) {
    const std::string theirs(blob.text());
    if (theirs != channel.name) differ("channel " + channel.name + " (there " + theirs + ")");
    const bool same_priority = blob.number<uint8_t>() == static_cast<uint8_t>(channel.priority);
    const bool same_slots = blob.number<uint32_t>() == channel.slots;
    const bool same_bytes = blob.number<uint64_t>() == channel.slot_bytes;
    if (!same_priority || !same_slots || !same_bytes) differ("channel " + channel.name);
  }
  if (blob.number<uint32_t>() != spec_.regions.size()) differ("the number of regions");
  for (const RegionSpec& region : spec_.regions) {
    if (blob.text() != region.name) differ("region " + region.name);
  }
  const std::vector<Memory>& own = map_.memory[map_.rank];
  const Layout boxes = layout();
  const uint64_t on_device = device_start(boxes.channels);
  std::vector<Memory> attached;
  for (size_t id = 0; id < own.size(); ++id) {
    const auto bytes = blob.number<uint64_t>();
    const std::string_view text = blob.text();
    if (id == boxes.device_inbox() || id == boxes.device_outbox()) {
      if (bytes != 0 && (id == boxes.device_outbox() || bytes != on_device)) differ("the size of its boxes");
      const bool is_far = boxes.channels > 0 && attached[boxes.inbox(0)].region.base == nullptr;
      attached.push_back(bytes != 0 && is_far ? transport.attach(peer, text, bytes) : Memory{});
      if (bytes != 0 && is_far) attached.back().region.bytes = bytes;
      continue;
    }
    if (id >= spec_.regions.size() && bytes != own[id].region.bytes) differ("the size of its boxes");
    attached.push_back(transport.attach(peer, text, bytes));
    attached.back().region.bytes = bytes;
  }
  why_none_[peer] = escaped(blob.text(), kMostReason);
  blob.end();
  return attached;
}

void Endpoint::connect(Bootstrap& bootstrap, Transport& transport, Deadline deadline) {
  std::string description;
  bootstrap.together(deadline, [&] {
    allocate(transport);
    description = describe(transport);
  });
  const std::vector<std::string> descriptions = bootstrap.all_gather(description, deadline);
  bootstrap.together(deadline, [&] {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != map_.rank) map_.memory[peer] = attach(transport, peer, descriptions[peer]);
  });
  transport.connected();

  const RegionId inbox = layout().device_inbox();
  const bool is_used = std::any_of(map_.memory.begin(), map_.memory.end(), [&](const auto& memory) {
    return &memory != &map_.memory[map_.rank] && memory[inbox].region.bytes != 0;
  });
  if (!is_used) map_.memory[map_.rank][inbox] = map_.memory[map_.rank][layout().device_outbox()] = {};

  views_.resize(size());
  for (int rank = 0; rank < size(); ++rank) {
    for (const Memory& memory : map_.memory[rank]) views_[rank].push_back(memory.region);
    map_.counters[rank] = reinterpret_cast<Counter64*>(views_[rank][layout().control()].base);
  }
  map_.settle = spec_.device.settle;
  map_.on_device.resize(views_.size() * map_.channels);
  for (int peer = 0; peer < size(); ++peer) {
    for (uint32_t channel = 0; channel < map_.channels && peer != map_.rank; ++channel)
      map_.on_device[route_of(peer, map_.channels, channel, RouteEnd::kArrived) / 2] =
          is_on_device(peer, channel);
  }
}

// Bytes of boxes in memory of a device before the channel's, all inboxes or all outboxes.
uint64_t Endpoint::device_start(uint32_t channel) const {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < channel; ++c) {
    const ChannelSpec& spec = spec_.channels[c];
    if (spec.by_devices) bytes += spec.slot_bytes * spec.slots * map_.memory.size();
  }
  return bytes;
}

bool Endpoint::is_on_device(int peer, uint32_t channel) const {
  const RegionId inbox = layout().device_inbox();
  return spec_.channels[channel].by_devices && views_[rank()][inbox].bytes != 0 &&
         views_[peer][inbox].bytes != 0 && why_staged_[peer].empty();
}

std::optional<std::string> Endpoint::why_staged(int peer) const {
  ARK_CHECK(peer >= 0 && peer < size() && peer != rank(), "no rank " + std::to_string(peer));
  if (map_.channels == 0 || views_[peer][layout().inbox(0)].base != nullptr) return std::nullopt;
  for (const int end : {rank(), peer})
    if (!why_none_[end].empty()) return name_of(end) + ": " + why_none_[end];
  return why_staged_[peer];
}

RegionTable Endpoint::table(int rank) const {
  return {views_[rank].data(), static_cast<uint32_t>(views_[rank].size())};
}

Region Endpoint::region(RegionId id) const {
  ARK_CHECK(id < spec_.regions.size(), "no region " + std::to_string(id));
  return views_[map_.rank][id];
}

Sender Endpoint::sender(int peer, uint32_t channel) const {
  ARK_CHECK(peer >= 0 && peer < size() && peer != rank() && channel < spec_.channels.size(),
            "no channel " + std::to_string(channel) + " to rank " + std::to_string(peer));
  const Layout boxes = layout();
  const ChannelSpec& spec = spec_.channels[channel];
  Sender sender;
  sender.link = views_[peer][boxes.inbox(channel)].base != nullptr && !spec_.force_posted ? Link::kDirect
                                                                                          : Link::kPosted;
  sender.priority = spec.priority;
  sender.route = static_cast<RouteId>(route_of(peer, boxes.channels, channel, RouteEnd::kArrived));
  sender.rank = rank();
  sender.peer = peer;
  sender.slots = spec.slots;
  sender.slot_bytes = spec.slot_bytes;
  sender.first_count = spec_.first_count;
  sender.inbox = boxes.inbox(channel);
  sender.outbox = boxes.outbox(channel);
  sender.inbox_offset = static_cast<uint64_t>(rank()) * spec.slots * spec.slot_bytes;
  sender.outbox_offset = static_cast<uint64_t>(peer) * spec.slots * spec.slot_bytes;
  sender.on_device = is_on_device(peer, channel);
  if (sender.on_device) {
    sender.inbox = boxes.device_inbox();
    sender.outbox = boxes.device_outbox();
    sender.inbox_offset += device_start(channel);
    sender.outbox_offset += device_start(channel);
  }
  sender.here = table(rank());
  sender.there = table(peer);
  sender.credit = own_counters() + route_of(peer, boxes.channels, channel, RouteEnd::kCredit);
  sender.completed = own_counters() + boxes.routes() + sender.route / 2;
  sender.queues = queues_;
  if (sender.link == Link::kDirect) {
    sender.slot_base = sender.there.regions[sender.inbox].base + sender.inbox_offset;
    sender.arrived = map_.counters[peer] + route_of(rank(), boxes.channels, channel, RouteEnd::kArrived);
  } else {
    sender.slot_base = sender.here.regions[sender.outbox].base + sender.outbox_offset;
  }
  return sender;
}

Receiver Endpoint::receiver(int peer, uint32_t channel) const {
  const Sender back = sender(peer, channel);  // our own end of the other direction: same peer, same layout
  const Layout boxes = layout();
  Receiver receiver;
  receiver.link = back.link;
  receiver.priority = back.priority;
  receiver.route = static_cast<RouteId>(route_of(peer, boxes.channels, channel, RouteEnd::kCredit));
  receiver.rank = rank();
  receiver.peer = peer;
  receiver.slots = back.slots;
  receiver.slot_bytes = back.slot_bytes;
  receiver.first_count = spec_.first_count;
  receiver.on_device = back.on_device;
  receiver.slot_base = views_[rank()][back.inbox].base + back.outbox_offset;
  receiver.arrived = own_counters() + route_of(peer, boxes.channels, channel, RouteEnd::kArrived);
  if (receiver.link == Link::kDirect) {
    receiver.credit = map_.counters[peer] + route_of(rank(), boxes.channels, channel, RouteEnd::kCredit);
  }
  receiver.queues = queues_;
  return receiver;
}

}  // namespace ark::dma
