#include "server/http/envelope.h"

#include <new>

#include "base/log.h"

namespace ark::http {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string quoted_or_null(const std::string& text) { return text.empty() ? "null" : json_quoted(text); }

}  // namespace

std::string envelope(int status, const std::string& message, const std::string& param,
                     const std::string& code) {
  return "{\"error\":{\"message\":" + json_quoted(message) + ",\"type\":\"" + type_of(status) +
         "\",\"param\":" + quoted_or_null(param) + ",\"code\":" + quoted_or_null(code) + "}}";
}

Response error_response(const HttpError& error) {
  Response response;
  response.status = error.status;
  response.headers = error.headers;
  response.body = envelope(error.status, error.message, error.param, error.code);
  return response;
}

HttpError as_http_error(const Error& error) {
  const auto with = [&](int status, const char* code) { return HttpError(status, error.what(), "", code); };
  switch (error.code()) {
    case Code::kUsage:
    case Code::kUnsupported:
    case Code::kInvalidArgument:
      return with(400, "");
    case Code::kNotFound:
      return with(404, "not_found");
    case Code::kExhausted:
      return with(429, "rate_limit_exceeded").with("Retry-After", "1");
    case Code::kUnavailable:
      return with(503, "service_unavailable").with("Retry-After", "5");
    case Code::kBadModel:  // it computes what nobody can use
      return with(500, "model_error");
    case Code::kInternal:
    case Code::kOs:
      break;
  }
  return with(500, "internal_error");
}

HttpError failure_of_request(const std::string& id) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return as_http_error(Error(Code::kUnavailable, "the server is short of memory; try again later"));
  } catch (const std::exception&) {
    const Error error = current_error();
    if (error.code() != Code::kInternal) return as_http_error(error);
    log_line(LogLevel::kError, "a request failed", {{"id", id}, {"why", std::string(error.what())}});
    return HttpError(500, "internal error; the server's log has the request id", "", "internal_error");
  }
}

}  // namespace ark::http
