#include "engine/run/executor.h"

#include "base/error.h"

namespace ark {

Timeline Executor::timeline() {
  throw Error(Code::kUnsupported, "this executor records no timeline: it has no loop");
}

}  // namespace ark
