// One request between its first byte and its log line, and the connection that carries it; parts of Server.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/http/chunks.h"
#include "server/http/server.h"

namespace ark::http {

struct Server::Exchange {
  Exchange(Connection& its_connection, Clock::time_point began) : connection(its_connection), start(began) {}
  ~Exchange() { settle(); }
  void settle();  // what it has of its key's limits is used, or given back

  Connection& connection;
  const Clock::time_point start;
  Head head;
  std::string id, path, body;
  std::optional<ChunkDecoder> chunks;
  Router::Match match;
  std::optional<Response> refusal;      // the answer, where no handler is asked
  std::shared_ptr<const ApiKeys> keys;  // as they were when it came
  const ApiKey* key = nullptr;          // of keys: whose limits it takes from
  int status = 0;                       // 0: not answered yet
  bool must_close = false;              // the connection cannot carry another request
  LogFields log;                        // what is known beside the above
  std::shared_ptr<LogFields> told;      // by the handler, once it runs

  std::string route() const { return match.route ? match.route->path : ""; }
};

struct Server::Client {
  Client(Server& owner, Descriptor socket, std::string peer);
  ~Client();

  enum class State { kIdle, kHead, kBody, kLinger };  // between requests; in one; answered for the last time
  void enter(State next);

  Server& server;
  Connection connection;
  std::size_t of_peer;  // how many connections its address had, with this one
  State state = State::kIdle;
  Clock::time_point since, deadline;  // of the state
  std::string unread;                 // received and not used yet
  bool has_more = false;              // and waits for its next turn for it, in has_more_
  std::size_t held = 0;               // of received_
  std::optional<Exchange> exchange;
};

}  // namespace ark::http
