#include "base/error.h"
#include "dma/bootstrap.h"

namespace ark::dma {

void Bootstrap::together(Deadline deadline, const std::function<void()>& step) {
  std::string error;
  try {
    step();
  } catch (const Error& failed) {
    error = failed.what();
  }
  const std::vector<std::string> errors = all_gather(error, deadline);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      throw Error(Code::kUnavailable,
                  "rank " + std::to_string(rank) + " cannot connect: " + escaped(errors[rank], 500));
    }
  }
}

}  // namespace ark::dma
