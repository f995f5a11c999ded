#include "server/http/exchange.h"

#include <cstdio>
#include <random>
#include <utility>

#include "server/http/envelope.h"
#include "server/http/library.h"

namespace ark::http {
namespace {

std::string new_id() {
  std::random_device random;
  char text[32];
  std::snprintf(text, sizeof text, "req-%08x%08x%08x", random(), random(), random());
  return text;
}

bool library_knows(const std::string& method) {
  for (const char* known : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
    if (method == known) return true;
  return false;
}

const char* reason_of(int status) {  // of what answer_head() is used for
  switch (status) {
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

HttpError method_refused(const std::string& method, const std::string& path, const std::string& allowed) {
  HttpError error(405, escaped(path) + " does not answer the method " + escaped(method, 40), "",
                  "method_not_allowed");
  error.headers.emplace_back("Allow", allowed.empty() ? "GET, HEAD, POST, OPTIONS" : allowed);
  return error;
}

// What carries the library's request back to ours: Request::progress is of no use to servers.
template <typename Exchange>
struct Link {
  Exchange* exchange;
  bool operator()(uint64_t, uint64_t) const { return true; }
};

}  // namespace

void Server::set_up_library() {
  set_pre_routing_handler([this](const Raw& raw, httplib::Response& out) { return before_body(raw, out); });
  // Only what before_body let pass comes here: a known route that takes a body.
  Post(R"([\s\S]*)", [this](const Raw& raw, httplib::Response& out, const httplib::ContentReader& reader) {
    with_body(raw, out, reader);
  });
  set_error_handler(HandlerWithResponse([](const Raw&, httplib::Response& out) {
    if (!out.body.empty() || out.content_provider_) return HandlerResponse::Unhandled;
    out.set_content(envelope(out.status, "the request could not be read", "", ""), "application/json");
    return HandlerResponse::Handled;
  }));
  set_post_routing_handler([this](const Raw& raw, httplib::Response& out) {
    const Exchange& exchange = exchange_of(raw);
    out.headers.erase("Keep-Alive");
    out.headers.erase("Accept-Ranges");
    out.headers.erase("Connection");
    if (is_closing(exchange)) out.set_header("Connection", "close");
    out.set_header("x-request-id", exchange.id);
  });
}

Server::Exchange& Server::exchange_of(const Raw& raw) {
  const auto* link = raw.progress.target<Link<Exchange>>();
  ARK_CHECK(link, "the HTTP library refused a head that had been checked");
  return *link->exchange;
}

bool Server::is_closing(const Exchange& exchange) const {
  return exchange.must_close || draining_ || !exchange.head.keep_alive ||
         open_connections() > options_.connections / 4 * 3;  // idle ones would keep others out
}

bool Server::serve_one(Connection& connection) {
  Exchange exchange{connection};
  bool goes_on = false;
  try {
    exchange.head = connection.read_head();
    const std::string& wish = exchange.head.request_id;
    exchange.id = is_sane_id(wish) ? wish : new_id();
    exchange.path = exchange.head.target.substr(0, exchange.head.target.find('?'));
    if (!library_knows(exchange.head.method))
      throw method_refused(exchange.head.method, exchange.path, router_.find("", exchange.path).allowed);
    bool closed = false;
    goes_on = process_request(connection, false, closed,
                              [&](Raw& raw) { raw.progress = Link<Exchange>{&exchange}; });
    goes_on = goes_on && !closed && !is_closing(exchange);
  } catch (const HttpError& e) {
    if (e.status == kClientClosedRequest) return false;
    exchange.must_close = true;
    answer_head(exchange, error_response(e));
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - exchange.start;
  events_.served({exchange.id, connection.peer(), exchange.head.method, exchange.path, exchange.route(),
                  exchange.status, connection.bytes_written(), time.count(),
                  exchange.log ? *exchange.log : LogFields{},
                  exchange.match.route && exchange.match.route->is_probe});
  return goes_on;
}

void Server::set_status(Exchange& exchange, int status) {
  exchange.status = status;
  events_.answering(exchange.route(), status);
}

// Without the library: for requests that never reach it.
bool Server::answer_head(Exchange& exchange, Response response) {
  if (exchange.id.empty()) exchange.id = new_id();
  set_status(exchange, response.status);
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_of(response.status) +
                     "\r\nContent-Type: " + response.content_type +
                     "\r\nContent-Length: " + std::to_string(response.body.size()) +
                     "\r\nConnection: close\r\n";
  response.headers.emplace_back("x-request-id", exchange.id);
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  text += "\r\n";
  if (exchange.head.method != "HEAD") text += response.body;
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t n = exchange.connection.write(rest.data(), rest.size());
    if (n < 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

httplib::Server::HandlerResponse Server::before_body(const Raw& raw, httplib::Response& out) {
  Exchange& exchange = exchange_of(raw);
  Response response;
  try {
    response = route(exchange, raw.path);
    if (exchange.match.route && exchange.match.route->method == "POST" && response.status == 0)
      return HandlerResponse::Unhandled;
  } catch (const HttpError& e) {
    response = error_response(e);
  }
  exchange.must_close = exchange.must_close || exchange.head.has_body();  // which nobody reads
  give(exchange, std::move(response), out);
  return HandlerResponse::Handled;
}

// The whole answer where no body is needed; status 0: the route waits for its body.
Response Server::route(Exchange& exchange, const std::string& path) {
  exchange.path = path;
  exchange.match = router_.find(exchange.head.method, path);
  const Route* route = exchange.match.route;
  if (!(route && route->is_public) && !keys_.allow(exchange.head.authorization)) {
    HttpError error(401,
                    exchange.head.authorization.empty() ? "an API key is needed: Authorization: Bearer KEY"
                                                        : "the API key is not right",
                    "", "invalid_api_key");
    error.headers.emplace_back("WWW-Authenticate", "Bearer");
    throw error;
  }
  if (exchange.match.allowed.empty())
    throw HttpError(404, "there is no " + escaped(path) + " here; /openapi.json lists what is", "",
                    "unknown_url");
  if (exchange.head.method == "OPTIONS") {
    Response response;
    response.status = 204;
    response.headers.emplace_back("Allow", exchange.match.allowed + ", OPTIONS");
    return response;
  }
  if (!route) throw method_refused(exchange.head.method, path, exchange.match.allowed);
  if (route->method != "POST") return run_handler(exchange, "");
  if (exchange.head.content_type.starts_with("multipart/"))
    throw HttpError(415, "the body must be JSON (Content-Type: application/json), not multipart");
  if (!exchange.head.content_encoding.empty() && exchange.head.content_encoding != "identity")
    throw HttpError(415, "the body's Content-Encoding is not supported; send it as it is");
  if (exchange.head.content_length > static_cast<int64_t>(options_.limits.body))
    throw HttpError(413, "the body is longer than " + std::to_string(options_.limits.body) + " bytes");
  Response none;
  none.status = 0;
  return none;
}

void Server::with_body(const Raw& raw, httplib::Response& out, const httplib::ContentReader& reader) {
  Exchange& exchange = exchange_of(raw);
  Response response;
  try {
    BodyShare share(bodies_);
    std::string body = read_body(exchange, reader, share);
    response = run_handler(exchange, std::move(body));
  } catch (const HttpError& e) {
    exchange.must_close = true;
    response = error_response(e);
  }
  give(exchange, std::move(response), out);
}

std::string Server::read_body(Exchange& exchange, const httplib::ContentReader& reader, BodyShare& share) {
  std::string body;
  if (!exchange.head.has_body()) return body;
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  if (exchange.head.expects_continue) exchange.connection.write(kContinue.data(), kContinue.size());
  int status = 0;
  const bool complete = reader([&](const char* data, std::size_t size) {
    if (body.size() + size > options_.limits.body) status = 413;
    if (bodies_ + size > options_.bodies_memory) status = 503;
    if (status) return false;
    share.grow(size);
    body.append(data, size);
    return true;
  });
  if (complete) return body;
  if (status == 413)
    throw HttpError(413, "the body is longer than " + std::to_string(options_.limits.body) + " bytes");
  if (status == 503)
    throw as_http_error(Error(Code::kUnavailable, "too many long requests at once; try again later"));
  if (exchange.connection.timed_out())
    throw HttpError(408, "the body did not arrive within " +
                             std::to_string(options_.limits.body_timeout.count()) + " ms");
  throw HttpError(400, "the body ends early or its chunks are malformed");
}

Response Server::run_handler(Exchange& exchange, std::string body) {
  Connection& connection = exchange.connection;
  Request request{exchange.head.method,    exchange.path,   exchange.id,
                  exchange.match.captures, std::move(body), [&connection] { return connection.is_gone(); }};
  try {
    return exchange.match.route->handler(request);
  } catch (const HttpError& e) {
    return error_response(e);
  } catch (const Error& e) {
    if (e.code() == Code::kInternal)
      log_line(LogLevel::kError, "a request failed", {{"id", exchange.id}, {"why", std::string(e.what())}});
    return error_response(as_http_error(e));
  } catch (const std::bad_alloc&) {
    return error_response(
        as_http_error(Error(Code::kUnavailable, "the server is short of memory; try again later")));
  } catch (const std::exception& e) {
    log_line(LogLevel::kError, "a request failed", {{"id", exchange.id}, {"why", std::string(e.what())}});
    return error_response(
        HttpError(500, "internal error; the server's log has the request id", "", "internal_error"));
  }
}

void Server::give(Exchange& exchange, Response response, httplib::Response& out) {
  set_status(exchange, response.status);
  exchange.log = response.log;
  out.status = response.status;
  for (auto& [name, value] : response.headers) out.set_header(name, value);
  if (!response.stream) {
    if (response.status != 204) out.set_content(response.body, response.content_type);
    return;
  }
  auto provider = [&exchange, stream = std::move(response.stream)](std::size_t, httplib::DataSink& sink) {
    bool alive = true;
    stream([&](std::string_view piece) {
      return alive = alive && sink.write(piece.data(), piece.size()) && !exchange.connection.is_gone();
    });
    if (alive) sink.done();
    exchange.must_close = exchange.must_close || !alive;
    return alive;
  };
  if (exchange.head.http_1_0) {
    exchange.must_close = true;  // the end of the connection ends the body
    out.set_content_provider(response.content_type, std::move(provider));
  } else {
    out.set_chunked_content_provider(response.content_type, std::move(provider));
  }
}

}  // namespace ark::http
