// The options of ark-serve: command line, environment (ARK_SERVE_*), defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "server/load/load_runner.h"

namespace ark {

class CommandLine;

// What a server does for prompts: computes those of others, has its own computed, or neither.
enum class Role : uint8_t { kBoth, kPrefill, kDecode };

struct ServeOptions : LoadOptions {
  std::string variant;  // of several files in the folder: "q4" for model_q4.onnx
  // What requests may call it; the first is what answers say. None: the file's stem.
  std::vector<std::string> served_model_names;
  std::string host = "127.0.0.1";
  int32_t port = 8000;  // 0: any free one
  // Whether the model runs in a process of its own: only of programs that can be one (run_model_process).
  bool supervise = false, no_supervise = true;
  int32_t max_restarts = 5;  // of that process, within a minute
  int32_t max_queue = 256;   // requests that wait; more are answered with 429
  bool no_prefix_cache = false;
  double slo_itl = 0;   // milliseconds between a stream's tokens; 0: by what steps take, -1: any
  double slo_ttft = 0;  // milliseconds until a first token; 0: any
  double energy_weight = 0;
  bool shortest_first = true;
  bool speculate = true;
  std::filesystem::path draft_model;  // a smaller one that guesses, or empty
  WeightPolicy draft_weights = WeightPolicy::kExact;
  std::string kv_listen;              // "host:port", where other servers ask for pages; empty: nowhere
  std::vector<std::string> kv_peers;  // such places of others
  Role role = Role::kBoth;
  std::filesystem::path api_key_file;
  bool insecure = false;                   // without keys, for other machines too
  std::vector<std::string> allowed_hosts;  // names of this server, beside the loopback's
  std::vector<std::string> cors_origins;   // of pages that may read answers; "*": all
  std::filesystem::path tls_cert, tls_key;
  int32_t max_connections_per_peer = 0;  // 0: 256, and any number from this machine
  double keep_alive_timeout = 75;        // seconds
  double shutdown_timeout = 30;          // seconds
  std::filesystem::path trace_dir;       // of files about slow requests; empty: none
  double trace_slower_than = 1000;       // milliseconds
  std::string otlp_endpoint;             // empty: none
  LogLevel log_level = LogLevel::kInfo;  // lines below it are left out
  std::filesystem::path log_file;        // empty: standard error
  bool check = false;                    // load everything, report, exit

  bool shares_pages() const { return !kv_listen.empty() || !kv_peers.empty(); }
  bool wants_supervisor() const { return !check && !no_supervise && (supervise || processes); }
};

// `options` outlives the parsing.
void add_serve_options(CommandLine& line, ServeOptions& options);
// Which file, for all programs that load one: the model as `names`, "model" or "model,--model", and --variant.
void add_model_options(CommandLine& line, ServeOptions& options, const std::string& names = "model");

// What is up to the scheduler, whatever the model.
void add_policy_options(CommandLine& line, ServeOptions& options);

// What is up to the CPU's loop.
void add_core_options(CommandLine& line, LoadOptions& options);

// For programs that may run as ranks of several machines.
void add_cluster_options(CommandLine& line, LoadOptions& options);

// What a run of a graph may cost that is no recognised decoder.
void add_run_limits(CommandLine& line, RunLimits& limits);

// Where what a start makes is kept for the next one. `by_default`: whether it is, unless asked for.
void add_cache_options(CommandLine& line, LoadOptions& options, bool by_default);

// "512M", "1.5GiB", "1048576" -> bytes. Suffixes k, M, G, T, all powers of 1024, with or without iB or B.
// Throws Error(kUsage).
int64_t parse_bytes(const std::string& text);

}  // namespace ark
