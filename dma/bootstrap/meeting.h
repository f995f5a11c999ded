// The meeting of rank processes: rank 0 listens, the others come with two connections each.
#pragma once

#include <string>
#include <vector>

#include "dma/bootstrap.h"
#include "dma/bootstrap/socket.h"

namespace ark::dma {

// A rank's connections after the meeting. Rank 0 has one of each to every rank (its own entry is not open);
// the others have entry 0 only.
struct Connections {
  std::vector<Socket> gather;  // all_gather
  std::vector<Socket> watch;   // life signs; read and written by the watch only
  std::string address;         // as Bootstrap::address
};

inline constexpr const char* kNeedsKey =
    " is beyond this machine: ranks that others can reach need --cluster-key-file FILE "
    "(ARK_CLUSTER_KEY_FILE), the same "
    "key for all";

// Throws as join_environment.
Connections meet(const Environment& environment, Deadline deadline);

}  // namespace ark::dma
