// The process that a SupervisedRunner starts: loads a model and runs the steps that come over the socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/supervise/messages.h"

namespace ark::supervise {

struct OwnModel {
  std::shared_ptr<StepRunner> runner;
  std::string identity;  // ModelFacts::identity
  int32_t machine_ranks = 1;
};

// Until the server closes the socket, which is dma::kHandedDescriptor. What fails is told to the server and not thrown;
// returns the exit code. `stage`: what the server is told to be going on; asked from another thread.
int serve_model(
    const std::function<OwnModel(const ModelTerms&)>& load,
    const std::function<std::string()>& stage = [] { return std::string(); });

}  // namespace ark::supervise
