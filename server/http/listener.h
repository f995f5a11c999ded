// A listening TCP socket.
#pragma once

#include <cstdint>
#include <string>

namespace ark::http {

struct Listener {
  int socket;
  int32_t port;  // the one that was picked if 0 was asked for
};

// Throws Error(kOs) when the port is in use or may not be had, Error(kUsage) when `host` is no address here.
Listener listen_on(const std::string& host, int32_t port);

}  // namespace ark::http
