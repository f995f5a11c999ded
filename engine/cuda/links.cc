#include "engine/cuda/links.h"

#include <algorithm>

#include "base/error.h"

namespace ark::cuda {

HostLinks::~HostLinks() {
  for (const auto& [host, device] : mapped_) gpu_.unmap(host);
}

uint64_t HostLinks::mapped(std::byte* base, uint64_t bytes) {
  const auto found = mapped_.find(base);
  return found != mapped_.end() ? found->second : mapped_.emplace(base, gpu_.map(base, bytes)).first->second;
}

// As the device sees it; maps the region that holds it.
uint64_t HostLinks::address(const void* p, const dma::RegionTable& table) {
  const auto* at = static_cast<const std::byte*>(p);
  for (uint32_t i = 0; i < table.count; ++i) {
    const dma::Region& region = table.regions[i];
    if (region.base && at >= region.base && at < region.base + region.bytes)
      return mapped(region.base, region.bytes) + static_cast<uint64_t>(at - region.base);
  }
  throw Error(Code::kInternal, "an end of a channel that lies in no region");
}

void HostLinks::post_by(ChannelPlace& place, dma::RequestQueues& queues, dma::Priority priority,
                        uint64_t tickets) {
  const auto number = static_cast<std::size_t>(priority);
  std::vector<dma::RequestQueues*>& taken = taken_[number];
  if (std::find(taken.begin(), taken.end(), &queues) == taken.end()) {
    ARK_CHECK(queues.rings[number].close_to_host(),
              "the host has posted on a ring that the device is to fill");
    taken.push_back(&queues);
  }
  const uint64_t base = mapped(reinterpret_cast<std::byte*>(&queues), sizeof queues);
  place.link = LinkKind::kPosted;
  place.queue = base + number * sizeof(dma::Ring);
  place.first = tickets + number * kLineBytes;
}

// Tables hold a slot's size in 32 bits; requests address 16 GiB of a region.
void HostLinks::check_reach(const Channel& channel, const dma::Sender& sender) {
  dma::Request last;
  last.source_offset = sender.outbox_offset + sender.slots * sender.slot_bytes;
  last.target_offset = sender.inbox_offset + sender.slots * sender.slot_bytes;
  if (sender.slot_bytes <= UINT32_MAX && last.is_packable()) return;
  throw Error(Code::kUnsupported, "channel " + escaped(channel.name) + " has messages of " +
                                      std::to_string(channel.bytes) +
                                      " bytes, more than links through memory of the host carry; use "
                                      "--device cpu, or a smaller --max-num-batched-tokens");
}

std::vector<ChannelPlace> HostLinks::places(const Program& program, dma::Group& group, uint64_t tickets,
                                            const PeerLinks* peers) {
  std::vector<ChannelPlace> places;
  bool posts = false;
  for (std::size_t c = 0; c < program.channels.size(); ++c) {
    const Channel& channel = program.channels[c];
    if (peers && peers->reaches(channel.peer)) {
      places.push_back(peers->place(static_cast<int32_t>(c)));
      continue;
    }
    const uint32_t number = dma_channel_of(program, static_cast<int32_t>(c));
    const dma::Sender sender = group.sender(channel.peer, number);
    check_reach(channel, sender);
    ChannelPlace& place = places.emplace_back();
    place.slot_bytes = sender.slot_bytes;
    place.slot_count = sender.slots;
    place.first_count = place.first = sender.first_count;
    place.link = LinkKind::kMapped;
    const bool direct = sender.link == dma::Link::kDirect;
    if (channel.outgoing) {
      place.slots = sender.on_device ? reinterpret_cast<uint64_t>(sender.slot_base)
                                     : address(sender.slot_base, direct ? sender.there : sender.here);
      place.awaited = address(sender.credit, sender.here);
      if (direct) {
        place.raised = address(sender.arrived, sender.there);
      } else {
        place.head =
            dma::Request{.route = sender.route, .source = sender.outbox, .target = sender.inbox}.head();
        place.source = sender.outbox_offset;
        place.target = sender.inbox_offset;
        post_by(place, *sender.queues, sender.priority, tickets);
      }
    } else {
      const dma::Receiver receiver = group.receiver(channel.peer, number);
      place.slots = receiver.on_device ? reinterpret_cast<uint64_t>(receiver.slot_base)
                                       : address(receiver.slot_base, sender.here);
      place.awaited = address(receiver.arrived, sender.here);
      if (direct) {
        place.raised = address(receiver.credit, sender.there);
      } else {
        place.head = dma::Request{.route = receiver.route}.head();
        post_by(place, *receiver.queues, receiver.priority, tickets);
      }
    }
    posts = posts || !direct;
  }
  if (posts) posting_.push_back(&group);
  return places;
}

}  // namespace ark::cuda
