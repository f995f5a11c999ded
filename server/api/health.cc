#include "server/api/health.h"

#include "server/http/envelope.h"

namespace ark::api {
namespace {

http::Response state(const std::string& why_not) {
  if (!why_not.empty()) return http::error_response(http::as_http_error(Error(Code::kUnavailable, why_not)));
  http::Response response;
  response.body = R"({"status":"ok"})";
  return response;
}

}  // namespace

void add_health(http::Router& router, Service& service) {
  const auto ready = [&service](http::Request&) { return state(service.not_ready()); };
  const auto live = [&service](http::Request&) { return state(service.failure()); };
  router.add({"GET", "/health", ready, true});
  router.add({"GET", "/v2/health/live", live, true});
  router.add({"GET", "/v2/health/ready", ready, true});
  router.add({"GET", "/version", [](http::Request&) {
                http::Response response;
                response.body = to_text({{"version", kVersion}});
                return response;
              }});
}

}  // namespace ark::api
