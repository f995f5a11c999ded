#include "engine/cuda/library.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace ark::cuda {

Library::Library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) continue;
    name_ = name;
    return;
  }
}

Library::~Library() {
  if (handle_) ::dlclose(handle_);
}

Library::Library(Library&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), name_(std::move(other.name_)) {}

void* Library::symbol(const char* function) const {
  void* address = handle_ ? ::dlsym(handle_, function) : nullptr;
  if (!address)
    throw Error(Code::kUnavailable,
                escaped(name_) + " has no function " + function + "; a newer driver or toolkit is needed");
  return address;
}

}  // namespace ark::cuda
