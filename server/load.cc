#include "server/load.h"

#include "base/error.h"

namespace ark {

ServedModel load_model(const ServeOptions& options, StageLog&) {
  throw Error(Code::kUnavailable, "no runner is linked that can serve " + escaped(options.model.string()));
}

}  // namespace ark
