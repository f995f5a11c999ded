#include "server/tools/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <sstream>

#include "server/json.h"

namespace ark::bench {
namespace {

using Strings = std::vector<std::string>;

const Strings kMetrics = {"ttft", "tpot", "itl", "e2el"};

void require(bool good, const std::string& option, const std::string& text, const std::string& wanted) {
  if (!good) throw CLI::ValidationError(option, "'" + text + "' is not " + wanted);
}

double number(const std::string& option, const std::string& text, const std::string& wanted) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  require(!text.empty() && *end == 0 && !std::isnan(value), option, text, wanted);
  return value;
}

// "name=value" or "name:value".
std::pair<std::string, std::string> pair(const std::string& option, const std::string& text, char between) {
  const std::size_t at = text.find(between);
  require(at != std::string::npos && at > 0, option, text, std::string("NAME") + between + "VALUE");
  return {text.substr(0, at), text.substr(at + 1)};
}

Strings split(const std::string& text) {
  Strings words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

void check_metric(const std::string& option, const std::string& name) {
  require(std::find(kMetrics.begin(), kMetrics.end(), name) != kMetrics.end(), option, name,
          "one of ttft, tpot, itl, e2el");
}

void add_server(CLI::App& app, ServeOptions& o) {
  app.add_option("--backend", o.backend, "openai and vllm: completions; openai-chat: chat completions")
      ->check(CLI::IsMember({"openai", "vllm", "openai-chat"}))
      ->capture_default_str();
  app.add_option("--base-url", o.base_url, "the server as http://HOST:PORT; otherwise --host and --port");
  app.add_option("--host", o.host, "host of the server")->capture_default_str();
  app.add_option("--port", o.port, "port of the server")->check(CLI::Range(1, 65535))->capture_default_str();
  app.add_option("--endpoint", o.endpoint, "default: /v1/completions or /v1/chat/completions");
  app.add_option("--model", o.model, "name of the model; default: the first that the server lists");
  app.add_option("--served-model-name", o.served_model_name, "name in requests, if it differs from --model");
  app.add_option("--tokenizer", o.tokenizer, "tokenizer.json, or the folder that holds it")
      ->check(CLI::ExistingPath);
  app.add_option_function<Strings>(
      "--header",
      [&o](const Strings& all) {
        for (const std::string& text : all) o.headers.push_back(pair("--header", text, '='));
      },
      "KEY=VALUE headers of each request; OPENAI_API_KEY becomes Authorization");
  app.add_option("--ready-check-timeout-sec", o.ready_timeout, "seconds to wait until the server answers")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

void add_dataset(CLI::App& app, DatasetOptions& d) {
  const auto length = [&app](const std::string& name, int64_t& into, int64_t least, const char* help) {
    app.add_option(name, into, help)->check(CLI::Range(least, int64_t{1} << 24))->capture_default_str();
  };
  app.add_option("--dataset-name", d.name, "random, sonnet (lines of a text), sharegpt or custom (jsonl)")
      ->check(CLI::IsMember({"random", "sonnet", "sharegpt", "custom"}))
      ->capture_default_str();
  app.add_option("--dataset-path", d.path, "file of sonnet, sharegpt and custom")->check(CLI::ExistingFile);
  app.add_flag("--disable-shuffle{false}", d.shuffle, "take the dataset in its own order");
  length("--random-input-len,--input-len", d.random_input, 1, "tokens of a random prompt after the prefix");
  length("--random-output-len,--output-len", d.random_output, 1, "tokens that are asked for");
  length("--random-prefix-len", d.random_prefix, 0, "tokens that all random prompts begin with");
  app.add_option("--random-range-ratio", d.random_range_ratio, "lengths vary by this share both ways")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  length("--sonnet-input-len", d.sonnet_input, 1, "tokens of a prompt");
  length("--sonnet-output-len", d.sonnet_output, 1, "tokens that are asked for");
  length("--sonnet-prefix-len", d.sonnet_prefix, 0, "tokens that all prompts share");
  length("--sharegpt-output-len", d.sharegpt_output, 1, "tokens asked for; default: the answer's length");
  length("--custom-output-len", d.custom_output, 1, "tokens asked for where a line has no output_tokens");
}

void add_sampling(CLI::App& app, ServeOptions& o) {
  for (const char* name : {"temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty",
                           "repetition_penalty", "top_k"}) {
    std::string option = "--" + std::string(name);
    std::replace(option.begin(), option.end(), '_', '-');
    app.add_option_function<double>(
        option,
        [&o, name](double value) {
          if (std::string_view(name) == "top_k")
            o.sampling[name] = static_cast<int64_t>(value);
          else
            o.sampling[name] = value;
        },
        std::string(name) + " of each request");
  }
  app.add_flag("--ignore-eos", o.ignore_eos, "ask the server to go on after the end of the text");
  app.add_option_function<std::string>(
      "--extra-body",
      [&o](const std::string& text) {
        o.extra_body = parse_json_or_discard(text);
        require(o.extra_body.is_object(), "--extra-body", text, "a JSON object");
      },
      "JSON object whose fields are set in each request");
}

void add_traffic(CLI::App& app, ServeOptions& o) {
  app.add_option("--num-prompts", o.prompts, "requests")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of prompts and arrival times")->capture_default_str();
  app.add_option_function<std::string>(
         "--request-rate",
         [&o](const std::string& text) {
           const double rate = number("--request-rate", text, "a positive number or inf");
           require(rate > 0, "--request-rate", text, "a positive number or inf");
           o.request_rate = std::isinf(rate) ? 0 : rate;
         },
         "requests a second")
      ->default_str("inf");
  app.add_option("--burstiness", o.burstiness, "1: Poisson process; less: more bursts; more: more even")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  app.add_option("--max-concurrency", o.max_concurrency, "requests in flight at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  app.add_option("--num-warmups", o.warmups, "requests before those that are measured")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
}

void add_result(CLI::App& app, ServeOptions& o) {
  app.add_option_function<std::string>(
         "--percentile-metrics",
         [&o](const std::string& text) {
           o.percentile_metrics = split(text);
           for (const std::string& name : o.percentile_metrics) check_metric("--percentile-metrics", name);
         },
         "which of ttft, tpot, itl, e2el are reported")
      ->default_str("ttft,tpot,itl");
  app.add_option_function<std::string>(
         "--metric-percentiles",
         [&o](const std::string& text) {
           o.percentiles.clear();
           for (const std::string& word : split(text)) {
             o.percentiles.push_back(number("--metric-percentiles", word, "a number from 0 to 100"));
             require(o.percentiles.back() >= 0 && o.percentiles.back() <= 100, "--metric-percentiles", word,
                     "a number from 0 to 100");
           }
         },
         "percentiles of these metrics")
      ->default_str("99");
  app.add_option_function<Strings>(
      "--goodput",
      [&o](const Strings& all) {
        for (const std::string& text : all) {
          const auto [name, limit] = pair("--goodput", text, ':');
          check_metric("--goodput", name);
          require(name != "itl", "--goodput", text, "ttft:MS, tpot:MS or e2el:MS");
          o.goodput.emplace_back(name, number("--goodput", limit, "a number of milliseconds"));
        }
      },
      "ttft:MS, tpot:MS, e2el:MS: requests within all of these are counted");
  app.add_flag("--save-result", o.save_result, "write the result as JSON");
  app.add_flag("--save-detailed", o.save_detailed, "with each request's times and text");
  app.add_flag("--append-result", o.append_result, "append to the file instead of replacing it");
  app.add_option("--result-dir", o.result_dir, "folder of the result");
  app.add_option("--result-filename", o.result_filename,
                 "default: LABEL-RATEqps-concurrencyN-MODEL-DATE.json");
  app.add_option("--label", o.label, "label of the result; default: the backend");
  app.add_option_function<Strings>(
      "--metadata",
      [&o](const Strings& all) {
        for (const std::string& text : all) o.metadata.push_back(pair("--metadata", text, '='));
      },
      "KEY=VALUE fields of the result");
  app.add_flag("--disable-tqdm", o.quiet, "no progress on standard error");
  app.add_flag("--json", o.json, "print the result as one JSON line instead of a table");
}

}  // namespace

void add_options(CLI::App& app, ServeOptions& options) {
  add_server(app, options);
  add_dataset(app, options.dataset);
  add_sampling(app, options);
  add_traffic(app, options);
  add_result(app, options);
}

}  // namespace ark::bench
