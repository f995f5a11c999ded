// The HTTP side of ark-serve: a service behind a server, from start to drain.
#pragma once

#include <chrono>

#include "server/api/service.h"
#include "server/config.h"
#include "server/http/server.h"

namespace ark {

class Frontend {
 public:
  // Loads the keys and binds the port; takes no requests yet.
  Frontend(const ServeOptions& options, api::Service& service);

  void start() { server_.start(); }
  int32_t port() const { return server_.port(); }
  // New requests are told 503; what runs goes on.
  void start_draining();
  // Answers that are ready are still sent for `grace`.
  void stop(std::chrono::milliseconds grace) { server_.stop(grace); }

 private:
  api::Service& service_;
  http::Server server_;
};

// Writes the request's line of the access log.
void log_served(const http::Served& served);

}  // namespace ark
