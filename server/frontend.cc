#include "server/frontend.h"

#include "server/api/endpoints.h"

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
      server_(server_options(options), api::make_router(service), keys_of(options),
              {.answering = [&service](const std::string& route,
                                       int status) { service.metrics().count(route, status); },
               .served = log_served}) {
  service.open_connections = [this] { return server_.open_connections(); };
}

void Frontend::start_draining() {
  service_.start_draining();
  server_.close_after_answer();
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
  const LogLevel level = served.status >= 500 ? LogLevel::kWarning
                         : served.is_probe    ? LogLevel::kDebug
                                              : LogLevel::kInfo;
  log_line(level, "request", fields);
}

}  // namespace ark
