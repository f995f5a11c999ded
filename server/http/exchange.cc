#include "server/http/exchange.h"

#include <malloc.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "server/http/envelope.h"

namespace ark::http {
namespace {

using namespace std::chrono_literals;

constexpr auto kLinger = 2s;  // for a client that is still sending to see its answer and no reset
constexpr int kBlocks = 4;    // received at once, before others have their turn
// Of a body that leaves much in the allocator's lists: parsed, it takes up to twenty times its size, in small pieces.
constexpr std::size_t kLargeBody = 256 << 10;

std::string new_id() {
  char text[32];
  std::snprintf(text, sizeof text, "req-%016" PRIx64 "%08" PRIx64, random_word(), random_word() >> 32);
  return text;
}

const char* reason_of(int status) {
  static const std::map<int, const char*> kReasons = {{200, "OK"},
                                                      {204, "No Content"},
                                                      {400, "Bad Request"},
                                                      {401, "Unauthorized"},
                                                      {403, "Forbidden"},
                                                      {404, "Not Found"},
                                                      {405, "Method Not Allowed"},
                                                      {408, "Request Timeout"},
                                                      {413, "Payload Too Large"},
                                                      {414, "URI Too Long"},
                                                      {415, "Unsupported Media Type"},
                                                      {417, "Expectation Failed"},
                                                      {429, "Too Many Requests"},
                                                      {431, "Request Header Fields Too Large"},
                                                      {500, "Internal Server Error"},
                                                      {503, "Service Unavailable"}};
  const auto found = kReasons.find(status);
  return found == kReasons.end() ? "Other" : found->second;
}

std::string date_now() {  // by RFC 9110's 5.6.7
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

bool is_json(const std::string& type) {
  const std::string name = type.substr(0, type.find_first_of("; \t"));
  return name == "application/json" || (name.starts_with("application/") && name.ends_with("+json"));
}

}  // namespace

void Server::Exchange::settle() {
  int64_t tokens = 0;
  for (const auto& [name, value] : log)  // prompt_tokens has those that were cached, too
    if (const auto* count = std::get_if<int64_t>(&value);
        count && (name == "prompt_tokens" || name == "generated_tokens"))
      tokens += *count;
  if (key) std::exchange(key, nullptr)->usage->end(tokens);
}

Server::Client::Client(Server& owner, Descriptor socket, std::string peer)
    : server(owner), connection(std::move(socket), std::move(peer), owner.options_.write_timeout) {
  enter(State::kIdle);
  // Before the first request, which TLS and slow networks delay, it is not between two.
  deadline = since + std::max(server.options_.idle_timeout, server.options_.head_timeout);
  std::lock_guard lock(server.mutex_);
  if (server.tls_) connection.use_tls(*server.tls_);
  of_peer = ++server.peers_[connection.peer()];  // last: what throws here is not counted off
  ++server.open_;
}

Server::Client::~Client() {
  exchange.reset();
  server.received_ -= held;
  std::lock_guard lock(server.mutex_);
  --server.open_;
  const auto peer = server.peers_.find(connection.peer());
  if (--peer->second == 0) server.peers_.erase(peer);
}

void Server::Client::enter(State next) {
  const ServerOptions& options = server.options_;
  state = next;
  since = Clock::now();
  deadline = since + (next == State::kIdle   ? options.idle_timeout
                      : next == State::kHead ? options.head_timeout
                      : next == State::kBody ? options.body_timeout
                                             : kLinger);
}

// Reads what has come, without waiting, up to the end of a request.
Server::Next Server::advance(Client& client) {
  for (int blocks = 0;; ++blocks) {
    try {
      if (client.state == Client::State::kLinger) client.unread.clear();
      if (!client.unread.empty() && client.state == Client::State::kIdle) client.enter(Client::State::kHead);
      if (client.state == Client::State::kHead) begin(client);
      if (client.exchange && (client.exchange->refusal || take_body(client))) return Next::kServe;
      if (blocks == kBlocks) return Next::kWait;
      const Connection::Received received = client.connection.receive(client.unread);
      if (received == Connection::Received::kNothing) return Next::kWait;
      if (received == Connection::Received::kEnd) {
        if (client.state != Client::State::kBody) return Next::kEnd;
        throw HttpError(400, "the body ends early");
      }
      account(client);
    } catch (const HttpError& e) {
      fail(client, e);
      return Next::kServe;
    }
  }
}

// What the client has sent and is not answered counts against the memory for all.
void Server::account(Client& client) {
  const std::size_t now = client.unread.size() + (client.exchange ? client.exchange->body.size() : 0);
  received_ += now - client.held;
  const bool grows = now > client.held;
  client.held = now;
  if (grows && received_ > options_.bodies_memory)
    throw as_http_error(Error(Code::kUnavailable, "too many long requests at once; try again later"));
}

// The request's answer is `error`, and the connection's last: how it goes on is not known.
void Server::fail(Client& client, const HttpError& error) {
  if (!client.exchange) client.exchange.emplace(client.connection, client.since);
  client.exchange->refusal = error_response(error);
  client.exchange->must_close = true;
}

void Server::refuse(Client& client, const HttpError& error) {
  fail(client, error);
  serve(client);
}

// Makes an exchange once the head is whole.
void Server::begin(Client& client) {
  std::string& unread = client.unread;
  std::size_t blank = 0;  // lines, left over by sloppy clients
  while (unread.compare(blank, 2, "\r\n") == 0) blank += 2;
  unread.erase(0, blank);
  if (!unread.empty() && unread != "\r" && !std::isalpha(static_cast<unsigned char>(unread[0])))
    throw HttpError(400, std::string("this is not HTTP; the server speaks HTTP/1.1") +
                             (options_.tls ? "" : ", without TLS"));
  const std::size_t strict = unread.find("\r\n\r\n");
  const std::size_t loose = std::string_view(unread).substr(0, strict).find("\n\n");
  if (loose < strict) throw HttpError(400, "a header line does not end with CR LF");
  if (std::min(unread.find('\n'), unread.size()) > options_.head.target + 64)
    throw HttpError(414,
                    "the request's target is longer than " + std::to_string(options_.head.target) + " bytes");
  if (unread.size() > options_.head.bytes && strict > options_.head.bytes)
    throw HttpError(
        431, "the request's headers are longer than " + std::to_string(options_.head.bytes) + " bytes");
  if (strict == std::string::npos) return;
  client.exchange.emplace(client.connection, client.since);
  Exchange& exchange = *client.exchange;
  exchange.head = parse_head(std::string_view(unread).substr(0, strict + 4), options_.head);
  unread.erase(0, strict + 4);
  client.enter(Client::State::kBody);
  exchange.path = exchange.head.path();
  const std::string& wish = exchange.head.request_id;
  if (is_sane_id(wish)) exchange.id = wish;
  if (exchange.head.trace) exchange.log.emplace_back("trace_id", exchange.head.trace->trace_id);
  try {
    Response response = admit(exchange);
    if (response.status != 0) exchange.refusal = std::move(response);
  } catch (const HttpError& e) {
    exchange.refusal = error_response(e);
  }
  const bool has_body = exchange.head.has_body();
  if (exchange.refusal || exchange.match.route->method != "POST") {
    exchange.must_close = exchange.must_close || has_body;  // which nobody reads
    exchange.head.content_length = -1, exchange.head.chunked = false;
  } else if (has_body) {
    if (exchange.head.chunked) exchange.chunks.emplace(options_.body);
    if (exchange.head.expects_continue) exchange.connection.send("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

// The whole answer where no handler is asked; status 0: one is.
Response Server::admit(Exchange& exchange) {
  const Head& head = exchange.head;
  check_names(options_.policy, head);
  exchange.match = router_.find(head.method, exchange.path);
  const Route* route = exchange.match.route;
  Response response;
  response.status = 204;
  if (is_preflight(head)) return response;  // which carries no key
  {
    std::lock_guard lock(mutex_);
    exchange.keys = keys_;
  }
  if (!(route && route->is_public) && !exchange.keys->empty()) {
    const ApiKey* key = exchange.keys->find(head.authorization);
    if (!key)
      throw HttpError(401,
                      head.authorization.empty() ? "an API key is needed: Authorization: Bearer KEY"
                                                 : "the API key is not right",
                      "", "invalid_api_key")
          .with("WWW-Authenticate", "Bearer");
    exchange.log.emplace_back("key", key->name);
    if (route && route->method == "POST") {
      key->usage->begin(key->name, key->limits);
      exchange.key = key;
    }
  }
  if (exchange.match.allowed.empty()) {
    const std::string meant = router_.meant_by(exchange.path);
    throw HttpError(
        404,
        "there is no " + escaped(exchange.path) + " here; " +
            (meant.empty() ? "the API is OpenAI's, below /v1; " : "did you mean " + meant + "? ") +
            "/openapi.json lists what is",
        "", "unknown_url");
  }
  if (head.method == "OPTIONS") {
    response.headers.emplace_back("Allow", exchange.match.allowed + ", OPTIONS");
    return response;
  }
  if (!route)
    throw HttpError(405, escaped(exchange.path) + " does not answer the method " + escaped(head.method, 40),
                    "", "method_not_allowed")
        .with("Allow", exchange.match.allowed);
  response.status = 0;
  if (route->method != "POST") return response;
  if (head.has_body() && !is_json(head.content_type))
    throw HttpError(415,
                    "the body must be JSON: say Content-Type: application/json (curl -d does not by itself; "
                    "add -H 'Content-Type: application/json')");
  if (!head.content_encoding.empty() && head.content_encoding != "identity")
    throw HttpError(415, "the body's Content-Encoding is not supported; send it as it is");
  if (head.content_length > static_cast<int64_t>(options_.body))
    throw HttpError(413, "the body is longer than " + std::to_string(options_.body) + " bytes");
  return response;
}

// Whether the body is whole.
bool Server::take_body(Client& client) {
  Exchange& exchange = *client.exchange;
  std::size_t taken = 0;
  if (exchange.chunks) {
    taken = exchange.chunks->feed(client.unread, exchange.body);
  } else if (exchange.head.content_length > 0) {
    const auto length = static_cast<std::size_t>(exchange.head.content_length);
    taken = std::min(length - exchange.body.size(), client.unread.size());
    exchange.body.append(client.unread, 0, taken);
  }
  client.unread.erase(0, taken);
  if (exchange.chunks) return exchange.chunks->done();
  return static_cast<int64_t>(exchange.body.size()) >= exchange.head.content_length;
}

// What the thread that holds the connections answers itself: refusals, and whether the server is well.
bool Server::is_quick(const Client& client) const {
  const Exchange& exchange = *client.exchange;
  return exchange.refusal || (exchange.match.route->is_public && exchange.match.route->is_probe);
}

void Server::serve(Client& client) {
  Exchange& exchange = *client.exchange;
  if (exchange.id.empty()) exchange.id = new_id();
  const int64_t sent_before = client.connection.bytes_sent();
  if (!exchange.refusal) {
    std::lock_guard lock(mutex_);
    serving_[&client] = exchange.head.method + " " + exchange.path + " " + exchange.id;
  }
  answer(exchange, exchange.refusal ? std::move(*exchange.refusal) : run_handler(exchange));
  const std::chrono::duration<double> time = Clock::now() - exchange.start;
  events_.served({exchange.id, client.connection.peer(), exchange.head.method, exchange.path,
                  exchange.route(), exchange.status, client.connection.bytes_sent() - sent_before,
                  time.count(), exchange.log, exchange.match.route && exchange.match.route->is_probe});
  if (exchange.must_close) client.connection.end_sending();
  client.enter(exchange.must_close ? Client::State::kLinger : Client::State::kIdle);
  client.exchange.reset();
  if (client.held > kLargeBody) ::malloc_trim(0);
  received_ -= client.held;
  client.held = client.unread.size();
  received_ += client.held;
  {
    std::lock_guard lock(mutex_);
    serving_.erase(&client);
  }
  idle_.notify_all();
}

Response Server::run_handler(Exchange& exchange) {
  const auto gone = [&exchange] {  // an interim answer is none within the answer, and HTTP/1.0 knows none
    return exchange.connection.is_gone(exchange.status == 0 && !exchange.head.http_1_0);
  };
  Request request{exchange.head.method,
                  exchange.path,
                  exchange.id,
                  exchange.match.captures,
                  std::move(exchange.body),
                  gone,
                  exchange.key ? exchange.key->usage->id : 0,
                  exchange.key ? exchange.key->digest : "",
                  exchange.head.query(),
                  exchange.head.trace};
  exchange.told = request.log;
  try {
    return exchange.match.route->handler(request);
  } catch (const HttpError& e) {
    exchange.must_close = exchange.must_close || e.status == kClientClosedRequest;
    return error_response(e);
  } catch (const std::exception&) {
    return error_response(failure_of_request(exchange.id));
  }
}

void Server::answer(Exchange& exchange, Response response) {
  const auto note = [&] {  // of streams only the end says how much it was
    if (exchange.told) exchange.log.insert(exchange.log.end(), exchange.told->begin(), exchange.told->end());
    exchange.settle();
  };
  if (!response.stream) note();  // who has the answer may ask again at once
  const bool is_chunked = response.stream && !exchange.head.http_1_0;
  // A stream of HTTP/1.0 ends with its connection. Who may not be idle is told so: its next request would meet the end.
  exchange.must_close = exchange.must_close || draining_ || !exchange.head.keep_alive ||
                        options_.idle_timeout == 0ms || (response.stream && !is_chunked);
  exchange.status = response.status;
  events_.answering(exchange.route(), response.status);
  std::string text =
      "HTTP/1.1 " + std::to_string(response.status) + " " + reason_of(response.status) + "\r\n";
  for (auto& header : cors_headers(options_.policy, exchange.head))
    response.headers.push_back(std::move(header));
  if (exchange.must_close)
    response.headers.emplace_back("Connection", "close");
  else if (exchange.head.http_1_0)
    response.headers.emplace_back("Connection", "keep-alive");
  response.headers.emplace_back("Date", date_now());
  response.headers.emplace_back("x-request-id", exchange.id);
  if (response.status != 204) {
    response.headers.emplace_back("Content-Type", response.content_type);
    if (is_chunked) response.headers.emplace_back("Transfer-Encoding", "chunked");
    if (!response.stream)
      response.headers.emplace_back("Content-Length", std::to_string(response.body.size()));
  }
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  text += "\r\n";
  if (exchange.head.method != "HEAD") text += response.body;
  Connection& connection = exchange.connection;
  const std::chrono::nanoseconds blocked_before = connection.blocked();
  bool alive = connection.send(text);
  if (response.stream) {
    response.stream([&](std::string_view piece) {
      if (!is_chunked) return alive = alive && connection.send(piece) && !connection.is_gone(false);
      char size[24];
      std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
      const std::string chunk = size + std::string(piece) + "\r\n";
      return alive = alive && connection.send(chunk) && !connection.is_gone(false);
    });
    note();
    if (alive && is_chunked) alive = connection.send("0\r\n\r\n");
  }
  if (response.sent) response.sent(connection.blocked() - blocked_before);
  exchange.must_close = exchange.must_close || !alive;
}

}  // namespace ark::http
