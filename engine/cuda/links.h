// Channels whose other end is not in this device's memory: their slots, counters and rings of requests lie in
// memory of the host that the ranks' groups own (dma/endpoint.h), mapped here for the device.
//
// Every word there has writers of one kind, so that nobody needs atomic operations over the bus:
// - inbox, and the counters of arrivals and credits: the peer, by its device's stores (direct) or its pump
//   (posted);
// - outbox, and slots of a ring of requests: this rank's device;
// - a ring's `consumed`, and `completed` counters: this rank's pump.
//
// Where a NIC reads and writes the device's own memory, slots lie there (engine/cuda/nic_boxes.h), all else as above.
//
// The device waits for counters by looking at them; it never wakes anybody, so that the host must not sleep on one.
#pragma once

#include <map>
#include <vector>

#include "dma/group.h"
#include "engine/cuda/gpu.h"
#include "engine/cuda/make_image.h"
#include "engine/cuda/peer_links.h"

namespace ark::cuda {

class HostLinks {
 public:
  // Inside Gate::Work, as all calls here. `gpu` outlives this; the groups end after it.
  explicit HostLinks(Gpu& gpu) : gpu_(gpu) {}
  ~HostLinks();  // unmaps; no loop may use the places any more
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  // Places of a program's channels, by channel, but those to ranks that `peers` reaches, which it has (null: it
  // reaches none); `tickets`: zeroed device memory, RingTickets
  // [dma::kPriorities] 64 bytes apart, for requests of posted links. From now on the device alone posts
  // requests of those priorities. Throws Error(kInternal) if somebody else has, Error(kUnsupported) that
  // names a channel whose messages are too large.
  std::vector<ChannelPlace> places(const Program& program, dma::Group& group, uint64_t tickets,
                                   const PeerLinks* peers = nullptr);
  // Groups with links that need their pump.
  const std::vector<dma::Group*>& posting() const { return posting_; }

  static constexpr uint64_t kTicketBytes = uint64_t{64} * dma::kPriorities;

 private:
  uint64_t address(const void* p, const dma::RegionTable& table);
  uint64_t mapped(std::byte* base, uint64_t bytes);
  static void check_reach(const Channel& channel, const dma::Sender& sender);
  void post_by(ChannelPlace& place, dma::RequestQueues& queues, dma::Priority priority, uint64_t tickets);

  Gpu& gpu_;
  std::map<std::byte*, uint64_t> mapped_;  // host memory -> as the device sees it
  std::vector<dma::RequestQueues*> taken_[dma::kPriorities];
  std::vector<dma::Group*> posting_;
};

}  // namespace ark::cuda
