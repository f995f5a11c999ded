// The HTTP side of ark-serve: a service behind a server, from start to drain.
#pragma once

#include <chrono>
#include <string>

#include "server/api/service.h"
#include "server/config.h"
#include "server/http/server.h"

namespace ark {

class Frontend {
 public:
  // Loads the keys and the certificate, binds the port and answers, as long as the model is loaded by 503. Throws
  // Error(kUsage) where other machines could use the server without a key.
  Frontend(const ServeOptions& options, api::Service& service);

  // "http://[::]:8000": what is listened on; and one that a client on this machine can use.
  std::string url() const;
  std::string local_url() const;
  // Reads keys and certificate again; what cannot be read stays as it was, and the log says why.
  void reload();
  // Of requests in the works; for who has to say what holds up an end.
  std::string in_progress() const { return server_.in_progress(); }
  // New requests are told 503; what runs goes on.
  void start_draining();
  // Answers that are ready are still sent for `grace`.
  void stop(std::chrono::milliseconds grace) { server_.stop(grace); }

 private:
  const ServeOptions& options_;
  api::Service& service_;
  http::Server server_;
};

}  // namespace ark
