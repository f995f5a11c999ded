// The HTTP server: sockets and threads around a Router.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "server/http/api_keys.h"
#include "server/http/connection.h"
#include "server/http/library.h"
#include "server/http/router.h"

namespace ark::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int32_t port = 0;                       // 0: any free one
  std::size_t connections = 512;          // open at once; one more is told 503
  std::size_t bodies_memory = 256 << 20;  // bytes of all request bodies being received; more is told 503
  ConnectionLimits limits;
};

// One request that was answered, for logs.
struct Served {
  std::string id, peer, method, path;
  std::string route;  // the route's pattern; "" if none matched
  int status = 0;
  int64_t bytes = 0;  // of the answer, head included
  double seconds = 0;
  LogFields details;
  bool is_probe = false;  // the route's
};

// Called from connection threads.
struct ServerEvents {
  // Before the first byte of an answer: who has one finds it counted. `route` as in Served.
  std::function<void(const std::string& route, int status)> answering;
  std::function<void(const Served&)> served;
};

class Server : private httplib::Server {
 public:
  // Binds at once (see listen_on for what it throws); `router`, `keys` and `events` are taken over.
  Server(ServerOptions options, Router router, ApiKeys keys, ServerEvents events);
  ~Server() override;  // stop at once

  void start();
  int32_t port() const { return port_; }
  // Answers in the works end, idle connections are closed; after `grace` the rest is cut off. Then joins.
  void stop(std::chrono::milliseconds grace);
  // From now on connections are closed after their answer.
  void close_after_answer() { draining_.store(true); }
  std::size_t open_connections() const;

 private:
  struct Exchange;  // one request being answered
  // What one request's body has of bodies_; given back at the end.
  class BodyShare {
   public:
    explicit BodyShare(std::atomic<std::size_t>& all) : all_(all) {}
    ~BodyShare() { all_ -= bytes_; }
    BodyShare(const BodyShare&) = delete;
    BodyShare& operator=(const BodyShare&) = delete;
    void grow(std::size_t bytes) { all_ += bytes, bytes_ += bytes; }

   private:
    std::atomic<std::size_t>& all_;
    std::size_t bytes_ = 0;
  };
  using Raw = httplib::Request;

  bool process_and_close_socket(socket_t socket) override;
  void serve(Connection& connection);
  bool serve_one(Connection& connection);
  bool answer_head(Exchange& exchange, Response response);

  void set_up_library();
  static Exchange& exchange_of(const Raw& raw);
  HandlerResponse before_body(const Raw& raw, httplib::Response& out);
  void with_body(const Raw& raw, httplib::Response& out, const httplib::ContentReader& reader);
  std::string read_body(Exchange& exchange, const httplib::ContentReader& reader, BodyShare& share);
  Response route(Exchange& exchange, const std::string& path);
  Response run_handler(Exchange& exchange, std::string body);
  void give(Exchange& exchange, Response response, httplib::Response& out);
  void set_status(Exchange& exchange, int status);
  bool is_closing(const Exchange& exchange) const;

  bool enter(int socket);
  void set_busy(int socket, bool busy);
  void leave(int socket);

  const ServerOptions options_;
  const Router router_;
  const ApiKeys keys_;
  const ServerEvents events_;
  int32_t port_ = 0;
  std::thread thread_;  // accepts
  std::atomic<bool> draining_{false}, stopping_{false};
  std::atomic<std::size_t> bodies_{0};  // bytes

  mutable std::mutex mutex_;      // guards what follows
  std::map<int, bool> sockets_;   // of connections; whether a request is being answered
  std::condition_variable idle_;  // a connection became idle or left
};

}  // namespace ark::http
