#include "base/error.h"
#include "dma/bootstrap.h"

namespace ark::dma {

void Bootstrap::agree(const std::string& error, Deadline deadline) {
  const std::vector<std::string> errors = all_gather(error, deadline);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      throw Error(Code::kUnavailable,
                  "rank " + std::to_string(rank) + " cannot connect: " + escaped(errors[rank], 500));
    }
  }
}

}  // namespace ark::dma
