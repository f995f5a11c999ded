#include "server/frontend.h"

#include "server/api/chat.h"
#include "server/api/completions.h"
#include "server/api/health.h"
#include "server/api/metrics_route.h"
#include "server/api/models.h"
#include "server/api/openapi.h"
#include "server/api/tokenize.h"

namespace ark {
namespace {

constexpr std::size_t kSpareConnections = 128;  // beside those that wait for tokens: health, metrics, errors

http::ServerOptions server_options(const ServeOptions& options) {
  http::ServerOptions server;
  server.host = options.host;
  server.port = options.port;
  server.connections = static_cast<std::size_t>(options.max_queue) +
                       static_cast<std::size_t>(options.max_num_seqs) + kSpareConnections;
  return server;
}

http::ApiKeys keys_of(const ServeOptions& options) {
  return options.api_key_file.empty() ? http::ApiKeys() : http::ApiKeys::load(options.api_key_file);
}

}  // namespace

Frontend::Frontend(const ServeOptions& options, api::Service& service)
    : service_(service),
      server_(server_options(options), make_router(service, [this] { return server_.open_connections(); }),
              keys_of(options),
              {.answering = [&service](const std::string& route,
                                       int status) { service.metrics().count(route, status); },
               .served = log_served}) {}

void Frontend::start_draining() {
  service_.start_draining();
  server_.close_after_answer();
}

http::Router make_router(api::Service& service, std::function<std::size_t()> open_connections) {
  http::Router router;
  api::add_completions(router, service);
  api::add_chat(router, service);
  api::add_models(router, service);
  api::add_tokenize(router, service);
  api::add_health(router, service);
  api::add_metrics(router, service, std::move(open_connections));
  api::add_openapi(router, service);
  return router;
}

void log_served(const http::Served& served) {
  LogFields fields = {{"id", served.id},
                      {"peer", served.peer},
                      {"method", served.method},
                      {"path", served.path},
                      {"status", int64_t{served.status}},
                      {"seconds", served.seconds},
                      {"bytes", served.bytes}};
  fields.insert(fields.end(), served.details.begin(), served.details.end());
  log_line(served.status >= 500 ? LogLevel::kWarning : LogLevel::kInfo, "request", fields);
}

}  // namespace ark
