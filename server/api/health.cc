// GET /health, /v2/health/live, /v2/health/ready, /version.
#include "server/api/endpoints.h"
#include "server/api/schema.h"
#include "server/http/envelope.h"
#include "server/json.h"
#include "server/version.h"

namespace ark::api {
namespace {

// The error's envelope with what probes look for beside it.
http::Response state(const Service& service, const std::string& why_not) {
  if (why_not.empty()) return json_response({{"status", "ok"}});
  http::Response response = http::error_response(http::as_http_error(Error(Code::kUnavailable, why_not)));
  Json body = ark::parse_json(response.body);
  body["status"] = service.is_loading() ? "loading" : "unavailable";
  if (service.is_loading()) body["stage"] = service.stage();
  response.body = to_text(body);
  return response;
}

http::Response ready(Service& service, http::Request&) { return state(service, service.not_ready()); }
http::Response live(Service& service, http::Request&) { return state(service, service.failure()); }
http::Response version(Service&, http::Request&) { return json_response({{"version", kVersion}}); }

Json health_answer(const Limits&) { return object({{"status", type("string")}}, {"status"}); }
Json version_answer(const Limits&) { return object({{"version", type("string")}}, {"version"}); }

Endpoint probe(const char* path, const char* id, const char* summary,
               http::Response (*handle)(Service&, http::Request&)) {
  return {.method = "GET",
          .path = path,
          .id = id,
          .summary = summary,
          .handle = handle,
          .answer = {{"Health", health_answer}},
          .is_public = true,
          .is_probe = true};
}

}  // namespace

std::vector<Endpoint> health() {
  return {probe("/health", "health", "Whether requests are taken.", ready),
          probe("/v2/health/live", "live", "Whether the server works.", live),
          probe("/v2/health/ready", "ready", "Whether requests are taken.", ready),
          {"GET", "/version", "version", "The server's version.", version, {{"Version", version_answer}}}};
}

}  // namespace ark::api
