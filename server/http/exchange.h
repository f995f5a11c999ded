// One request between its first byte and its log line; a part of Server.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/http/server.h"

namespace ark::http {

struct Server::Exchange {
  Connection& connection;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  Head head{};
  std::string id{}, path{};
  Router::Match match{};
  int status = 0;
  bool must_close = false;           // the connection cannot carry another request
  std::shared_ptr<LogFields> log{};  // what the handler had to add

  std::string route() const { return match.route ? match.route->path : ""; }
};

}  // namespace ark::http
