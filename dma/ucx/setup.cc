#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "dma/blob.h"
#include "dma/plugin.h"
#include "dma/ucx/wire.h"

namespace ark::dma {
namespace {

[[noreturn]] void fail(const std::string& what, ucs_status_t why) {
  throw Error(Code::kUnavailable, "transport ucx: " + what + ": " + ucs_status_string(why));
}

std::shared_ptr<const UcxContext> open_context() {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    fail("UCX's variables", status);
  ucp_params_t parameters = {};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_AM;
  auto context = std::make_shared<UcxContext>();
  const ucs_status_t status = ucp_init(&parameters, config, &context->handle);
  ucp_config_release(config);
  if (status != UCS_OK) fail("UCX finds no network", status);
  return context;
}

std::unique_ptr<UcxWorker> open_worker() {
  auto worker = std::make_unique<UcxWorker>();
  worker->context = open_context();
  ucp_worker_params_t parameters = {};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // set-up, then the pump
  const ucs_status_t status = ucp_worker_create(worker->context->handle, &parameters, &worker->handle);
  if (status != UCS_OK) fail("UCX makes no worker", status);
  return worker;
}

std::string address_of(const UcxWorker& worker) {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker.handle, &address, &bytes); status != UCS_OK)
    fail("UCX has no address", status);
  std::string text(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker.handle, address);
  return text;
}

class UcxTransport final : public NumberedMemoryTransport {
 public:
  std::string_view name() const override { return "ucx"; }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    const auto ranks = static_cast<size_t>(bootstrap.size());
    std::unique_ptr<UcxWorker> worker;
    std::vector<UcxPeer> peers(ranks);
    BlobWriter hello;
    bootstrap.together(deadline, [&] {
      worker = open_worker();
      hello.text(address_of(*worker));
      for (UcxPeer& peer : peers) hello.number(peer.their_secret = random_word());
    });
    const std::vector<std::string> hellos = bootstrap.all_gather(hello.take(), deadline);
    std::unique_ptr<Wire> wire;
    bootstrap.together(deadline, [&] {
      for (size_t peer = 0; peer < ranks; ++peer) {
        BlobReader blob(hellos[peer], "rank " + std::to_string(peer) + ": its hello of transport ucx");
        peers[peer].address = blob.text();
        for (size_t rank = 0; rank < ranks; ++rank) {
          const auto secret = blob.number<uint64_t>();
          if (rank == static_cast<size_t>(map.rank)) peers[peer].our_secret = secret;
        }
        blob.end();
      }
      wire = make_ucx_wire(map, std::move(worker), std::move(peers), deadline);
    });
    return wire;
  }
};

decltype(&log_line) log_of_executable = nullptr;

// UCX writes to standard output otherwise.
ucs_log_func_rc_t on_log(const char*, unsigned, const char*, ucs_log_level_t level,
                         const ucs_log_component_config_t*, const char* format, va_list arguments) {
  char text[500];
  std::vsnprintf(text, sizeof text, format, arguments);
  // What UCX calls an error is often one way of several that does not work; what it means for ark is told by a fault.
  const LogLevel ours = level <= UCS_LOG_LEVEL_FATAL  ? LogLevel::kError
                        : level <= UCS_LOG_LEVEL_WARN ? LogLevel::kWarning
                                                      : LogLevel::kDebug;
  if (log_of_executable != nullptr) log_of_executable(ours, std::string("ucx: ") + text, {});
  return UCS_LOG_FUNC_RC_STOP;
}

// Once: signals are the executable's, and so is standard output.
void settle() {
  static const bool done = [] {
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    ucs_log_push_handler(on_log);
    return true;
  }();
  static_cast<void>(done);
}

std::string trouble(const PortWish&) {
  settle();
  try {
    open_context();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make(std::string_view, int, const PortWish&, decltype(&log_line) log) {
  settle();
  log_of_executable = log;
  return std::make_unique<UcxTransport>();
}

}  // namespace

const TransportPlugin* ark_transport_plugin() {
  static const TransportPlugin plugin = {ARK_VERSION, trouble, make};
  return &plugin;
}

}  // namespace ark::dma
