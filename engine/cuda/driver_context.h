// libcuda with one GPU's primary context: what engine/cuda/driver.h's GPU, its kernels and launches share.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "engine/cuda/driver_api.h"
#include "engine/cuda/gate.h"
#include "engine/cuda/library.h"

namespace ark::cuda {

// Outlives what it hands out. Errors: Error(kUnavailable), "no CUDA here: " where the GPU cannot be opened;
// check()'s name what was refused.
class Driver {
 public:
  Driver(Library library, int ordinal, const Gate& gate)
      : library_(std::move(library)), api_(library_), gate_(gate) {
    need(api_.init(0));
    int count = 0;
    need(api_.device_count(&count));
    if (ordinal >= count)
      throw Error(Code::kUnavailable, "no CUDA here: the driver sees " + std::to_string(count) + " GPUs");
    need(api_.device_get(&device_, ordinal));
    api_.primary_flags(device_,
                       kPrimaryBlockingSync);  // refused if others have made the context: theirs then
    need(api_.primary_retain(&context_, device_));
  }
  ~Driver() {
    if (is_lost()) {
      library_.keep();  // its threads look after the kernel that still runs
    } else if (context_) {
      api_.primary_release(device_);
    }
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // The functions, with the context current on the calling thread.
  const DriverApi& use() const {
    api_.set_current(context_);
    return api_;
  }
  // A kernel that does not end: what may wait for it must not be called.
  bool is_lost() const { return gate_.is_lost(); }
  // The functions, for calls that may wait for a running kernel.
  const DriverApi& use_unless_lost() const {
    if (is_lost()) throw Error(Code::kUnavailable, "the GPU is lost: a loop on it does not end");
    return use();
  }
  int attribute(DeviceAttribute which) const {
    int value = 0;
    check(api_.device_attribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }
  // Of attributes that older drivers do not know.
  int attribute_or(DeviceAttribute which, int unknown) const {
    int value = unknown;
    return api_.device_attribute(&value, which, device_) == kDriverSuccess ? value : unknown;
  }
  DriverDevice device() const { return device_; }
  const Library& library() const { return library_; }

  std::string text(int result) const {
    const char *name = nullptr, *text = nullptr;
    api_.error_name(result, &name);
    api_.error_text(result, &text);
    return std::string(name ? name : "error") + " (" + (text ? text : std::to_string(result).c_str()) + ")";
  }
  void check(int result, const std::string& what) const {
    if (result == kDriverSuccess) return;
    const Code code = result == kDriverOutOfMemory ? Code::kExhausted : Code::kUnavailable;
    throw Error(code, "the GPU refuses " + what + ": " + text(result));
  }

 private:
  void need(int result) const {
    if (result != kDriverSuccess) throw Error(Code::kUnavailable, "no CUDA here: " + text(result));
  }

  Library library_;
  DriverApi api_;
  const Gate& gate_;
  DriverDevice device_ = 0;
  DriverContext context_ = nullptr;
};

}  // namespace ark::cuda
