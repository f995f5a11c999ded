// ark-bench schedule: a trace of requests, scheduled as ark-serve would, in virtual time.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "server/command_line.h"
#include "server/config.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"
#include "server/tools/simulation.h"

namespace ark {
namespace {

constexpr std::size_t kMostOfTrace = std::size_t{1} << 30;  // of a trace

struct ScheduleBench {
  ServeOptions load;
  std::string trace, steps, save_steps;
  Goals goals;
  bool json = false;
};

// Of "ttft:500" or "itl:60", milliseconds.
void read_goal(Goals& goals, const std::string& text) {
  const auto [name, limit] = pair_of(text, ':');
  if (name != "ttft" && name != "itl")
    throw Error(Code::kUsage, "'" + escaped(text, 40) + "' is not ttft:MS or itl:MS");
  (name == "ttft" ? goals.first : goals.next) = number_of(limit, 1e-6, 1e9) / 1e3;
}

MeasuredModel model_of(ScheduleBench& bench) {
  if (bench.steps.empty() == bench.load.model.empty())
    throw Error(Code::kUsage,
                "give either --model, whose steps are measured, or --steps, a file of measured ones");
  if (!bench.steps.empty()) {
    try {
      return measured_model(parse_json(read_file_of("--steps", bench.steps, kMostOfTrace)), bench.steps);
    } catch (const JsonError& e) {
      throw Error(Code::kUsage, "--steps " + escaped(bench.steps) + ": " + e.what());
    }
  }
  StageLog log([](const std::string& line) { std::cerr << line << '\n'; });
  const LoadedRunner loaded = load_runner(load_options(bench.load), log);
  return measured_model(to_json(measure_steps(*loaded.runner)), "the measured steps");  // as they are saved
}

void save(const std::string& file, const MeasuredModel& model) {
  std::ofstream out(file);
  out << to_text(to_json(model)) << '\n';
  if (!out.flush()) throw Error(Code::kOs, "cannot write " + escaped(file));
}

std::string table(const Json& result, double real_seconds) {
  std::string text;
  char line[128];
  const auto add = [&](const char* name, double value, const char* unit) {
    std::snprintf(line, sizeof line, "%-28s %12.2f %s\n", name, value, unit);
    text += line;
  };
  const auto number = [&](const std::string& name) { return result.at(name).get<double>(); };
  add("virtual time", number("duration"), "s");
  add("real time", real_seconds, "s");
  add("requests that completed", number("completed"), "");
  add("requests that were refused", number("failed"), "");
  add("requests a second", number("request_throughput"), "");
  add("output tokens a second", number("output_throughput"), "");
  add("prompt tokens, cached", number("cached_input_tokens"), "");
  if (result.contains("request_goodput")) {
    add("good requests a second", number("request_goodput"), "");
    add("requests that began too late", number("late_requests"), "");
    add("requests that paused too long", number("slow_requests"), "");
  }
  add("preemptions", number("preemptions"), "");
  for (const auto& [title, name] : {std::pair("time to first token", "ttft"),
                                    std::pair("between tokens", "itl"), std::pair("whole request", "e2el")}) {
    const std::string end = std::string("_") + name + "_ms";
    std::snprintf(line, sizeof line, "%-28s %12.2f %12.2f %12.2f %12.2f ms: median, p90, p99, worst\n", title,
                  number("median" + end), number("p90" + end), number("p99" + end), number("max" + end));
    text += line;
  }
  text += "the requests' time:";
  for (const auto& [cause, share] : result.at("causes").items()) {
    std::snprintf(line, sizeof line, " %s %.1f%%", cause.c_str(), share.get<double>() * 100);
    text += line;
  }
  return text + "\n";
}

void run(ScheduleBench& bench) {
  const std::vector<TracedRequest> trace =
      read_trace(read_file_of("TRACE", bench.trace, kMostOfTrace), bench.trace);
  const MeasuredModel model = model_of(bench);
  if (!bench.save_steps.empty()) save(bench.save_steps, model);
  const auto start = std::chrono::steady_clock::now();
  const Json result = to_json(simulate(trace, model, scheduling(bench.load), bench.goals));
  const double real = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(bench.json ? to_text(result) + "\n" : table(result, real));
}

}  // namespace

void add_schedule_bench(CommandLine& line) {
  auto bench = std::make_shared<ScheduleBench>();
  CommandLine command = line.command(
      "schedule", "what a trace of requests would come to, by the scheduler's policies in virtual time",
      [bench] { run(*bench); });
  command.text("trace", bench->trace,
               "file with a JSON object a line: at (seconds), prompt_tokens, output_tokens; group, "
               "shared_tokens, client");
  command.require("trace");
  command.file("--model", bench->load.model, "whose steps are measured, which takes some seconds");
  command.text("--steps", bench->steps, "file of measured steps, as --save-steps writes it");
  command.text("--save-steps", bench->save_steps, "file for the measured steps");
  add_policy_options(command, bench->load);
  command.read_each(
      "--goodput", [bench](const std::string& text) { read_goal(bench->goals, text); },
      "ttft:MS, itl:MS: requests are counted whose first token and longest pause between two reach these");
  command.number("--threads", bench->load.threads, 0, 4096, "threads of all ranks together; 0: one per core");
  command.number("--tp", bench->load.tp, 0, 64, "ranks that share each layer; 0: chosen");
  command.flag("--json", bench->json, "one JSON line");
}

}  // namespace ark
