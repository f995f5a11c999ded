#include "engine/run/executor.h"

#include "base/error.h"

namespace ark {

void Executor::read_cache(const CachePlace&, std::span<float>) const {
  throw Error(Code::kUnsupported, "this executor does not give its caches away");
}

void Executor::write_cache(const CachePlace&, std::span<const float>) {
  throw Error(Code::kUnsupported, "this executor does not take caches");
}

Timeline Executor::timeline() {
  throw Error(Code::kUnsupported, "this executor records no timeline: it has no loop");
}

}  // namespace ark
