#include "server/trace/post.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/descriptor.h"
#include "base/error.h"

namespace ark::trace {
namespace {

constexpr std::size_t kMostOfAnswer = 512;  // bytes that are read for the status

struct Freed {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* session) const { ::SSL_free(session); }
};

using GiveUp = std::function<bool()>;

// False: given up.
bool wait_for(int socket, short events, const GiveUp& give_up) {
  constexpr int kLook = 50;  // milliseconds
  pollfd poller{socket, events, 0};
  while (::poll(&poller, 1, kLook) <= 0)
    if (give_up()) return false;
  return true;
}

// 0, or why not, as errno has it.
int try_connect(int socket, const addrinfo& at, const GiveUp& give_up) {
  if (::connect(socket, at.ai_addr, at.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, give_up)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// Empty where `socket` is connected, else why not.
std::string connect_to(const Url& url, Descriptor& socket, const GiveUp& give_up) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found))
    return ::gai_strerror(error);
  const std::unique_ptr<addrinfo, Freed> list(found);
  std::string why = "no address";
  for (const addrinfo* at = list.get(); at; at = at->ai_next) {
    const int type = at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
    Descriptor one{::socket(at->ai_family, type, at->ai_protocol)};
    const int error = !one ? errno : try_connect(one.number, *at, give_up);
    if (error == 0) {
      socket = std::move(one);
      return "";
    }
    why = std::strerror(error);
  }
  return why;
}

// Of the thread's last failure.
std::string tls_reason() {
  char text[160] = "no reason given";
  if (const unsigned long code = ::ERR_get_error()) ::ERR_error_string_n(code, text, sizeof text);
  ::ERR_clear_error();
  return std::string("TLS: ") + text;
}

class Stream {
 public:
  Stream(const Descriptor& socket, const GiveUp& give_up) : socket_(socket.number), give_up_(give_up) {}

  std::string begin_tls(const std::string& host) {
    context_.reset(::SSL_CTX_new(::TLS_client_method()));
    if (!context_) return tls_reason();
    ::SSL_CTX_set_default_verify_paths(context_.get());
    ::SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ::SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
    session_.reset(::SSL_new(context_.get()));
    const bool is_set = session_ && ::SSL_set1_host(session_.get(), host.c_str()) == 1 &&
                        ::SSL_set_tlsext_host_name(session_.get(), host.c_str()) == 1 &&
                        ::SSL_set_fd(session_.get(), socket_) == 1;
    return is_set && again([&] { return ::SSL_connect(session_.get()); }) > 0 ? "" : tls_reason();
  }
  bool send(std::string_view text) {
    while (!text.empty()) {
      const auto part = static_cast<int>(std::min<std::size_t>(text.size(), 1 << 20));
      const int n = again([&] {
        return session_ ? ::SSL_write(session_.get(), text.data(), part)
                        : static_cast<int>(
                              ::send(socket_, text.data(), static_cast<std::size_t>(part), MSG_NOSIGNAL));
      });
      if (n <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  // Without its end.
  std::string first_line() {
    is_reading_ = true;
    std::string text;
    char block[kMostOfAnswer];
    while (text.size() < kMostOfAnswer && text.find('\n') == text.npos) {
      const int n = again([&] {
        return session_ ? ::SSL_read(session_.get(), block, sizeof block)
                        : static_cast<int>(::recv(socket_, block, sizeof block, 0));
      });
      if (n <= 0) break;
      text.append(block, static_cast<std::size_t>(n));
    }
    return text.substr(0, text.find_first_of("\r\n"));
  }

 private:
  // What `call` gives, which is made again as long as the socket is not ready for it.
  template <typename Call>
  int again(const Call& call) {
    for (;;) {
      errno = 0;
      const int result = call();
      if (result > 0) return result;
      short events = is_reading_ ? POLLIN : POLLOUT;
      if (session_) {
        const int why = ::SSL_get_error(session_.get(), result);
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return result;
        events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      } else if (result == 0 || (errno != EAGAIN && errno != EINTR)) {
        return result;
      }
      if (!wait_for(socket_, events, give_up_)) return -1;
    }
  }

  const int socket_;
  const GiveUp& give_up_;
  bool is_reading_ = false;
  std::unique_ptr<SSL_CTX, Freed> context_;
  std::unique_ptr<SSL, Freed> session_;
};

}  // namespace

Url parse_url(const std::string& option, const std::string& text) {
  const auto fail = [&](const std::string& why) {
    throw Error(Code::kUsage, option + " " + escaped(text) + ": " + why + "; as http://127.0.0.1:4318");
  };
  Url url;
  url.is_tls = text.starts_with("https://");
  if (!url.is_tls && !text.starts_with("http://")) fail("begins neither with http:// nor with https://");
  const std::size_t begin = url.is_tls ? 8 : 7, slash = std::min(text.find('/', begin), text.size());
  std::string place = text.substr(begin, slash - begin);
  url.path = text.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (place.find('@') != place.npos || text.find_first_of("?# \r\n\t") != text.npos)
    fail("is no plain address");
  const std::size_t bracket = place.find(']'), colon = place.find(':', bracket == place.npos ? 0 : bracket);
  url.port = colon == place.npos ? (url.is_tls ? "443" : "80") : place.substr(colon + 1);
  url.host = place.substr(0, colon);
  if (url.host.starts_with('[') && url.host.ends_with(']'))
    url.host = url.host.substr(1, url.host.size() - 2);
  const bool is_number = !url.port.empty() && url.port.size() <= 5 &&
                         std::ranges::all_of(url.port, [](unsigned char c) { return std::isdigit(c); });
  if (url.host.empty() || !is_number) fail("has no host, or no port that is a number");
  return url;
}

Posted post(const Url& url, const std::string& path, std::string_view body, const GiveUp& give_up) {
  Descriptor socket;
  if (std::string why = connect_to(url, socket, give_up); !why.empty()) return {0, std::move(why)};
  Stream stream(socket, give_up);
  if (url.is_tls)
    if (std::string why = stream.begin_tls(url.host); !why.empty()) return {0, std::move(why)};
  const std::string host = url.host.find(':') == url.host.npos ? url.host : "[" + url.host + "]";
  const std::string head =
      "POST " + url.path + path + " HTTP/1.1\r\nHost: " + host + ":" + url.port +
      "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\nConnection: close\r\n\r\n";
  if (!stream.send(head) || !stream.send(body)) return {0, "the connection was closed"};
  const std::string line = stream.first_line();
  if (!line.starts_with("HTTP/1.") || line.size() < 12) return {0, "no answer"};
  return {std::atoi(line.c_str() + 9), ""};
}

}  // namespace ark::trace
