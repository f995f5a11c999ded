// Gives pages of this server's prefix cache to others that serve the same model, and computes prompts for them where it
// is a prefill server. Reads pages as they lie in memory, beside steps: the scheduler is neither asked nor held up.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "dma/bootstrap/socket.h"
#include "engine/run/runner.h"
#include "server/peers/messages.h"
#include "server/schedule/page_source.h"
#include "server/schedule/scheduler.h"

namespace ark::peers {

struct PageServerOptions {
  std::string key;       // that guests prove; empty: `listener` is of this machine
  std::string identity;  // of the model and of all that changes a page's bytes: guests have the same
  bool computes = false;
};

// What both sides know of the runner's pages. Throws Error(kUnsupported) where they cannot be reached or sent.
PageShape shape_of(const StepRunner& runner);

class PageServer {
 public:
  // The scheduler and its runner outlive it.
  PageServer(dma::Socket listener, PageServerOptions options, schedule::Scheduler& scheduler,
             const StepRunner& runner, std::shared_ptr<schedule::PageTraffic> traffic);
  ~PageServer();

 private:
  struct Guest {
    dma::Socket socket;
    std::atomic<bool> is_gone{false};
    std::jthread thread;  // last: uses the socket
  };
  void attend(const std::stop_token& stop, dma::Socket listener);
  std::string seat(dma::Socket& socket, const std::string& visitor);
  void serve(const std::stop_token& stop, Guest& guest);
  void answer(const std::stop_token& stop, const dma::Socket& socket, const Question& question);
  void compute(const std::stop_token& stop, const dma::Socket& socket, const Question& question);

  const PageServerOptions options_;
  schedule::Scheduler& scheduler_;
  const StepRunner& runner_;
  const std::shared_ptr<schedule::PageTraffic> traffic_;
  const PageShape shape_;
  std::list<Guest> guests_;  // of the door's thread
  std::jthread door_;        // last: uses all of the above
};

}  // namespace ark::peers
