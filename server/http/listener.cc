#include "server/http/listener.h"

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

int32_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// -1 and errno on failure. Only SO_REUSEADDR: a second server on the port must fail, not share it.
int listen_at(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
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
    if (socket >= 0) return {socket, port_of(socket)};
    why = errno;
  }
  throw Error(Code::kOs, "cannot listen on " + escaped(host) + ":" + std::to_string(port) + ": " +
                             std::strerror(why) +
                             (why == EADDRINUSE ? "; choose another --port, 0 picks a free one" : ""));
}

}  // namespace ark::http
