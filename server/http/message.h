// A request and its answer as route handlers see them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace ark::http {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// Whose part the request is, by W3C's Trace Context: ids in lower-case hexadecimal, never zero.
struct TraceParent {
  std::string trace_id, parent_id;
  bool is_sampled = false;
};

struct Request {
  std::string method, path;           // path: percent-decoded, without query
  std::string id;                     // x-request-id: the client's own, or ours
  std::vector<std::string> captures;  // what the route's {...} stand for
  std::string body;
  std::function<bool()> client_gone;  // asks the socket; a few microseconds
  uint32_t client = 0;                // the API key's KeyUsage::id; 0: without a key
  std::string owner;                  // ApiKey::digest, likewise
  std::string query;                  // as it was sent, without its question mark
  std::optional<TraceParent> trace;
  // What the handler adds to the access log, and a key's tokens are counted by; also where it throws, or streams.
  std::shared_ptr<LogFields> log = std::make_shared<LogFields>();
};

// Sends a piece of the body. False: the client is gone, no use in going on.
using Writer = std::function<bool(std::string_view)>;

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HeaderList headers;
  std::function<void(const Writer&)> stream;  // instead of body; runs where the handler did
  // Called once the whole answer is sent, or the client gone; `blocked`: that the client did not read what was ready.
  std::function<void(std::chrono::nanoseconds blocked)> sent;
};

using Handler = std::function<Response(Request&)>;

// An answer that a handler throws. `param` is the request's field at fault, "" if none.
class HttpError : public std::exception {
 public:
  HttpError(int status, std::string message, std::string param = "", std::string code = "")
      : status(status), message(std::move(message)), param(std::move(param)), code(std::move(code)) {}
  const char* what() const noexcept override { return message.c_str(); }
  HttpError with(std::string header, std::string value) const {
    HttpError error = *this;
    error.headers.emplace_back(std::move(header), std::move(value));
    return error;
  }

  int status;
  std::string message, param, code;
  HeaderList headers;
};

// The client closed the connection before its answer was ready: "499" in logs, as nginx has it.
inline constexpr int kClientClosedRequest = 499;

}  // namespace ark::http
