#include "dma/bootstrap/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/log.h"

namespace ark::dma {
namespace {

constexpr int kBacklog = 256;
constexpr int kMostDamagedBits = 4;            // of a magic that may have been ours
constexpr std::chrono::seconds kAttempt{3};    // for one address; another may answer
constexpr std::chrono::seconds kSayEvery{10};  // between two lines about waiting

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

[[noreturn]] void fail(const std::string& what, const std::string& address,
                       const std::string& option = "ARK_BOOTSTRAP") {
  throw Error(Code::kOs, option + " " + escaped(address) + ": " + what + ": " + std::strerror(errno));
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

// All that the name stands for; none, and `why`, where it cannot be told (yet).
std::vector<Address> tcp_addresses(const std::string& address, bool passive, std::string& why) {
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535) {
    throw Error(Code::kUsage, "ARK_BOOTSTRAP " + escaped(address) + ": want @name, /folder or host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(error == 0 ? found : nullptr, freeaddrinfo);
  std::vector<Address> all;
  for (const addrinfo* one = owner.get(); one != nullptr; one = one->ai_next) {
    all.emplace_back();
    std::memcpy(&all.back().storage, one->ai_addr, one->ai_addrlen);
    all.back().length = one->ai_addrlen;
  }
  return all;
}

std::vector<Address> resolve(const std::string& address, bool passive, std::string& why) {
  if (is_unix(address)) return {unix_address(address)};
  std::vector<Address> all;
  for (size_t begin = 0; begin <= address.size();) {
    const size_t end = std::min(address.find(',', begin), address.size());
    for (const Address& one : tcp_addresses(address.substr(begin, end - begin), passive, why))
      all.push_back(one);
    begin = end + 1;
  }
  return all;
}

bool is_loopback(const Address& address) {
  if (address.family() == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24 == 127;
  if (address.family() != AF_INET6) return true;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

Address socket_name(int descriptor, decltype(&getsockname) which) {
  Address name;
  name.length = sizeof name.storage;
  if (which(descriptor, reinterpret_cast<sockaddr*>(&name.storage), &name.length) != 0) name.storage = {};
  return name;
}

std::string host_of(const Address& address) {
  char host[INET6_ADDRSTRLEN] = "";
  if (address.family() == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, host, sizeof host);
  if (address.family() == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr, host,
              sizeof host);
  const std::string_view text = host;
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 address, as a socket for both sees it
  return std::string(text.starts_with(kMapped) && text.find('.') != text.npos ? text.substr(kMapped.size())
                                                                              : text);
}

uint16_t port_of(const Address& address) {
  return ntohs(address.family() == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

// Fails on unix sockets: no matter. A machine that goes without a word ends its connections within ten seconds, also
// those on which nobody speaks yet.
void set_tcp_options(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.descriptor(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

Socket open_socket(const Address& address, const std::string& name) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) fail("socket", name);
  if (address.family() != AF_UNIX) {
    const int on = 1;
    set_tcp_options(socket);
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

// To any of the addresses that the name has now; not open, and why, where none answers.
Socket connect_to_any(const std::string& address, Deadline deadline, std::string& why) {
  for (const Address& where : resolve(address, false, why)) {
    Socket socket = open_socket(where, address);
    int error = ::connect(socket.descriptor(), where.get(), where.length) == 0 ? 0 : errno;
    const Deadline attempt = Deadline::after(
        std::min(std::chrono::nanoseconds(kAttempt), std::chrono::nanoseconds(deadline.left_ns())));
    if (error == EINPROGRESS && wait_ready(socket.descriptor(), POLLOUT, attempt)) {
      socklen_t length = sizeof error;
      getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return socket;
    why = std::strerror(error);
  }
  return Socket();
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

Received state_of_payload(const Frame& frame) {
  const uint32_t sum = crc32c(std::as_bytes(std::span(frame.payload)));
  return sum == frame.header.payload_sum ? Received::kFrame : Received::kDamaged;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket Socket::listen(const std::string& address, const std::string& option) {
  std::string why;
  const std::vector<Address> found = resolve(address, true, why);
  if (found.empty()) throw Error(Code::kUsage, option + " " + escaped(address) + ": " + why);
  const Address& where = found[0];
  Socket socket = open_socket(where, address);
  // A file left by a killed group would refuse us. If a group is alive behind it, we do not take it over.
  if (is_unix(address) && address[0] == '/') {
    const Socket probe = open_socket(where, address);
    if (::connect(probe.descriptor(), where.get(), where.length) == 0) {
      errno = EADDRINUSE;
      fail("another group meets here", address, option);
    }
    remove_socket_file(address);
  }
  if (bind(socket.descriptor(), where.get(), where.length) != 0) fail("bind", address, option);
  if (is_unix(address) && address[0] == '/') chmod(socket_path(address).c_str(), S_IRUSR | S_IWUSR);
  if (::listen(socket.descriptor(), kBacklog) != 0) fail("listen", address, option);
  return socket;
}

Socket Socket::listen_everywhere(uint16_t port) {
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(port);
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (socket.is_open() && bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
      ::listen(socket.descriptor(), kBacklog) == 0)
    return socket;
  return listen("0.0.0.0:" +
                std::to_string(port));  // a kernel without IPv6; else it fails for the same reason
}

Socket Socket::connect_once(const std::string& address, Deadline deadline) {
  std::string why;
  Socket socket = connect_to_any(address, deadline, why);
  if (socket.is_open()) return socket;
  throw Error(Code::kUnavailable, "nobody answers at " + escaped(address) + ": " + why);
}

Socket Socket::connect(const std::string& address, Deadline deadline) {
  Deadline quiet = Deadline::after(kSayEvery);
  for (;;) {
    // Resolved anew each time: the folder or the host's name may appear later.
    std::string why;
    Socket socket = connect_to_any(address, deadline, why);
    if (socket.is_open()) return socket;
    if (deadline.passed())
      throw Error(Code::kUnavailable,
                  "rank 0 did not open the meeting place " + escaped(address) + " in time: " + why);
    if (quiet.passed()) {
      log_line(LogLevel::kInfo, "nobody answers at " + escaped(address) + " yet: " + why);
      quiet = Deadline::after(kSayEvery);
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
  set_tcp_options(accepted);
  return accepted;
}

std::string Socket::local_host() const { return host_of(socket_name(descriptor_, getsockname)); }
std::string Socket::peer_host() const { return host_of(socket_name(descriptor_, getpeername)); }
uint16_t Socket::local_port() const { return port_of(socket_name(descriptor_, getsockname)); }
std::string Socket::peer_address() const {
  const Address peer = socket_name(descriptor_, getpeername);
  return peer.family() == AF_UNIX ? "this machine" : address_of(host_of(peer), port_of(peer));
}

std::string address_of(const std::string& host, uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_unix(const std::string& address) {
  return !address.empty() && (address[0] == '@' || address[0] == '/');
}

bool is_local(const std::string& address) {
  std::string why;
  const std::vector<Address> all = resolve(address, false, why);
  return !all.empty() && std::all_of(all.begin(), all.end(), is_loopback);
}

void remove_socket_file(const std::string& address) {
  if (address.empty() || address[0] != '/') return;
  struct stat status;
  const std::string path = socket_path(address);
  if (lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path.c_str());
}

uint32_t FrameHeader::sum_of_head() const {
  return crc32c({reinterpret_cast<const std::byte*>(this), offsetof(FrameHeader, head_sum)});
}
void FrameHeader::seal(std::string_view payload) {
  payload_sum = crc32c(std::as_bytes(std::span(payload)));
  head_sum = sum_of_head();
}

std::string frame_bytes(FrameKind kind, int rank, int ranks, std::string_view payload) {
  FrameHeader header{FrameHeader::kMagic,         FrameHeader::kVersion,        kind,
                     static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks), payload.size()};
  header.seal(payload);
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

Received parse_frame(std::string_view bytes, uint64_t limit, Frame& frame, std::size_t& whole) {
  FrameHeader& header = frame.header;
  whole = sizeof header;
  const std::size_t have = std::min(bytes.size(), sizeof header);
  if (have > 0) std::memcpy(&header, bytes.data(), have);
  const int wrong_bits = std::popcount(header.magic ^ FrameHeader::kMagic);
  if (have >= sizeof header.magic && wrong_bits > kMostDamagedBits) return Received::kMalformed;
  if (have < sizeof header) return Received::kMore;
  // Another version's head has its sum elsewhere, if any; ours has it with our version in place of a damaged one.
  FrameHeader ours = header;
  ours.magic = FrameHeader::kMagic;
  ours.version = FrameHeader::kVersion;
  const bool is_ours = ours.sum_of_head() == header.head_sum;
  if (header.version != ours.version && !is_ours) return Received::kOtherVersion;
  if (!is_ours || header.magic != ours.magic || header.version != ours.version) return Received::kDamaged;
  if (header.bytes > limit) return Received::kMalformed;
  whole += header.bytes;
  if (bytes.size() < whole) return Received::kMore;
  frame.payload = bytes.substr(sizeof header, header.bytes);
  return state_of_payload(frame);
}

Received receive_frame(const Socket& socket, Frame& frame, uint64_t limit, Deadline deadline) {
  char head[sizeof(FrameHeader)];
  if (const Received got = receive_all(socket, head, sizeof head, deadline); got != Received::kFrame)
    return got;
  std::size_t whole = 0;
  const Received state = parse_frame({head, sizeof head}, limit, frame, whole);
  if (state != Received::kMore) return state;  // also a frame without payload
  frame.payload.resize(frame.header.bytes);
  const Received got = receive_all(socket, frame.payload.data(), frame.payload.size(), deadline);
  return got == Received::kFrame ? state_of_payload(frame) : got;
}

}  // namespace ark::dma
