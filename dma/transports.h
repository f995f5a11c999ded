// The transports that ark has, in the order in which a group tries them; group, bench and the conformance
// suite iterate the list. A new one: a folder of its own with an implementation of transport.h, one row in
// transports.cc, and its formats in docs/dma.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dma/plugin.h"
#include "dma/transport.h"

namespace ark::dma {

// What a rank says where nothing that it has keeps it from a transport.
inline constexpr std::string_view kNotLookedFor = "not looked for", kNoRdma = "no RDMA device here";

// Where a rank runs: what decides which transports reach it. Ranks tell it each other at set-up.
struct Place {
  std::string machine;                                // the kernel's boot id
  uint64_t pid_namespace = 0, network_namespace = 0;  // inodes
  uint32_t user = 0;
  uint32_t process = 0;  // id in its namespace
  // At which ranks on other machines reach this one: ARK_ADDRESS, else the bootstrap's; may be empty.
  std::string address;
  std::string no_verbs{kNotLookedFor};  // why no RDMA device can be used here; "" where one can
  std::string no_ucx{kNotLookedFor};    // likewise UCX

  // UCX is looked for where `asked` names a transport that needs it.
  static Place here(std::string_view asked = {});
};

struct TransportKind {
  std::string_view name;
  std::string_view needs;  // what can_connect looks for, for messages
  bool (*can_connect)(std::span<const Place> ranks);
  // Those of the ranks [first, first + ranks), which are of this process and together share what they have to.
  std::vector<std::unique_ptr<Transport>> (*make)(int first, int ranks);
  bool joins_alone = true;                 // make(rank, 1) is of a group whose others are made elsewhere
  std::string Place::*obstacle = nullptr;  // where a rank says what keeps it from this transport
  bool is_mixed = false;                   // two others of the list, by pair of ranks (mixed/setup.h)

  // Ranks of this process, made together.
  bool works_here() const;
};

// The fastest first; the last connects whatever can be connected.
std::span<const TransportKind> transports();

// Throws Error(kUsage), listing the names, if there is none of this name.
const TransportKind& transport_named(std::string_view name);

// What the user asks of this process's transports. Set before ranks meet; until then it is what ARK_TRANSPORT,
// ARK_VERBS_DEVICE and ARK_VERBS_GID say.
struct TransportWish {
  std::string transport;  // a name, or empty
  PortWish port;
};
TransportWish& transport_wish();

// Why ranks exchange by `chosen` though some have what a faster transport needs, in a line that names who has not; ""
// if none has.
std::string passed_over(const TransportKind& chosen, std::span<const Place> ranks);

// Collective, of ranks that join one by one: the first transport that can connect them, or the one that `asked`
// names. Rank 0 logs a warning of what was passed over. Throws Error(kUsage) if ranks ask for different ones,
// Error(kUnavailable) if that one cannot connect them.
const TransportKind& choose_transport(Bootstrap& bootstrap, const std::string& asked, Deadline deadline);

}  // namespace ark::dma
