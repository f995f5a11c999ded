// A rank's membership in its group: channels to all peers, and the news of a peer's death.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dma/endpoint.h"

namespace ark::dma {

class Group {
 public:
  // Collective. Throws Error as Endpoint.
  Group(std::unique_ptr<Bootstrap> bootstrap, std::unique_ptr<Transport> transport, const EndpointSpec& spec,
        Deadline deadline);
  // Leaves in good order, unless an exception is on its way or the abort word was raised before part(): then the others
  // are told that this rank has died, so that they do not wait for it.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return endpoint_->rank(); }
  int size() const { return endpoint_->size(); }
  Endpoint& endpoint() { return *endpoint_; }
  // For rounds of set-up that the owner adds: all ranks make the same calls, before they exchange anything.
  Bootstrap& bootstrap() { return *bootstrap_; }
  Sender sender(int peer, uint32_t channel) const { return endpoint_->sender(peer, channel); }
  Receiver receiver(int peer, uint32_t channel) const { return endpoint_->receiver(peer, channel); }
  Region region(RegionId id) const { return endpoint_->region(id); }

  std::string_view transport() const { return transport_->name(); }
  std::string_view transport(int peer) const { return transport_->name_to(peer); }

  // Raised by a peer's death (AbortReason::kDeadRank and the rank) and by the pump (kFault); give it to every
  // wait. The engine may raise it too.
  AbortFlag& abort() { return abort_; }

  // The first rank known to be dead, or -1.
  int dead_rank() const;
  // One line that names the rank and says how it was noticed; empty while all live.
  std::string death() const;
  // Why waits end, in one line: that death, what the pump gave up at, or that somebody has raised the abort
  // word; empty while it is not raised. Any thread.
  std::string trouble() const;
  // As Bootstrap's. Any thread.
  std::string silence() const { return bootstrap_->silence(); }
  // Why the pump gave up, if it did.
  Fault fault() const { return endpoint_->pump().fault(); }

  // Nothing more is expected of this rank. What it has posted goes out; then what raises the abort word only ends its
  // own waits.
  void part();
  // Tells all others that `rank` (often this one) is to be taken for dead.
  void report_dead(int rank, const std::string& why) { bootstrap_->report_dead(rank, why); }

 private:
  void on_death(int rank, const std::string& why);

  const int exceptions_;  // in flight when this object was made
  bool has_parted_ = false;
  AbortFlag abort_;
  mutable std::mutex mutex_;  // guards the next two
  int dead_rank_ = -1;
  std::string death_;
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
};

// All ranks of a group in this process, for the caller to hand to their threads. Spec by rank; transports by
// rank, or `local` if empty.
std::vector<std::unique_ptr<Group>> make_local_groups(
    int size, const std::function<EndpointSpec(int rank)>& spec, Deadline deadline,
    std::vector<std::unique_ptr<Transport>> transports = {});

// This process's rank of a group of processes that have met, over the transport that `transport` names, else
// the first that can connect them (transports.h). Collective.
std::unique_ptr<Group> join_group(std::unique_ptr<Bootstrap> bootstrap, const std::string& transport,
                                  const EndpointSpec& spec, Deadline deadline);

}  // namespace ark::dma
