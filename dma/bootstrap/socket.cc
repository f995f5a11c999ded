#include "dma/bootstrap/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace ark::dma {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

bool is_unix(const std::string& address) {
  return !address.empty() && (address[0] == '@' || address[0] == '/');
}

[[noreturn]] void fail(const std::string& what, const std::string& address) {
  throw Error(Code::kOs, "ARK_BOOTSTRAP " + escaped(address) + ": " + what + ": " + std::strerror(errno));
}

// "/folder" means a file in it, anything else that starts with / is the socket itself.
std::string socket_path(const std::string& address) {
  struct stat status;
  const bool is_folder = stat(address.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return is_folder ? address + "/ark-rank0.sock" : address;
}

Address unix_address(const std::string& address) {
  const std::string path = address[0] == '@' ? address : socket_path(address);
  Address result;
  auto* name = reinterpret_cast<sockaddr_un*>(&result.storage);
  if (path.size() + 1 > sizeof name->sun_path) {
    throw Error(Code::kUsage, "ARK_BOOTSTRAP " + escaped(address) + ": longer than the " +
                                  std::to_string(sizeof name->sun_path - 1) +
                                  " bytes of a unix socket's name");
  }
  name->sun_family = AF_UNIX;
  std::memcpy(name->sun_path, path.c_str(), path.size() + 1);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (path[0] == '@') {
    name->sun_path[0] = '\0';  // abstract: the name is counted, not terminated
  } else {
    ++result.length;
  }
  return result;
}

Address tcp_address(const std::string& address, bool passive) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    throw Error(Code::kUsage, "ARK_BOOTSTRAP " + escaped(address) + ": want @name, /folder or host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    throw Error(Code::kUsage, "ARK_BOOTSTRAP " + escaped(address) + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Address result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  return result;
}

Address resolve(const std::string& address, bool passive) {
  return is_unix(address) ? unix_address(address) : tcp_address(address, passive);
}

Socket open_socket(const Address& address, const std::string& name) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) fail("socket", name);
  if (address.family() != AF_UNIX) {
    const int on = 1;
    setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  return socket;
}

// Waits for `events`. False when the deadline passes first.
bool wait_ready(int descriptor, short events, const Deadline& deadline) {
  while (!deadline.passed()) {
    pollfd one = {descriptor, events, 0};
    const auto slice = static_cast<int>(std::min<int64_t>(deadline.left_ns() / 1'000'000 + 1, 1000));
    const int ready = poll(&one, 1, slice);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool send_all(const Socket& socket, const char* bytes, size_t size, const Deadline& deadline) {
  while (size > 0) {
    const ssize_t sent = ::send(socket.descriptor(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      if (!wait_ready(socket.descriptor(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Received receive_all(const Socket& socket, char* bytes, size_t size, const Deadline& deadline) {
  while (size > 0) {
    const ssize_t got = ::recv(socket.descriptor(), bytes, size, MSG_DONTWAIT);
    if (got > 0) {
      bytes += got;
      size -= static_cast<size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      if (!wait_ready(socket.descriptor(), POLLIN, deadline)) return Received::kLate;
    } else if (got == 0 || errno != EINTR) {
      return Received::kClosed;
    }
  }
  return Received::kFrame;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket Socket::listen(const std::string& address) {
  const Address where = resolve(address, true);
  Socket socket = open_socket(where, address);
  // A file left by a killed group would refuse us. If a group is alive behind it, we do not take it over.
  if (is_unix(address) && address[0] == '/') {
    const Socket probe = open_socket(where, address);
    if (::connect(probe.descriptor(), where.get(), where.length) == 0) {
      errno = EADDRINUSE;
      fail("another group meets here", address);
    }
    remove_socket_file(address);
  }
  if (bind(socket.descriptor(), where.get(), where.length) != 0) fail("bind", address);
  if (is_unix(address) && address[0] == '/') chmod(socket_path(address).c_str(), S_IRUSR | S_IWUSR);
  if (::listen(socket.descriptor(), 256) != 0) fail("listen", address);
  return socket;
}

Socket Socket::connect(const std::string& address, Deadline deadline) {
  for (;;) {
    // Resolved anew each time: the folder or the host's name may appear later.
    const Address where = resolve(address, false);
    Socket socket = open_socket(where, address);
    int error = ::connect(socket.descriptor(), where.get(), where.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS && wait_ready(socket.descriptor(), POLLOUT, deadline)) {
      socklen_t length = sizeof error;
      getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return socket;
    if (deadline.passed()) {
      throw Error(Code::kUnavailable, "rank 0 did not open ARK_BOOTSTRAP " + escaped(address) +
                                          " in time: " + std::strerror(error));
    }
    detail::blind_sleep(10'000'000);
  }
}

Socket Socket::accept() const {
  Socket accepted(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.is_open()) return accepted;
  ucred peer = {};
  socklen_t length = sizeof peer;
  const int asked = getsockopt(accepted.descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
  // Only unix sockets know their peer's user: an abstract name has no permissions, so we look.
  if (asked == 0 && peer.pid > 0 && peer.uid != getuid()) return Socket();
  const int on = 1;
  setsockopt(accepted.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails on unix: no matter
  return accepted;
}

void remove_socket_file(const std::string& address) {
  if (address.empty() || address[0] != '/') return;
  struct stat status;
  const std::string path = socket_path(address);
  if (lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path.c_str());
}

std::string frame_bytes(FrameKind kind, int rank, int ranks, std::string_view payload) {
  const FrameHeader header{FrameHeader::kMagic,         FrameHeader::kVersion,        kind,
                           static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks), payload.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes += payload;
}

bool send_frame(const Socket& socket, FrameKind kind, int rank, int ranks, std::string_view payload,
                Deadline deadline) {
  const std::string bytes = frame_bytes(kind, rank, ranks, payload);  // at once: the reader wakes once
  if (send_all(socket, bytes.data(), bytes.size(), deadline)) return true;
  ::shutdown(socket.descriptor(), SHUT_RDWR);
  return false;
}

Received receive_frame(const Socket& socket, Frame& frame, uint64_t limit, Deadline deadline) {
  FrameHeader& header = frame.header;
  const Received head = receive_all(socket, reinterpret_cast<char*>(&header), sizeof header, deadline);
  if (head != Received::kFrame) return head;
  if (header.magic != FrameHeader::kMagic || header.version != FrameHeader::kVersion ||
      header.bytes > limit) {
    return Received::kMalformed;
  }
  frame.payload.resize(header.bytes);
  return receive_all(socket, frame.payload.data(), header.bytes, deadline);
}

}  // namespace ark::dma
