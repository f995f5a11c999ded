// One client's socket, plain or with TLS: reading what is there, writing with a time limit, and whether the client is
// still there.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "server/http/tls.h"

namespace ark::http {

// Used by one thread at a time.
class Connection {
 public:
  // The socket does not block. `patience`: for a client to read.
  Connection(Descriptor socket, std::string peer, std::chrono::milliseconds patience);
  void use_tls(SSL_CTX& context);  // before anything else
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  enum class Received { kSome, kNothing, kEnd };
  // Appends what has come, a block at most, without waiting. kEnd: the client ended its side, or the connection broke.
  Received receive(std::string& into);
  bool wait_readable(std::chrono::milliseconds time) const;
  // False: the client is gone or, within its time, did not read. Once false, always false.
  bool send(std::string_view text);
  // From now on send() does not wait at all.
  void never_wait(bool never) { never_waits_ = never; }
  // Ends our side; the client can still send, and sees no reset.
  void end_sending();

  // Whether the connection is broken. A client that only ended its side waits for its answer: whether it is one of
  // these or has closed is asked by an interim answer (100) that it must ignore, where one `may_ask`.
  bool is_gone(bool may_ask);

  int socket() const { return socket_.number; }
  const std::string& peer() const { return peer_; }
  int64_t bytes_sent() const { return sent_; }
  std::chrono::nanoseconds blocked() const { return blocked_; }  // that send() waited for the client to read

 private:
  using Clock = std::chrono::steady_clock;
  // As recv and send; -1 with errno EAGAIN where it would wait.
  ssize_t receive_now(char* into, std::size_t size);
  ssize_t send_now(std::string_view text);
  ssize_t tls_result(int result);

  const Descriptor socket_;
  const std::string peer_;
  const std::chrono::milliseconds patience_;
  TlsSession tls_;
  bool never_waits_ = false, is_broken_ = false;
  Clock::time_point ask_at_{};  // whether the client that ended its side is still there; zero: it did not
  int64_t sent_ = 0;
  std::chrono::nanoseconds blocked_{};
};

}  // namespace ark::http
