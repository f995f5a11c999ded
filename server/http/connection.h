// One client's socket: bounded reading against deadlines, and whether the client is still there.
#pragma once

#include <chrono>
#include <string>

#include "server/http/head.h"
#include "server/http/library.h"
namespace ark::http {

struct ConnectionLimits {
  HeadLimits head;
  std::size_t body = 8 << 20;                       // bytes -> 413
  std::chrono::milliseconds idle_timeout{30'000};   // between two requests
  std::chrono::milliseconds head_timeout{10'000};   // from the first byte of a head to its end -> 408
  std::chrono::milliseconds body_timeout{60'000};   // for the whole body -> 408
  std::chrono::milliseconds write_timeout{30'000};  // for any progress
};

// Owned by its thread; the HTTP library reads a request from it and writes the answer to it.
class Connection : public httplib::Stream {
 public:
  // Does not close `socket`.
  Connection(int socket, const ConnectionLimits& limits);

  // Waits for the first byte of a request. False: the client closed, or nothing came in time.
  bool await_request();
  // Reads and checks the lines up to the empty one, and makes them ready for the library. Throws HttpError.
  Head read_head();
  // The client closed its side or the connection broke. Any time, from the owning thread.
  bool is_gone() const;
  // Whether a read failed because the body took too long.
  bool timed_out() const { return timed_out_; }
  // Ends our side and reads on for a while, so that a client still sending sees our answer and no reset.
  void linger();
  int64_t bytes_written() const { return written_; }
  const std::string& peer() const { return peer_; }

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !is_gone(); }
  ssize_t read(char* into, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // The library's only use is a check that select() could take it; we poll.
  socket_t socket() const override { return 0; }

 private:
  using Clock = std::chrono::steady_clock;
  // Bytes received, 0 at the end, -1 on errors and when `deadline` has passed.
  ssize_t receive(char* into, std::size_t size, Clock::time_point deadline);

  const int socket_;
  const ConnectionLimits& limits_;
  std::string peer_;
  std::string unread_;  // received; the library has read the first consumed_ bytes
  std::size_t consumed_ = 0;
  std::size_t body_budget_ = 0;  // bytes that may still come before the request is refused
  Clock::time_point body_deadline_{};
  bool timed_out_ = false;
  int64_t written_ = 0;
};

}  // namespace ark::http
