// Each rank's file descriptor to the others of its machine: for kernel objects that cannot be opened by a name, such as
// memory of a GPU. Over unix sockets with abstract names, which leave nothing behind.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "dma/bootstrap.h"

namespace ark::dma {

struct Handed {
  Descriptor descriptor;
  std::string why_not;  // where it is not open
};

// Collective. `own`: what the others get duplicates of, -1: none. By rank; the own place has neither. Only ranks of one
// user, machine and network namespace are heard and answered; who does not answer within `patience` is not waited for.
// Throws as Bootstrap::all_gather.
std::vector<Handed> hand_round(Bootstrap& bootstrap, int own, Deadline deadline,
                               std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace ark::dma
