#include "server/http/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ark::http {
namespace {

constexpr std::size_t kBlock = 16 << 10;
constexpr std::chrono::seconds kLinger{2};
// Chunked framing around a body: sizes, line ends, extensions. What is beyond is no honest client.
constexpr std::size_t kFraming = 64 << 10;

int remaining_ms(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
          .count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1 << 30));
}

bool wait_for(int socket, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    pollfd poller{socket, events, 0};
    const int ready = ::poll(&poller, 1, remaining_ms(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::string address_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "?";
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    if (address.ss_family == AF_INET)
      ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&address)->sin_addr, text, sizeof text);
    else if (address.ss_family == AF_INET6)
      ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace

Connection::Connection(int socket, const ConnectionLimits& limits)
    : socket_(socket), limits_(limits), peer_(address_of(socket)) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool Connection::await_request() {
  unread_.erase(0, std::exchange(consumed_, 0));
  if (!unread_.empty()) return true;  // pipelined
  char block[kBlock];
  const ssize_t n = receive(block, sizeof block, Clock::now() + limits_.idle_timeout);
  if (n > 0) unread_.assign(block, static_cast<std::size_t>(n));
  return n > 0;
}

Head Connection::read_head() {
  const auto deadline = Clock::now() + limits_.head_timeout;
  timed_out_ = false;
  written_ = 0;
  std::size_t end = 0;
  for (;;) {
    while (unread_.starts_with("\r\n")) unread_.erase(0, 2);  // left over by sloppy clients
    if (!unread_.empty() && !std::isalpha(static_cast<unsigned char>(unread_[0])))
      throw HttpError(400, "this is not HTTP; the server speaks plain HTTP/1.1");
    const std::size_t strict = unread_.find("\r\n\r\n"), loose = unread_.find("\n\n");
    if (loose < strict) throw HttpError(400, "a header line does not end with CR LF");
    if (strict != std::string::npos) {
      end = strict + 4;
      break;
    }
    if (unread_.size() > limits_.head.bytes) break;
    char block[kBlock];
    const ssize_t n = receive(block, sizeof block, deadline);
    if (n == 0) throw HttpError(kClientClosedRequest, "the client closed the connection");
    if (n < 0)
      throw HttpError(408, "the request's headers did not arrive within " +
                               std::to_string(limits_.head_timeout.count()) + " ms");
    unread_.append(block, static_cast<std::size_t>(n));
  }
  const std::size_t line = unread_.find('\n');
  if (std::min(line, unread_.size()) > limits_.head.target + 64)
    throw HttpError(414,
                    "the request's target is longer than " + std::to_string(limits_.head.target) + " bytes");
  if (unread_.size() > limits_.head.bytes && unread_.find("\r\n\r\n") > limits_.head.bytes)
    throw HttpError(431,
                    "the request's headers are longer than " + std::to_string(limits_.head.bytes) + " bytes");
  Head head = parse_head(std::string_view(unread_).substr(0, end), limits_.head);
  unread_.replace(0, end, head.for_library());
  consumed_ = 0;
  body_budget_ = unread_.size() + 2 * limits_.body + kFraming;
  body_deadline_ = Clock::now() + limits_.body_timeout;
  return head;
}

bool Connection::is_gone() const {
  pollfd poller{socket_, POLLRDHUP, 0};
  return ::poll(&poller, 1, 0) > 0 && (poller.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

void Connection::linger() {
  ::shutdown(socket_, SHUT_WR);
  const auto deadline = Clock::now() + kLinger;
  char block[kBlock];
  while (receive(block, sizeof block, deadline) > 0 && Clock::now() < deadline) {
  }
}

ssize_t Connection::receive(char* into, std::size_t size, Clock::time_point deadline) {
  for (;;) {
    if (!wait_for(socket_, POLLIN, deadline)) return -1;
    const ssize_t n = ::recv(socket_, into, size, MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno != EINTR && errno != EAGAIN) return 0;  // a broken connection is as good as a closed one
  }
}

ssize_t Connection::read(char* into, std::size_t size) {
  if (consumed_ == unread_.size()) {
    char block[kBlock];
    const ssize_t n = receive(block, sizeof block, body_deadline_);
    timed_out_ = n < 0;
    if (n <= 0) return n;
    unread_.assign(block, static_cast<std::size_t>(n));
    consumed_ = 0;
  }
  const std::size_t n = std::min({size, unread_.size() - consumed_, body_budget_});
  if (n == 0) return -1;
  std::memcpy(into, unread_.data() + consumed_, n);
  consumed_ += n;
  body_budget_ -= n;
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* data, std::size_t size) {
  for (;;) {
    const ssize_t n = ::send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      written_ += n;
      return n;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || !wait_for(socket_, POLLOUT, Clock::now() + limits_.write_timeout)) return -1;
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = peer_;
  port = 0;
}
void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace ark::http
