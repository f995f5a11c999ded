#include "dma/verbs.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "dma/verbs/plugin.h"

namespace ark::dma {
namespace {

constexpr const char* kFile = "libark_verbs.so";

const VerbsPlugin& load() {
  // Never unloaded: faults point to its texts.
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(Code::kUnavailable, std::string("cannot load ") + dlerror());
  const auto entry = reinterpret_cast<decltype(&ark_verbs_plugin)>(dlsym(library, "ark_verbs_plugin"));
  if (entry == nullptr || std::string_view(entry()->build) != ARK_VERSION)
    throw Error(Code::kUnavailable, std::string(kFile) + " is not of this build, ark " ARK_VERSION);
  return *entry();
}

const VerbsPlugin& plugin() {
  static const VerbsPlugin& loaded = load();
  return loaded;
}

}  // namespace

std::string verbs_trouble() {
  // Most machines have none: these load nothing.
  std::error_code none;
  if (std::filesystem::directory_iterator("/sys/class/infiniband", none) ==
      std::filesystem::directory_iterator())
    return "no RDMA device here";
  try {
    return plugin().trouble();
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make_verbs_transport(int rank) { return plugin().make(rank, log_line); }

}  // namespace ark::dma
