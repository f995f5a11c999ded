// ark-bench plan: what a step would take and send, were the model split over many ranks.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/machine.h"
#include "server/command_line.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"
#include "server/tools/planner.h"

namespace ark {
namespace {

struct PlanBench : PlanOptions {
  std::vector<int32_t> checks;
  bool json = false;
};

void check(const PlanBench& bench) {
  if (bench.load.device.device == Device::kCuda)
    throw Error(Code::kUsage, "ark-bench plan measures a rank of CPU threads; leave out --device cuda");
  if (bench.ranks > bench.machine_ranks && bench.ranks % bench.machine_ranks != 0)
    throw Error(Code::kUsage, "--ranks " + std::to_string(bench.ranks) + " do not fill machines of " +
                                  std::to_string(bench.machine_ranks) + "; choose a multiple");
  for (const int32_t ranks : bench.checks)
    if (ranks > kMaxRanks)
      throw Error(Code::kUsage, "--check: ark runs " + std::to_string(kMaxRanks) +
                                    " ranks at the most, not " + std::to_string(ranks));
}

// A real run beside its prediction, all ranks on this machine.
struct Check {
  Planner::Row predicted;
  double measured_ms = 0;
  int64_t counted = 0;  // bytes
};

Check run_check(const PlanBench& bench, const Planner& planner, int32_t ranks, StageLog& log) {
  Check check{.predicted = planner.row(ranks, ranks)};
  const LoadedRunner loaded = load_runner(load_options(bench.loading(ranks)), log);
  SentBytes sent;
  check.measured_ms = undisturbed(decode_times(*loaded.runner, bench, &sent));
  check.counted = sent.data;
  return check;
}

Json json_of(const LinkRates& link) {
  return {{"latency_us", link.latency * 1e6}, {"gap_us", link.gap * 1e6}, {"gb_per_s", link.bandwidth / 1e9}};
}

Json json_of(const Planner::Row& row, const PlanBench& bench) {
  Json json = {{"ranks", row.ranks},
               {"machines", (row.ranks + bench.machine_ranks - 1) / bench.machine_ranks},
               {"step_ms", row.seconds * 1e3},
               {"compute_ms", row.plan.computing * 1e3},
               {"bytes", row.plan.bytes},
               {"bytes_between_machines", row.plan.bytes_between},
               {"weight_bytes", row.weights},
               {"inbox_bytes", row.inboxes}};
  if (row.formula) json["formula_ms"] = *row.formula * 1e3;
  return json;
}

Json measure(PlanBench& bench) {
  StageLog log([](const std::string& line) { std::cerr << line << '\n'; });
  Planner planner(bench, log);
  planner.measure(log);
  Json rows = Json::array(), limits = Json::array(), checks = Json::array();
  for (const int32_t ranks : planner.numbers())
    rows.push_back(json_of(planner.row(ranks, bench.machine_ranks), bench));
  for (const auto& [parts, limit] : planner.limits().limits)
    limits.push_back({{"parts", parts}, {"weights", limit.weights}, {"first", limit.name}});
  for (const int32_t ranks : bench.checks) {
    const Check check = run_check(bench, planner, ranks, log);
    checks.push_back({{"ranks", ranks},
                      {"predicted_ms", check.predicted.seconds * 1e3},
                      {"measured_ms", check.measured_ms},
                      {"predicted_bytes", check.predicted.plan.bytes},
                      {"counted_bytes", check.counted}});
  }
  return {{"model", bench.load.model.filename().string()},
          {"batch", bench.batch},
          {"context", bench.context},
          {"ranks_per_machine", bench.machine_ranks},
          {"threads_per_rank", bench.threads},
          {"cores", bench.cores},
          {"host_ms", planner.host() * 1e3},
          {"inside", json_of(planner.inside(std::min(bench.ranks, bench.machine_ranks)))},
          {"between", json_of(planner.between())},
          {"rows", rows},
          {"limits", limits},
          {"checks", checks}};
}

void print_link(const char* where, const Json& link) {
  char line[128];
  std::snprintf(line, sizeof line, "%-18s latency %.2f us, gap %.2f us, %.2f GB/s\n", where,
                link.at("latency_us").get<double>(), link.at("gap_us").get<double>(),
                link.at("gb_per_s").get<double>());
  print(line);
}

double percent(const Json& of, const Json& than) { return 100 * (of.get<double>() / than.get<double>() - 1); }

void print_rows(const Json& result) {
  print("ranks  machines    step ms  compute ms  bytes a step  between machines  weights MiB  inboxes MiB\n");
  char line[160];
  for (const Json& row : result.at("rows")) {
    const auto mebi = [&](const char* name) { return row.at(name).get<double>() / (1 << 20); };
    std::snprintf(line, sizeof line, "%5d  %8d  %9.3f  %10.3f  %12lld  %16lld  %11.2f  %11.2f\n",
                  row.at("ranks").get<int>(), row.at("machines").get<int>(), row.at("step_ms").get<double>(),
                  row.at("compute_ms").get<double>(), static_cast<long long>(row.at("bytes").get<int64_t>()),
                  static_cast<long long>(row.at("bytes_between_machines").get<int64_t>()),
                  mebi("weight_bytes"), mebi("inbox_bytes"));
    print(line);
  }
}

void print_formula(const Json& rows) {
  print("more than " + std::to_string(Planner::kEvents) +
        " ranks are reckoned by a formula; of fewer it differs from the events by");
  for (const Json& row : rows)
    if (row.contains("formula_ms")) {
      char text[48];
      std::snprintf(text, sizeof text, " %+.1f %% (%d)", percent(row.at("formula_ms"), row.at("step_ms")),
                    row.at("ranks").get<int>());
      print(text);
    }
  print("\n");
}

void print_text(const Json& result) {
  char line[192];
  std::snprintf(line, sizeof line,
                "decode of %d, %d tokens cached of each; a rank has %d threads, a machine %d ranks and %d "
                "cores\n",
                result.at("batch").get<int>(), result.at("context").get<int>(),
                result.at("threads_per_rank").get<int>(), result.at("ranks_per_machine").get<int>(),
                result.at("cores").get<int>());
  print(line);
  print_link("inside a machine", result.at("inside"));
  print_link("between machines", result.at("between"));
  print_rows(result);
  for (const Json& limit : result.at("limits")) {
    const int weights = limit.at("weights");
    print("no more than " + std::to_string(limit.at("parts").get<int64_t>()) +
          " parts: " + std::to_string(weights) + (weights == 1 ? " weight, " : " weights, as ") +
          escaped(limit.at("first").get<std::string>()) + "; other ranks have copies, or nothing of it\n");
  }
  if (result.at("rows").back().at("ranks").get<int>() > Planner::kEvents) print_formula(result.at("rows"));
  for (const Json& c : result.at("checks")) {
    std::snprintf(line, sizeof line,
                  "run here, %d ranks: %.3f ms predicted, %.3f ms measured (%+.1f %%); %lld bytes predicted, "
                  "%lld counted\n",
                  c.at("ranks").get<int>(), c.at("predicted_ms").get<double>(),
                  c.at("measured_ms").get<double>(), percent(c.at("predicted_ms"), c.at("measured_ms")),
                  static_cast<long long>(c.at("predicted_bytes").get<int64_t>()),
                  static_cast<long long>(c.at("counted_bytes").get<int64_t>()));
    print(line);
  }
}

void run(PlanBench& bench) {
  check(bench);
  if (bench.cores == 0) bench.cores = available_cpus();
  if (bench.threads == 0)
    bench.threads = std::max(1, bench.cores / std::min(bench.machine_ranks, bench.ranks));
  const Json result = measure(bench);
  if (bench.json) return print(to_text(result) + "\n");
  print_text(result);
}

void add_link_options(CommandLine& command, const std::string& before, GivenLink& link,
                      const std::string& where) {
  command.number("--" + before + "latency-us", link.latency_us, 0, 1e9,
                 "from the end of a message's sending to its arrival " + where + "; 0: measured");
  command.number("--" + before + "gap-us", link.gap_us, 0, 1e9,
                 "what a message takes its sender besides its bytes " + where + "; 0: measured");
  command.number("--" + before + "bandwidth-gbs", link.gigabytes, 0, 1e6,
                 "GB/s of one sender " + where + "; 0: measured");
}

}  // namespace

void add_plan_bench(CommandLine& line) {
  auto bench = std::make_shared<PlanBench>();
  bench->threads = bench->cores = 0;
  CommandLine command =
      line.command("plan", "what a step would take and send on up to 1024 ranks, from one rank measured here",
                   [bench] { run(*bench); });
  add_model_options(command, bench->load);
  command.require("model");
  command.number("--ranks", bench->ranks, 1, PlanOptions::kMost, "ranks, at the most");
  command.number("--ranks-per-machine", bench->machine_ranks, 1, PlanOptions::kMost, "ranks of a machine");
  command.number("--threads", bench->threads, 0, 1024,
                 "threads of a rank; 0: the cores of its machine shared out");
  command.number("--cores", bench->cores, 0, 1 << 16, "cores of a machine; 0: as this one");
  command.number("--batch", bench->batch, 1, 4096, "sequences that decode at once");
  command.number("--context", bench->context, 1, 1 << 20, "tokens cached of each");
  command.number("--repeat", bench->repeats, 1, 100000, "steps that are timed");
  add_link_options(command, "inside-", bench->inside, "inside a machine");
  add_link_options(command, "", bench->between, "between machines");
  command.read(
      "--check", [bench](const std::string& text) { bench->checks = numbers_of(text, 1, "number of ranks"); },
      "numbers of ranks, comma-separated, that are run here too, as threads: predicted and measured");
  add_device_options(command, bench->load.device);
  add_core_options(command, bench->load);
  command.flag("--json", bench->json, "one JSON line");
}

}  // namespace ark
