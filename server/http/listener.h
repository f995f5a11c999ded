// A listening TCP socket.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace ark::http {

struct Listener {
  int socket;
  int32_t port;         // the one that was picked if 0 was asked for
  std::string address;  // as URLs have it: "127.0.0.1", "[::]"
  bool is_loopback;     // whether only this machine can reach it
};

// Throws Error(kOs) when the port is in use or may not be had, Error(kUsage) when `host` is no address here.
Listener listen_on(const std::string& host, int32_t port);

std::string text_of(const sockaddr_storage& address);  // without port: "127.0.0.1", "::1"
bool is_loopback(const sockaddr_storage& address);

}  // namespace ark::http
