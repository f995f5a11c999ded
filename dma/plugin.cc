#include "dma/plugin.h"

#include <dlfcn.h>

#include "base/error.h"

namespace ark::dma {
namespace {

const TransportPlugin& load(const std::string& name) {
  const std::string file = "libark_" + name + ".so";
  // Never unloaded: faults point to its texts. Loaded already, it is only found again.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(Code::kUnavailable, std::string("cannot load ") + dlerror());
  const auto entry =
      reinterpret_cast<decltype(&ark_transport_plugin)>(dlsym(library, "ark_transport_plugin"));
  if (entry == nullptr || std::string_view(entry()->build) != ARK_VERSION)
    throw Error(Code::kUnavailable, file + " is not of this build, ark " ARK_VERSION);
  return *entry();
}

}  // namespace

std::string plugin_trouble(const std::string& name, const PortWish& wish) {
  try {
    return load(name).trouble(wish);
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make_by_plugin(const std::string& name, std::string_view transport, int rank,
                                          const PortWish& wish) {
  return load(name).make(transport, rank, wish, log_line);
}

}  // namespace ark::dma
