#include "server/config.h"

#include <cctype>
#include <cmath>
#include <map>

#include "base/disk_cache.h"
#include "base/error.h"
#include "dma/transports.h"
#include "engine/compile.h"
#include "server/command_line.h"

namespace ark {

int64_t parse_bytes(const std::string& text) {
  const auto bad = [&](const std::string& why) { throw Error(Code::kUsage, escaped(text, 40) + " " + why); };
  std::size_t end = 0;
  double value = 0;
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    bad("is no size; write bytes, or 512M, 1.5G");
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    bad("is no size; write bytes, or 512M, 1.5G");
  }
  std::string suffix = text.substr(end);
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static const std::map<std::string, int> kShifts = {
      {"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
      {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
  const auto shift = kShifts.find(suffix);
  if (shift == kShifts.end()) bad("has an unknown suffix; k, M, G and T are known");
  value = std::ldexp(value, shift->second);
  if (!(value >= 0 && value < 9e15)) bad("is out of range");
  return static_cast<int64_t>(value);
}

namespace {

// "host:port", or "@name" on this machine, as dma::Socket takes it.
std::string address_from(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const bool is_tcp = colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
                      text.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                      text.size() - colon <= 6 && std::stoi(text.substr(colon + 1)) <= 65535;
  if (!is_tcp && (text.size() < 2 || text[0] != '@'))
    throw Error(Code::kUsage, escaped(text, 80) + " is no HOST:PORT");
  return text;
}

}  // namespace

void add_model_options(CommandLine& line, ServeOptions& options, const std::string& names) {
  line.file(names, options.model,
            "ONNX file, or a folder that holds one" +
                std::string(names == "model" ? "" : "; also without --model"));
  line.text("--variant", options.variant, "of several files in the folder: q4 for model_q4.onnx");
}

void add_cluster_options(CommandLine& line, LoadOptions& options) {
  line.file("--cluster-key-file", options.cluster_key_file,
            "file with the key that ranks on several machines prove to each other, the same on all "
            "(docs/cluster.md)");
  // Each rank's own, as it is for its machine; whether all ask for the same transport they compare.
  dma::TransportWish& wish = dma::transport_wish();
  line.read(
      "--transport", [&wish](const std::string& text) { wish.transport = dma::transport_named(text).name; },
      "what ranks exchange by, the same for all, instead of the fastest that connects them (docs/cluster.md)",
      wish.transport);
  line.text("--verbs-device", wish.port.device,
            "RDMA devices as NAME[:PORT], with commas between, of which ranks take theirs in turn");
  line.read(
      "--verbs-gid", [&wish](const std::string& text) { number_of(text, 0, 255), wish.port.gid = text; },
      "index of the RDMA port's address", wish.port.gid);
}

void add_run_limits(CommandLine& line, RunLimits& limits) {
  line.read(
      "--run-work",
      [&](const std::string& text) { limits.work = static_cast<int64_t>(number_of(text, 0, 9e9) * 1e9); },
      "billions of multiply-adds that one run of a graph may take that is no recognised decoder; 0: by its "
      "weights and inputs",
      "0");
  line.read(
      "--run-memory", [&](const std::string& text) { limits.bytes = parse_bytes(text); },
      "memory that such a run may hold beside weights and inputs, as 512M or 2G; 0: by these", "0");
}

void add_cache_options(CommandLine& line, LoadOptions& options, bool by_default) {
  line.file("--cache-dir", options.cache_dir,
            "folder where packed weights and compiled kernels are kept for the next start; default: "
            "ARK_CACHE_DIR, or ark/built in the user's cache");
  if (by_default) options.cache_size = DiskCache::kDefaultBytes;
  line.read(
      "--cache-size", [&](const std::string& text) { options.cache_size = parse_bytes(text); },
      "memory on disk that they take at most, as 512M or 20G; what was used longest ago goes first; 0: "
      "nothing is "
      "kept",
      by_default ? "8G" : "kernels only");
  line.flag("--no-cache", options.no_cache, "neither look there nor keep anything");
}

void add_core_options(CommandLine& line, LoadOptions& options) {
  line.choice<bool>(
      "--yield-cores", options.yields_cores, {{"on", true}, {"off", false}},
      "give up cores that other programs use, and take them back when they are free; answers stay "
      "the same");
}

void add_policy_options(CommandLine& line, ServeOptions& options) {
  line.number("--max-num-seqs", options.max_sequences, 1, 4096, "sequences that run at once");
  line.number("--max-num-batched-tokens", options.max_batched_tokens, 0, 1 << 20,
              "tokens of one step; 0: chosen");
  line.number("--max-queue", options.max_queue, 1, 1 << 16, "requests that wait; more get 429");
  line.flag("--no-prefix-cache", options.no_prefix_cache,
            "compute every prompt whole, also where another one began alike");
  line.number(
      "--slo-itl", options.slo_itl, -1, 1e6,
      "milliseconds between two tokens of a stream that prompts beside it may cause; 0: twice what they "
      "are without, -1: any");
  line.number(
      "--slo-ttft", options.slo_ttft, 0, 1e6,
      "milliseconds until a first token: prompts that can no longer be read so soon go behind those that "
      "can, and --energy-weight may take half of it to wait for other requests; 0: any, and it waits for "
      "none");
  line.choice<bool>("--prompt-order", options.shortest_first, {{"shortest", true}, {"arrival", false}},
                    "who is read first of those that wait");
}

void add_serve_options(CommandLine& line, ServeOptions& options) {
  add_model_options(line, options, "model,--model");
  line.require("--model");
  const auto names_into = [](std::vector<std::string>& into) {
    return [&into](const std::string& text) {
      for (std::string& word : words_of(text)) into.push_back(std::move(word));
    };
  };
  line.read_each(
      "--served-model-name", names_into(options.served_model_names),
      "names in requests, with commas between, the first of them in answers; default: the file's stem");
  line.text("--host", options.host, "address to listen on");
  line.number("--port", options.port, 0, 65535, "port to listen on; 0 picks a free one");
  line.number("--tp", options.tp, 0, kMaxRanks, "ranks that share each layer; 0: chosen");
  line.flag("--processes", options.processes, "each rank but the first is a process of its own");
  add_cluster_options(line, options);
  options.no_supervise = false;
  line.flag("--supervise", options.supervise,
            "the model runs in a process of its own, which is started again if it dies, and what it was at "
            "goes on; the default with --processes");
  line.flag("--no-supervise", options.no_supervise, "not even with --processes");
  line.number("--max-restarts", options.max_restarts, 0, 1000,
              "deaths of that process in a minute that do not end the server");
  add_device_options(line, options.device);
  line.number("--threads", options.threads, 0, 4096, "threads of all ranks together; 0: one per core");
  add_core_options(line, options);
  line.number("--max-model-len", options.max_length, 0, 1 << 20,
              "tokens of one sequence; 0: what the model allows, at most 131072");
  add_policy_options(line, options);
  line.number("--energy-weight", options.energy_weight, 0, 1,
              "0: every answer as soon as it can be; above: what joules count against time, as far as "
              "--slo-itl and --slo-ttft allow");
  line.choice<bool>(
      "--speculate", options.speculate, {{"ngram", true}, {"off", false}},
      "check guesses of several tokens in a step, from what the text and the request's prediction "
      "hold; answers stay the same");
  line.file(
      "--draft-model", options.draft_model,
      "a smaller model of the same tokens, on the CPU, that guesses what this one samples next; answers stay "
      "the same");
  add_weights_option(line, "--draft-weights", options.draft_weights, "as --weights, of the draft model");
  line.read(
      "--kv-memory", [&](const std::string& text) { options.kv_memory = parse_bytes(text); },
      "memory for cached keys and values, as 512M or 2G; 0: chosen", "0");
  line.read(
      "--kv-listen", [&](const std::string& text) { options.kv_listen = address_from(text); },
      "HOST:PORT where other servers of the same model may take pages of cached keys and values "
      "(docs/cluster.md)");
  line.read_each(
      "--kv-peers",
      [&](const std::string& text) {
        for (const std::string& word : words_of(text)) options.kv_peers.push_back(address_from(word));
      },
      "such places of other servers, with commas between: prompts that began alike there are not computed "
      "here");
  line.choice<Role>(
      "--role", options.role, {{"both", Role::kBoth}, {"prefill", Role::kPrefill}, {"decode", Role::kDecode}},
      "prefill: computes prompts for decode servers, whose --kv-peers it is; decode: has them computed");
  line.file("--plan", options.plan, "programs to run, as ark-inspect --stage program prints them");
  add_run_limits(line, options.run);
  add_cache_options(line, options, true);
  line.file("--api-key-file", options.api_key_file,
            "file with one API key a line: [NAME:]KEY [rpm=N] [tpm=N] [concurrency=N], requests and tokens a "
            "minute; needed for all but health; read again on SIGHUP");
  line.flag("--insecure", options.insecure, "serve other machines without keys");
  line.read_each(
      "--allowed-hosts", names_into(options.allowed_hosts),
      "names, with commas between, that requests may call this server by (Host, Origin), beside localhost, "
      "127.0.0.1 and [::1]; checked on loopback addresses, elsewhere if given");
  line.read_each(
      "--cors-origins", names_into(options.cors_origins),
      "pages in browsers that may use the server, as https://app.example, with commas between; * for all");
  line.file("--tls-cert", options.tls_cert,
            "certificate (PEM, with its chain), for HTTPS; read again on SIGHUP");
  line.file("--tls-key", options.tls_key, "the certificate's private key (PEM)");
  line.number("--max-connections-per-peer", options.max_connections_per_peer, 0, 1 << 16,
              "from one address; more get 503; 0: 256, and any number from this machine");
  line.number("--keep-alive-timeout", options.keep_alive_timeout, 0, 86400,
              "seconds that a connection may be idle between two requests; 0: each has one");
  line.number(
      "--shutdown-timeout", options.shutdown_timeout, 0, 86400,
      "seconds that requests in flight may take after SIGTERM; a second later the process ends in any case");
  line.file("--trace-dir", options.trace_dir,
            "folder for a file about each slow request, for ui.perfetto.dev: 200 files and 64 MiB at most");
  line.number("--trace-slower-than", options.trace_slower_than, 0, 1e9,
              "milliseconds from arrival to the last byte from which on a request is slow");
  line.text("--otlp-endpoint", options.otlp_endpoint,
            "OpenTelemetry collector that gets spans of requests, as http://127.0.0.1:4318");
  line.log_format();
  line.choice<LogLevel>("--log-level", options.log_level,
                        {{"debug", LogLevel::kDebug},
                         {"info", LogLevel::kInfo},
                         {"warning", LogLevel::kWarning},
                         {"error", LogLevel::kError}},
                        "of the log; debug: also requests for health and metrics");
  line.file("--log-file", options.log_file,
            "file that all of standard error goes to, opened anew on SIGHUP (docs/serving.md)");
  line.flag("--check", options.check, "load everything, say what was found, and exit");
}

}  // namespace ark
