#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

#include "base/error.h"
#include "server/command_line.h"
#include "server/json.h"
#include "server/tools/bench/blame.h"
#include "server/tools/bench/prompts.h"
#include "server/tools/bench/report.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"

namespace ark {
namespace bench {
namespace {

// What `attempt` gives, which throws as long as the server does not answer: until --ready-check-timeout-sec is over.
template <typename Attempt>
auto until_ready(const ServeOptions& options, const Attempt& attempt) {
  const Clock::time_point give_up =
      Clock::now() + std::chrono::milliseconds(std::llround(options.ready_timeout * 1e3));
  for (;;) {
    try {
      return attempt();
    } catch (const Error&) {
      if (Clock::now() >= give_up) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
}

// A short request in each form that a server may know, the most telling first; the first that works.
RequestForm find_form(const ServeOptions& options, Prompt prompt, const std::string& model) {
  prompt.output_tokens = std::min<int64_t>(prompt.output_tokens, 2);
  std::vector<RequestForm> forms;
  for (const bool ids : {true, false})
    for (const bool usage : {true, false})
      if (!(ids && (options.chat() || prompt.ids.empty()))) forms.push_back({ids, usage});
  return until_ready(options, [&] {
    ApiClient client(options);
    std::string why;
    bool answered = false;
    for (const RequestForm form : forms) {
      const Outcome outcome = client.generate(prompt, model, form);
      if (outcome.ok) return form;
      if (why.empty() || !answered) why = outcome.error;
      answered |= outcome.status != 0;
      const bool refused_form = outcome.status == 400 || outcome.status == 422 || outcome.status == 500;
      if (!refused_form) break;
    }
    throw Error(Code::kUnavailable, "the first request failed: " + why);
  });
}

std::string model_name(const ServeOptions& options) {
  if (!options.model.empty()) return options.model;
  return until_ready(options, [&] { return ApiClient(options).first_model(); });
}

std::string rate_text(double rate) {
  if (rate == 0) return "inf";
  std::ostringstream text;
  text << rate;
  return text.str();
}

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

// What was measured, ahead of the figures.
Json setting(const ServeOptions& options, const std::string& model) {
  Json result;
  result["date"] = date_text();
  result["endpoint_type"] = result["backend"] = options.backend;
  result["label"] = options.label.empty() ? Json() : Json(options.label);
  result["model_id"] = model;
  result["tokenizer_id"] = options.tokenizer.empty() ? model : options.tokenizer;
  result["num_prompts"] = options.prompts;
  result["request_rate"] = options.request_rate == 0 ? Json("inf") : Json(options.request_rate);
  result["burstiness"] = options.burstiness;
  result["max_concurrency"] = options.max_concurrency > 0 ? Json(options.max_concurrency) : Json();
  for (const auto& [name, value] : options.metadata) result[name] = value;
  return result;
}

void save(const ServeOptions& options, const Json& result) {
  std::string name = options.result_filename;
  if (name.empty()) {
    const std::string model = result.at("model_id");
    name = (options.label.empty() ? options.backend : options.label) + "-" + rate_text(options.request_rate) +
           "qps" +
           (options.max_concurrency > 0 ? "-concurrency" + std::to_string(options.max_concurrency) : "") +
           "-" + model.substr(model.rfind('/') + 1) + "-" + result.at("date").get<std::string>() + ".json";
  }
  std::filesystem::path path = name;
  if (!options.result_dir.empty()) {
    std::filesystem::create_directories(options.result_dir);
    path = std::filesystem::path(options.result_dir) / name;
  }
  std::ofstream out(path, options.append_result ? std::ios::app : std::ios::trunc);
  if (options.append_result && out.tellp() > 0) out << '\n';
  out << to_text(result);
  if (!out.flush()) throw Error(Code::kOs, "cannot write " + escaped(path.string()));
}

std::function<void(std::size_t)> progress_of(const ServeOptions& options) {
  if (options.quiet) return [](std::size_t) {};
  return
      [next = Clock::now(), count = static_cast<std::size_t>(options.prompts)](std::size_t finished) mutable {
        if (Clock::now() < next && finished < count) return;
        next = Clock::now() + std::chrono::seconds(1);
        std::cerr << "\r" << finished << " of " << count << " requests" << (finished == count ? "\n" : "")
                  << std::flush;
      };
}

// Requests that are not measured: they fill the caches of the server.
void warm_up(const ServeOptions& options, const Prompt& prompt, const std::string& model, RequestForm form) {
  if (options.warmups == 0) return;
  ServeOptions all_at_once = options;
  all_at_once.request_rate = 0;
  run_traffic(all_at_once, std::vector<Prompt>(static_cast<std::size_t>(options.warmups), prompt), model,
              form, [](std::size_t) {});
}

void run(const ServeOptions& options) {
  const std::optional<text::Tokenizer> tokenizer = load_tokenizer(options);
  const text::Tokenizer* counts = tokenizer ? &*tokenizer : nullptr;
  const std::vector<Prompt> prompts = make_prompts(options, counts);
  const std::string model = model_name(options);
  const std::string& sent = options.served_model_name.empty() ? model : options.served_model_name;
  const RequestForm form = find_form(options, prompts[0], sent);
  warm_up(options, prompts[0], sent, form);
  const Traffic traffic = run_traffic(options, prompts, sent, form, progress_of(options));
  Json result = setting(options, model);
  const Json measured = figures(options, traffic, counts);
  result.update(measured);
  if (const Json blame = blame_of_p99(options, traffic); !blame.empty()) result["p99_blame"] = blame;
  if (options.save_result || options.save_detailed || options.append_result) save(options, result);
  print(options.json ? to_text(result) + "\n" : table(options, measured) + blame_table(result));
  const auto failed =
      std::find_if(traffic.outcomes.begin(), traffic.outcomes.end(), [](const Outcome& o) { return !o.ok; });
  if (failed != traffic.outcomes.end()) std::cerr << "a failed request: " << failed->error << '\n';
  if (measured.at("completed") == 0)
    throw Error(Code::kUnavailable, "no request succeeded: " + failed->error);
}

}  // namespace
}  // namespace bench

void add_serve_bench(CommandLine& line) {
  auto options = std::make_shared<bench::ServeOptions>();
  CommandLine command = line.command("serve", "latency and throughput of a server that speaks OpenAI's API",
                                     [options] { bench::run(*options); });
  bench::add_options(command, *options);
}

}  // namespace ark
