#include "server/frontend.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/api/endpoints.h"

namespace ark {
namespace {

constexpr std::size_t kSpareWorkers = 128;     // beside those that wait for tokens: metrics, errors
constexpr std::size_t kOtherDescriptors = 64;  // of the model, ranks and logs
constexpr std::size_t kFewestConnections = 16;
constexpr std::size_t kMostConnections = 4096;

// As many as there are descriptors for, of which the system allows us more than it gives at first.
std::size_t most_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewestConnections;
  const rlim_t wanted = kMostConnections + kOtherDescriptors;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur < kFewestConnections + kOtherDescriptors
             ? kFewestConnections
             : std::min<std::size_t>(kMostConnections, limit.rlim_cur - kOtherDescriptors);
}

http::TlsContext tls_of(const ServeOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty())
    throw Error(Code::kUsage, "--tls-cert and --tls-key are given together or not at all");
  return options.tls_cert.empty() ? nullptr : http::load_tls(options.tls_cert, options.tls_key);
}

void check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins)
    if (origin != "*" && !http::is_origin(origin))
      throw Error(Code::kUsage, "--cors-origins " + escaped(origin) +
                                    ": no browser sends that; an origin is like https://app.example:8443");
}

http::ServerOptions server_options(const ServeOptions& options) {
  check_origins(options.cors_origins);
  http::ServerOptions server;
  server.host = options.host;
  server.port = options.port;
  server.connections = most_connections();
  server.connections_per_peer = static_cast<std::size_t>(options.max_connections_per_peer);
  server.workers = static_cast<std::size_t>(options.max_queue) +
                   static_cast<std::size_t>(options.max_sequences) + kSpareWorkers;
  server.idle_timeout = std::chrono::milliseconds(std::llround(options.keep_alive_timeout * 1e3));
  server.policy.hosts = options.allowed_hosts;
  server.policy.origins = options.cors_origins;
  server.tls = tls_of(options);
  return server;
}

http::ApiKeys keys_of(const ServeOptions& options) {
  return options.api_key_file.empty() ? http::ApiKeys() : http::ApiKeys::load(options.api_key_file);
}

// Writes the request's line of the access log.
void log_served(const http::Served& served) {
  LogFields fields = {{"id", served.id},
                      {"peer", served.peer},
                      {"method", served.method},
                      {"path", served.path},
                      {"status", int64_t{served.status}},
                      {"seconds", served.seconds},
                      {"bytes", served.bytes}};
  fields.insert(fields.end(), served.details.begin(), served.details.end());
  // That it is not ready is what a probe asks for.
  const bool is_trouble = served.status >= 500 && !(served.is_probe && served.status == 503);
  const LogLevel level = is_trouble        ? LogLevel::kWarning
                         : served.is_probe ? LogLevel::kDebug
                                           : LogLevel::kInfo;
  log_line(level, "request", fields);
}

}  // namespace

Frontend::Frontend(const ServeOptions& options, api::Service& service)
    : options_(options),
      service_(service),
      server_(server_options(options), api::make_router(service), keys_of(options),
              {.answering = [&service](const std::string& route,
                                       int status) { service.metrics().count(route, status); },
               .served = log_served}) {
  if (!server_.listener().is_loopback && options.api_key_file.empty() && !options.insecure)
    throw Error(Code::kUsage,
                "--host " + escaped(options.host) +
                    " lets other machines use the server without a key; give --api-key-file, or "
                    "--insecure where that is meant");
  service_.may_debug = server_.listener().is_loopback || !options.api_key_file.empty();
  service_.open_connections = [this] { return server_.open_connections(); };
  server_.start();
}

std::string Frontend::url() const {
  const http::Listener& listener = server_.listener();
  return (options_.tls_cert.empty() ? "http://" : "https://") + listener.address + ":" +
         std::to_string(listener.port);
}

std::string Frontend::local_url() const {
  std::string text = url();
  for (const auto& [any, local] : {std::pair("//0.0.0.0:", "//127.0.0.1:"), {"//[::]:", "//[::1]:"}})
    if (const std::size_t at = text.find(any); at != std::string::npos)
      text.replace(at, std::string_view(any).size(), local);
  return text;
}

void Frontend::reload() {
  try {
    server_.replace(keys_of(options_), tls_of(options_));
  } catch (const std::exception&) {  // of memory, too: the next signal may find some
    log_line(LogLevel::kError, "keys and certificate stay as they were",
             {{"why", std::string(current_error().what())}});
    return;
  }
  log_line(LogLevel::kInfo, "keys and certificate are read again");
}

void Frontend::start_draining() {
  service_.start_draining();
  server_.close_after_answer();
}

}  // namespace ark
