// The options of ark-bench serve: those of `vllm bench serve`, as far as they concern text generation.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/command_line.h"
#include "server/json.h"

namespace ark::bench {

struct DatasetOptions {
  std::string name = "random";  // random, sonnet, sharegpt, custom
  std::string path;
  int64_t random_input = 1024, random_output = 128, random_prefix = 0;
  double random_range_ratio = 0;  // lengths are uniform in [length * (1 - ratio), length * (1 + ratio)]
  int64_t sonnet_input = 550, sonnet_output = 150, sonnet_prefix = 200;
  int64_t sharegpt_output = 0;  // 0: as long as the data's own answer
  int64_t custom_output = 256;
  bool shuffle = true;
};

struct ServeOptions {
  // The server.
  std::string backend = "openai";  // openai, vllm: completions; openai-chat: chat completions
  std::string base_url, host = "127.0.0.1", endpoint, model, served_model_name, tokenizer;
  int32_t port = 8000;
  std::vector<std::pair<std::string, std::string>> headers;
  double ready_timeout = 0;  // seconds to wait until the server answers
  // The requests.
  DatasetOptions dataset;
  int64_t prompts = 1000;
  uint64_t seed = 0;
  bool ignore_eos = false;
  Json sampling = {{"temperature", 0.0}};  // fields of each request
  Json extra_body = Json::object();
  // Their timing.
  double request_rate = 0;      // requests a second; 0: all at once
  double burstiness = 1;        // shape of the gamma distribution of the gaps: 1 is a Poisson process
  int64_t max_concurrency = 0;  // 0: no limit
  int64_t warmups = 0;
  // The result.
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percentiles = {99};
  std::vector<std::pair<std::string, double>> goodput;  // metric, milliseconds it may take at most
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string label, result_dir, result_filename;
  bool save_result = false, save_detailed = false, append_result = false, quiet = false, json = false;

  bool chat() const { return backend == "openai-chat"; }
};

// `options` outlives the parsing.
void add_options(CommandLine& line, ServeOptions& options);

}  // namespace ark::bench
