#include "server/load/neighbours.h"

#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "dma/bootstrap/key.h"
#include "server/peers/page_fetcher.h"
#include "server/version.h"

namespace ark {
namespace {

std::string key_of(const ServeOptions& options) {
  return options.cluster_key_file.empty() ? "" : dma::read_cluster_key(options.cluster_key_file);
}

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::kUsage, why); }

void check_reach(const char* option, const std::string& address) {
  if (!dma::is_local(address))
    refuse(std::string(option) + " " + escaped(address) +
           " is beyond this machine: servers that others can reach need --cluster-key-file FILE, the same "
           "key for all");
}

}  // namespace

void check_neighbours(const ServeOptions& options) {
  if (options.role == Role::kPrefill && options.kv_listen.empty())
    refuse("--role prefill: nobody can ask it; give --kv-listen HOST:PORT");
  if (options.role == Role::kDecode && options.kv_peers.empty())
    refuse("--role decode: it has nobody to ask; give the prefill servers as --kv-peers HOST:PORT,...");
  if (!options.shares_pages()) return;
  if (options.no_prefix_cache)
    refuse("--kv-listen and --kv-peers share pages of the prefix cache; leave --no-prefix-cache out");
  if (options.wants_supervisor() || options.processes)
    refuse(
        "--kv-listen and --kv-peers: pages lie in the server's own process; leave --processes and "
        "--supervise out");
  if (!key_of(options).empty()) return;
  if (!options.kv_listen.empty()) check_reach("--kv-listen", options.kv_listen);
  for (const std::string& address : options.kv_peers) check_reach("--kv-peers", address);
}

void find_neighbours(const ServeOptions& options, const std::string& identity, ServedModel& model) {
  if (!options.shares_pages()) return;
  const peers::PageShape shape = peers::shape_of(*model.runner);
  Sha256 sum;
  for (const std::string& part : {std::string(kVersion), model.fingerprint, identity,
                                  std::to_string(shape.bytes), std::to_string(shape.tokens)})
    sum.add_field(part);
  model.page_identity = sum.hex();
  if (options.kv_peers.empty()) return;
  model.neighbours = std::make_shared<peers::PageFetcher>(
      peers::PageFetcherOptions{options.kv_peers, key_of(options), model.page_identity,
                                options.role == Role::kDecode},
      shape, model.page_traffic);
}

dma::Socket listen_for_neighbours(const ServeOptions& options) {
  return options.kv_listen.empty() ? dma::Socket() : dma::Socket::listen(options.kv_listen, "--kv-listen");
}

std::unique_ptr<peers::PageServer> serve_neighbours(const ServeOptions& options, dma::Socket listener,
                                                    const ServedModel& model,
                                                    schedule::Scheduler& scheduler) {
  if (!listener.is_open()) return nullptr;
  return std::make_unique<peers::PageServer>(
      std::move(listener),
      peers::PageServerOptions{key_of(options), model.page_identity, options.role == Role::kPrefill},
      scheduler, *model.runner, model.page_traffic);
}

}  // namespace ark
