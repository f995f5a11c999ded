// The HTTP server around a Router: one thread holds all connections that wait, workers answer whole requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http/api_keys.h"
#include "server/http/connection.h"
#include "server/http/head.h"
#include "server/http/listener.h"
#include "server/http/policy.h"
#include "server/http/router.h"
#include "server/http/worker_pool.h"

namespace ark::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int32_t port = 0;                       // 0: any free one
  std::size_t connections = 4096;         // open at once; for one more, one that waits has to go
  std::size_t connections_per_peer = 0;   // 0: 256, and any number from this machine
  std::size_t workers = 512;              // requests answered at once; one more is told 503
  std::size_t bodies_memory = 256 << 20;  // bytes of all requests being received; more is told 503
  HeadLimits head;
  std::size_t body = 8 << 20;                       // bytes -> 413
  std::chrono::milliseconds idle_timeout{75'000};   // between two requests
  std::chrono::milliseconds head_timeout{10'000};   // from the first byte of a head to its end -> 408
  std::chrono::milliseconds body_timeout{60'000};   // for the whole body -> 408
  std::chrono::milliseconds write_timeout{30'000};  // for a client to read a piece
  Policy policy;                                    // its check_names: on for loopback addresses
  TlsContext tls;                                   // null: plain HTTP
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

// Called from the server's threads.
struct ServerEvents {
  // Before the first byte of an answer: who has one finds it counted. `route` as in Served.
  std::function<void(const std::string& route, int status)> answering;
  std::function<void(const Served&)> served;
};

class Server {
 public:
  // Binds at once (see listen_on for what it throws); `router`, `keys` and `events` are taken over.
  Server(ServerOptions options, Router router, ApiKeys keys, ServerEvents events);
  ~Server();  // stop at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();
  const Listener& listener() const { return listener_; }
  // Answers in the works end, waiting connections are closed; after `grace` the rest is cut off. Then joins.
  void stop(std::chrono::milliseconds grace);
  // From now on connections are closed after their answer.
  void close_after_answer() { draining_.store(true); }
  std::size_t open_connections() const { return open_.load(); }
  // Of requests that come from now on.
  void replace(ApiKeys keys, TlsContext tls);
  // Some of the requests being answered, for who has to say what holds up an end. Waits little for the lock.
  std::string in_progress() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Exchange;  // one request being answered
  struct Client;    // a connection with the request that it carries
  using ClientPtr = std::shared_ptr<Client>;
  enum class Next { kWait, kServe, kEnd };

  // Of the thread that holds waiting connections (server.cc).
  void run();
  void accept_some();
  void take(Descriptor socket, const sockaddr_storage& address);
  void out_of_descriptors();
  bool make_room();
  void go_on(const ClientPtr& client);
  bool handle_what_came(const ClientPtr& client);
  void wait_for(const ClientPtr& client);
  void take_returned();
  void give_up_late();
  void wake();
  void work(ClientPtr client);

  // Of whoever has the connection (exchange.cc).
  Next advance(Client& client);
  void begin(Client& client);
  bool take_body(Client& client);
  void account(Client& client);
  void fail(Client& client, const HttpError& error);
  bool is_quick(const Client& client) const;
  void serve(Client& client);
  Response admit(Exchange& exchange);
  Response run_handler(Exchange& exchange);
  void answer(Exchange& exchange, Response response);
  void refuse(Client& client, const HttpError& error);

  ServerOptions options_;
  const Router router_;
  const ServerEvents events_;
  const Listener listener_;
  const int epoll_, wake_;
  int spare_;  // a descriptor to give up where there are no more
  WorkerPool workers_;
  std::atomic<bool> draining_{false}, stopping_{false};
  std::atomic<std::size_t> open_{0};      // connections
  std::atomic<std::size_t> received_{0};  // bytes of requests that are not answered yet

  std::map<int, ClientPtr> waiting_;    // by socket; of the thread that holds them
  std::vector<ClientPtr> has_more_;     // of those: who has sent requests beyond the one that had its turn
  Clock::time_point next_complaint_{};  // about descriptors; its own, too

  mutable std::mutex mutex_;                      // guards what follows
  std::map<const Client*, std::string> serving_;  // and what they asked for
  std::condition_variable idle_;                  // one of them is done
  std::map<std::string, std::size_t> peers_;      // connections by address
  std::vector<ClientPtr> returned_;               // from workers, to wait for their next request
  std::shared_ptr<const ApiKeys> keys_;
  TlsContext tls_;

  std::thread thread_;
};

}  // namespace ark::http
