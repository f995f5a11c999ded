#include "server/tools/bench/options.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ark::bench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMany = 1 << 24;

void require(bool good, const std::string& text, const std::string& wanted) {
  if (!good) throw Error(Code::kUsage, "'" + escaped(text, 40) + "' is not " + wanted);
}

void check_metric(const std::string& name) {
  const bool known = name == "ttft" || name == "tpot" || name == "itl" || name == "e2el";
  require(known, name, "one of ttft, tpot, itl, e2el");
}

// Of texts that are what they are called.
std::vector<std::pair<std::string, std::string>> names(std::initializer_list<const char*> all) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const char* name : all) pairs.emplace_back(name, name);
  return pairs;
}

void add_server(CommandLine& line, ServeOptions& o) {
  line.choice("--backend", o.backend, names({"openai", "vllm", "openai-chat"}),
              "openai and vllm: completions; openai-chat: chat completions");
  line.text("--base-url", o.base_url, "the server as http://HOST:PORT; otherwise --host and --port");
  line.text("--host", o.host, "host of the server");
  line.number("--port", o.port, 1, 65535, "port of the server");
  line.text("--endpoint", o.endpoint, "default: /v1/completions or /v1/chat/completions");
  line.text("--model", o.model, "name of the model; default: the first that the server lists");
  line.text("--served-model-name", o.served_model_name, "name in requests, if it differs from --model");
  line.text("--tokenizer", o.tokenizer, "tokenizer.json, or the folder that holds it");
  line.read_each(
      "--header", [&o](const std::string& text) { o.headers.push_back(pair_of(text, '=')); },
      "KEY=VALUE headers of each request; OPENAI_API_KEY becomes Authorization");
  line.number("--ready-check-timeout-sec", o.ready_timeout, 0, 86400,
              "seconds to wait until the server answers");
}

void add_dataset(CommandLine& line, DatasetOptions& d) {
  line.choice("--dataset-name", d.name, names({"random", "sonnet", "sharegpt", "custom"}),
              "random, sonnet (lines of a text), sharegpt or custom (jsonl)");
  line.text("--dataset-path", d.path, "file of sonnet, sharegpt and custom");
  line.flag("--disable-shuffle{false}", d.shuffle, "take the dataset in its own order");
  line.number("--random-input-len,--input-len", d.random_input, 1, kMany,
              "tokens of a random prompt after the prefix");
  line.number("--random-output-len,--output-len", d.random_output, 1, kMany, "tokens that are asked for");
  line.number("--random-prefix-len", d.random_prefix, 0, kMany, "tokens that all random prompts begin with");
  line.number("--random-range-ratio", d.random_range_ratio, 0, 0.999, "lengths vary by this share both ways");
  line.number("--sonnet-input-len", d.sonnet_input, 1, kMany, "tokens of a prompt");
  line.number("--sonnet-output-len", d.sonnet_output, 1, kMany, "tokens that are asked for");
  line.number("--sonnet-prefix-len", d.sonnet_prefix, 0, kMany, "tokens that all prompts share");
  line.number("--sharegpt-output-len", d.sharegpt_output, 0, kMany,
              "tokens asked for; 0: the answer's length");
  line.number("--custom-output-len", d.custom_output, 1, kMany,
              "tokens asked for where a line has no output_tokens");
}

void add_sampling(CommandLine& line, ServeOptions& o) {
  for (const char* name : {"temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty",
                           "repetition_penalty", "top_k"}) {
    std::string option = "--" + std::string(name);
    std::replace(option.begin(), option.end(), '_', '-');
    const auto set = [&o, name](const std::string& text) {
      const double value = number_of(text, -1e9, 1e9);
      o.sampling[name] = std::string_view(name) == "top_k" ? Json(std::llround(value)) : Json(value);
    };
    line.read(option, set, std::string(name) + " of each request");
  }
  line.flag("--ignore-eos", o.ignore_eos, "ask the server to go on after the end of the text");
  line.read(
      "--extra-body",
      [&o](const std::string& text) {
        o.extra_body = parse_json_or_discard(text);
        require(o.extra_body.is_object(), text, "a JSON object");
      },
      "JSON object whose fields are set in each request");
}

void add_traffic(CommandLine& line, ServeOptions& o) {
  line.number("--num-prompts", o.prompts, 1, kMany, "requests");
  line.number("--seed", o.seed, 0, std::numeric_limits<uint64_t>::max(), "of prompts and arrival times");
  line.read(
      "--request-rate",
      [&o](const std::string& text) {
        const double rate = number_of(text, 0, kInfinity);
        require(rate > 0, text, "a positive number or inf");
        o.request_rate = std::isinf(rate) ? 0 : rate;
      },
      "requests a second", "inf");
  line.number("--burstiness", o.burstiness, 1e-3, 1e6,
              "1: Poisson process; less: more bursts; more: more even");
  line.number("--max-concurrency", o.max_concurrency, 0, 1 << 16, "requests in flight at most; 0: no limit");
  line.number("--num-warmups", o.warmups, 0, 1 << 20, "requests before those that are measured");
}

void add_result(CommandLine& line, ServeOptions& o) {
  line.read(
      "--percentile-metrics",
      [&o](const std::string& text) {
        o.percentile_metrics = words_of(text);
        std::ranges::for_each(o.percentile_metrics, check_metric);
      },
      "which of ttft, tpot, itl, e2el are reported", "ttft,tpot,itl");
  line.read(
      "--metric-percentiles",
      [&o](const std::string& text) {
        o.percentiles.clear();
        for (const std::string& word : words_of(text)) o.percentiles.push_back(number_of(word, 0, 100));
      },
      "percentiles of these metrics", "99");
  line.read_each(
      "--goodput",
      [&o](const std::string& text) {
        const auto [name, limit] = pair_of(text, ':');
        check_metric(name);
        require(name != "itl", text, "ttft:MS, tpot:MS or e2el:MS");
        o.goodput.emplace_back(name, number_of(limit, 0, kInfinity));
      },
      "ttft:MS, tpot:MS, e2el:MS: requests within all of these are counted");
  line.flag("--save-result", o.save_result, "write the result as JSON");
  line.flag("--save-detailed", o.save_detailed, "with each request's times and text");
  line.flag("--append-result", o.append_result, "append to the file instead of replacing it");
  line.text("--result-dir", o.result_dir, "folder of the result");
  line.text("--result-filename", o.result_filename, "default: LABEL-RATEqps-concurrencyN-MODEL-DATE.json");
  line.text("--label", o.label, "label of the result; default: the backend");
  line.read_each(
      "--metadata", [&o](const std::string& text) { o.metadata.push_back(pair_of(text, '=')); },
      "KEY=VALUE fields of the result");
  line.flag("--disable-tqdm", o.quiet, "no progress on standard error");
  line.flag("--json", o.json, "print the result as one JSON line instead of a table");
}

}  // namespace

void add_options(CommandLine& line, ServeOptions& options) {
  add_server(line, options);
  add_dataset(line, options.dataset);
  add_sampling(line, options);
  add_traffic(line, options);
  add_result(line, options);
}

}  // namespace ark::bench
