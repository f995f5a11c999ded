#include "server/http/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace ark::http {
namespace {

constexpr int kBacklog = 1024;

Listener describe(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const bool is_6 = address.ss_family == AF_INET6;
  const std::string text = text_of(address);
  return {socket,
          ntohs(is_6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                     : reinterpret_cast<sockaddr_in*>(&address)->sin_port),
          is_6 ? "[" + text + "]" : text, is_loopback(address)};
}

// -1 and errno on failure. Only SO_REUSEADDR: a second server on the port must fail, not share it.
int listen_at(const addrinfo& address) {
  const int socket =
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (socket < 0) return -1;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0)
    return socket;
  const int why = errno;
  ::close(socket);
  errno = why;
  return -1;
}

}  // namespace

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  else if (address.ss_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  return text;
}

bool is_loopback(const sockaddr_storage& address) {
  const std::string text = text_of(address);
  return text.starts_with("127.") || text == "::1" || text.starts_with("::ffff:127.");
}

Listener listen_on(const std::string& host, int32_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int failed =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed) throw Error(Code::kUsage, "--host " + escaped(host) + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  int why = EADDRNOTAVAIL;
  for (const addrinfo* address = list; address; address = address->ai_next) {
    const int socket = listen_at(*address);
    if (socket >= 0) return describe(socket);
    why = errno;
  }
  throw Error(Code::kOs, "cannot listen on " + escaped(host) + ":" + std::to_string(port) + ": " +
                             std::strerror(why) +
                             (why == EADDRINUSE ? "; choose another --port, 0 picks a free one" : ""));
}

}  // namespace ark::http
