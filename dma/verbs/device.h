// An open port of an RDMA device, and how one is chosen. Everything of libibverbs is owned by a handle that frees it.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "dma/plugin.h"

namespace ark::dma {

template <auto release>
struct Release {
  void operator()(auto* object) const { release(object); }
};
using VerbsContext = std::unique_ptr<ibv_context, Release<ibv_close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Release<ibv_dealloc_pd>>;
using MemoryRegistration = std::unique_ptr<ibv_mr, Release<ibv_dereg_mr>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Release<ibv_destroy_cq>>;
using QueuePair = std::unique_ptr<ibv_qp, Release<ibv_destroy_qp>>;
using AddressHandle = std::unique_ptr<ibv_ah, Release<ibv_destroy_ah>>;

struct VerbsPort {
  VerbsContext context;
  ProtectionDomain domain;  // goes before the context
  std::string name;         // "rxe1 port 1, GID 3 ::ffff:10.9.0.1", for messages
  uint8_t number = 0;
  uint8_t gid_index = 0;
  ibv_gid gid = {};
  ibv_port_attr port = {};
  ibv_device_attr limits = {};
};

// The port for `rank`; by default the first active one with the best address. Throws Error(kUnavailable), saying what
// there is.
std::shared_ptr<const VerbsPort> open_port(int rank, const PortWish& wish);

// "::ffff:10.9.0.1"
std::string text(const ibv_gid& gid);

}  // namespace ark::dma
