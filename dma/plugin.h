// Transports that are shared objects of their own, libark_NAME.so, loaded when they are asked for, so that nothing
// else needs their libraries. They lie beside the executable, or where its RUNPATH says.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "dma/transport.h"

namespace ark::dma {

// Which port of an RDMA device is taken: of "DEVICE[:PORT],..." ranks take theirs in turn; its address by index. Empty:
// the first active port, its best address.
struct PortWish {
  std::string device, gid;
};

// What such an object gives to the executable that loads it. They share C++ classes, so both must be of one build.
struct TransportPlugin {
  const char* build;
  std::string (*trouble)(const PortWish& wish);
  // One of those that it has, by name, of rank `rank` of a group. `log`: the executable's, whose level and format have
  // been set.
  std::unique_ptr<Transport> (*make)(std::string_view transport, int rank, const PortWish& wish,
                                     decltype(&log_line) log);
};
// The object's one name.
extern "C" const TransportPlugin* ark_transport_plugin();

// Why no rank here can use the transports of object `name`, in one line; "" if one can.
std::string plugin_trouble(const std::string& name, const PortWish& wish);
// Throws Error(kUnavailable) where there is trouble.
std::unique_ptr<Transport> make_by_plugin(const std::string& name, std::string_view transport, int rank,
                                          const PortWish& wish);

}  // namespace ark::dma
