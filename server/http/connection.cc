#include "server/http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ark::http {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBlock = 16 << 10;  // as long as a record of TLS: none is left in OpenSSL's buffer
constexpr auto kFirstAsk = 1s, kNextAsk = 5s;
constexpr std::size_t kSlowestReader = 16;  // bytes a millisecond, beyond the patience

bool wait_for(int socket, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poller{socket, events, 0};
    const int ready = ::poll(&poller, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Connection::Connection(Descriptor socket, std::string peer, std::chrono::milliseconds patience)
    : socket_(std::move(socket)), peer_(std::move(peer)), patience_(patience) {
  const int on = 1;
  ::setsockopt(this->socket(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Connection::use_tls(SSL_CTX& context) { tls_ = begin_tls(context, socket()); }

ssize_t Connection::tls_result(int result) {
  if (result > 0) return result;
  const int why = ::SSL_get_error(tls_.get(), result);
  ::ERR_clear_error();
  if (why == SSL_ERROR_ZERO_RETURN) return 0;
  errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
  return -1;
}

ssize_t Connection::receive_now(char* into, std::size_t size) {
  return tls_ ? tls_result(::SSL_read(tls_.get(), into, static_cast<int>(size)))
              : ::recv(socket(), into, size, MSG_DONTWAIT);
}

ssize_t Connection::send_now(std::string_view text) {
  return tls_ ? tls_result(::SSL_write(tls_.get(), text.data(), static_cast<int>(text.size())))
              : ::send(socket(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Connection::Received Connection::receive(std::string& into) {
  char block[kBlock];
  for (;;) {
    const ssize_t n = receive_now(block, sizeof block);
    if (n > 0) {
      into.append(block, static_cast<std::size_t>(n));
      return Received::kSome;
    }
    if (n == 0) return Received::kEnd;
    if (errno == EAGAIN) return Received::kNothing;
    if (errno != EINTR) return Received::kEnd;  // a broken connection is as good as a closed one
  }
}

bool Connection::wait_readable(std::chrono::milliseconds time) const {
  return wait_for(socket(), POLLIN, Clock::now() + time);
}

bool Connection::send(std::string_view text) {
  const auto deadline = Clock::now() + patience_ + std::chrono::milliseconds(text.size() / kSlowestReader);
  while (!text.empty() && !is_broken_) {
    const ssize_t n = send_now(text);
    if (n > 0) {
      sent_ += n;
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      const auto begin = Clock::now();
      is_broken_ = n == 0 || errno != EAGAIN || never_waits_ || begin > deadline ||
                   !wait_for(socket(), POLLOUT, deadline);
      blocked_ += Clock::now() - begin;
    }
  }
  return !is_broken_;
}

void Connection::end_sending() {
  if (tls_ && !is_broken_) tls_result(::SSL_shutdown(tls_.get()));
  ::shutdown(socket(), SHUT_WR);
}

bool Connection::is_gone(bool may_ask) {
  pollfd poller{socket(), POLLRDHUP, 0};
  if (is_broken_ || ::poll(&poller, 1, 0) <= 0) return is_broken_;
  if (poller.revents & (POLLHUP | POLLERR | POLLNVAL)) return is_broken_ = true;
  const auto now = Clock::now();
  if (ask_at_ == Clock::time_point()) ask_at_ = now + kFirstAsk;
  if (may_ask && now >= ask_at_) {
    ask_at_ = now + kNextAsk;
    send("HTTP/1.1 100 Continue\r\n\r\n");  // to one that has closed: its system answers by a reset
  }
  return is_broken_;
}

}  // namespace ark::http
