#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "base/energy.h"
#include "base/error.h"
#include "base/index.h"
#include "engine/compile.h"
#include "server/command_line.h"
#include "server/config.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"
#include "server/tools/sequences.h"
#include "server/tools/step_profile.h"

namespace ark {
namespace {

using Clock = std::chrono::steady_clock;

struct ModelBench {
  ServeOptions load;
  std::vector<int32_t> batches = {1}, prefills = {128};
  int32_t context = 128, repeats = 20;
  bool json = false, profile = false;
  std::string trace;  // file for the loop's timeline, or empty
};

// "VmRSS" or "VmHWM" of /proc/self/status, in MiB.
double memory_mb(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  return 0;
}

// The loop's last steps for ui.perfetto.dev, and the phases that waited longest, to stderr. Returns all phases.
Json save_timeline(RaggedRunner& runner, const std::string& file) {
  const Timeline timeline = runner.timeline();
  std::ofstream out(file);
  out << perfetto_json(timeline);
  if (!out.flush()) throw Error(Code::kOs, "cannot write " + escaped(file));
  std::vector<PhaseTimes> times = phase_times(timeline);
  Json phases = Json::array();
  for (const PhaseTimes& t : times)
    phases.push_back({{"phase", timeline.phases[0][at(t.phase)]},
                      {"number", t.phase},
                      {"wait_us", t.wait_us},
                      {"run_us", t.run_us},
                      {"publish_us", t.publish_us},
                      {"span_us", t.span_us}});
  std::sort(times.begin(), times.end(),
            [](const auto& a, const auto& b) { return a.wait_us * a.instances > b.wait_us * b.instances; });
  times.resize(std::min<std::size_t>(times.size(), 12));
  for (const PhaseTimes& t : times) {
    char text[96];
    std::snprintf(text, sizeof text, "waits %8.2f us, runs %8.2f us, publishes %6.2f us: ", t.wait_us,
                  t.run_us, t.publish_us);
    std::cerr << text << escaped(timeline.phases[0][t.phase]) << '\n';
  }
  return phases;
}

// Steps of one kind.
struct Steps {
  int64_t tokens, rows, count;
};

// What is measured. `loop`: the same runner, null where it is none; `rate`: bytes a second that it may read, 0 where no
// profile is wanted.
struct Subject {
  StepRunner& runner;
  RaggedRunner* loop;
  double rate;
};

// Where the time of steps went, as JSON and as text.
void add_profile(Json& result, const std::string& what, const Subject& of, const Steps& steps) {
  const auto phases =
      step_profile(of.loop->timeline(), of.loop->program(), steps.count,
                   {{"tokens", steps.tokens}, {"rows", steps.rows}, {"items", 0}, {"pages", 0}});
  Json& list = result["profile"][what] = Json::array();
  for (const PhaseProfile& p : phases)
    list.push_back({{"phase", p.name},
                    {"code", p.code},
                    {"times", p.times},
                    {"run_ms", p.run_ms},
                    {"wait_ms", p.wait_ms},
                    {"weight_bytes", p.weight_bytes},
                    {"operations", p.operations}});
  result["read_rate"] = of.rate;
  char head[96];
  std::snprintf(head, sizeof head, "\n%s: a step, reading at %.1f GB/s at the most\n", what.c_str(),
                of.rate / 1e9);
  std::cerr << head << profile_text(phases, of.rate);
}

// What only a GPU's loop has, so that no other device will do.
DeviceChoice device_choice(const ModelBench& bench) {
  DeviceChoice choice = bench.load.device;
  if (!bench.trace.empty() || bench.profile) choice.trace_events = 1 << 14;
  const char* option = choice.launch == LoopLaunch::kGraph ? "--launch graph"
                       : choice.processors > 0             ? "--processors"
                       : choice.groups > 0                 ? "--groups"
                                                           : nullptr;
  if (option == nullptr) return choice;
  if (choice.device == Device::kCpu)
    throw Error(Code::kUsage, std::string(option) +
                                  " is for the loop of a GPU alone; leave out --device cpu, or " + option);
  choice.device = Device::kCuda;
  return choice;
}

void add_prefill(Json& result, const ModelBench& bench, const Subject& of, int32_t tokens) {
  std::vector<double> times;
  for (int32_t i = 0; i < std::max(3, bench.repeats / 4); ++i)
    times.push_back(Sequences(of.runner, 1, tokens).prefill(tokens));
  result["prefill_ms"][std::to_string(tokens)] = median(times);
  if (bench.profile && tokens <= of.runner.limits().max_tokens)
    add_profile(result, "prefill " + std::to_string(tokens), of, {tokens, 1, std::ssize(times)});
}

void add_decode(Json& result, const ModelBench& bench, const Subject& of, EnergyMeter& energy,
                int32_t batch) {
  const std::string name = std::to_string(batch);
  Sequences sequences(of.runner, batch, bench.context + bench.repeats + 4);
  sequences.prefill(bench.context);
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  const auto before = energy.joules();
  for (int32_t i = 0; i < bench.repeats + 2; ++i) times.push_back(sequences.decode());
  if (const auto after = energy.joules(); before && after) {
    const double joules = *after - *before;
    result["decode_joules"][name] = joules / (static_cast<double>(times.size()) * batch);
    result["decode_watts"][name] = joules * 1000 / milliseconds_since(begin);
  }
  times.erase(times.begin(), times.begin() + 2);
  result["decode_ms"][name] = median(times);
  result["sent_bytes"][name] = {{"data", sequences.sent().data}, {"zeros", sequences.sent().zeros}};
  result["reduced"][name] = {{"pump", sequences.reduced().by_pump},
                             {"processors", sequences.reduced().by_processors}};
  if (bench.profile) add_profile(result, "decode " + name, of, {batch, batch, std::ssize(times)});
}

Json measure(const ModelBench& bench) {
  ServeOptions options = bench.load;
  options.device = device_choice(bench);
  options.max_sequences = *std::ranges::max_element(bench.batches);
  options.max_length = std::max(*std::ranges::max_element(bench.prefills), bench.context + bench.repeats + 4);
  if (!bench.trace.empty() && !std::ofstream(bench.trace))
    throw Error(Code::kOs, "--trace: cannot write " + escaped(bench.trace));
  StageLog log([](const std::string& line) { std::cerr << line << '\n'; });
  const Clock::time_point start = Clock::now();
  const LoadedRunner loaded = load_runner(load_options(options), log);
  StepRunner& runner = *loaded.runner;
  auto* const loop = dynamic_cast<RaggedRunner*>(&runner);
  if ((!bench.trace.empty() || bench.profile) && !loop)
    throw Error(Code::kUnsupported, "--trace, --profile: a model that is served plain runs in no loop");
  if (bench.profile && loop->device())
    throw Error(Code::kUnsupported, "--profile: a GPU's loop is shown by --trace; or give --device cpu");
  const double rate = bench.profile ? read_rate(std::max(1, options.threads)) : 0;
  EnergyMeter energy;
  if (!energy.reason().empty()) std::cerr << "energy       not readable: " << energy.reason() << '\n';
  Json result;
  result["model"] = options.model.filename().string();
  result["load_ms"] = milliseconds_since(start);
  const double rss_loaded = memory_mb("VmRSS");
  Sequences(runner, 1, bench.context).prefill(bench.context);
  result["first_token_ms"] = milliseconds_since(start);
  const Subject subject{runner, loop, rate};
  for (const int32_t tokens : bench.prefills) add_prefill(result, bench, subject, tokens);
  for (const int32_t batch : bench.batches) add_decode(result, bench, subject, energy, batch);
  if (!bench.trace.empty()) result["trace"] = save_timeline(*loop, bench.trace);
  if (loop && loop->device()) result["launches"] = loop->device()->launches();
  result["rss_mb"] = {{"loaded", rss_loaded}, {"steady", memory_mb("VmRSS")}, {"peak", memory_mb("VmHWM")}};
  result["packed_mb"] = static_cast<double>(loaded.memory.weights) / (1 << 20);
  result["kv_mb"] = static_cast<double>(loaded.memory.pages) / (1 << 20);
  return result;
}

void print_table(const Json& result) {
  const auto line = [](const std::string& name, double value, const char* unit) {
    char text[96];
    std::snprintf(text, sizeof text, "%-24s %10.2f %s\n", name.c_str(), value, unit);
    print(text);
  };
  line("load", result.at("load_ms"), "ms");
  line("first token", result.at("first_token_ms"), "ms");
  for (const auto& [batch, ms] : result.at("decode_ms").items()) line("decode, batch " + batch, ms, "ms");
  for (const auto& [batch, sent] : result.at("sent_bytes").items()) {
    const int64_t data = sent.at("data"), zeros = sent.at("zeros");
    if (data + zeros > 0)
      print("sent, batch " + batch + ": " + std::to_string(data) + " bytes a step between ranks, " +
            std::to_string(data + zeros) + " with rows that are zeros\n");
    const int64_t pump = result.at("reduced").at(batch).at("pump"),
                  processors = result.at("reduced").at(batch).at("processors");
    if (pump + processors > 0)
      print("all-reduces, batch " + batch + ": " + std::to_string(pump) + " by pumps, " +
            std::to_string(processors) + " by processors\n");
  }
  if (result.contains("decode_joules"))
    for (const auto& [batch, joules] : result.at("decode_joules").items()) {
      line("energy, batch " + batch, joules, "J a token, of the whole machine");
      line("power, batch " + batch, result.at("decode_watts").at(batch), "W");
    }
  for (const auto& [tokens, ms] : result.at("prefill_ms").items())
    line("prefill, " + tokens + " tokens", ms, "ms");
  for (const auto& [when, mb] : result.at("rss_mb").items()) line("memory, " + when, mb, "MiB");
  line("packed weights", result.at("packed_mb"), "MiB");
  line("keys and values", result.at("kv_mb"), "MiB");
}

void run_bench(const ModelBench& bench) {
  const Json result = measure(bench);
  if (bench.json) return print(to_text(result) + "\n");
  print_table(result);
}

}  // namespace

void add_model_bench(CommandLine& line) {
  auto bench = std::make_shared<ModelBench>();
  bench->load.tp = 1;
  CommandLine command =
      line.command("model", "load time, prefill and decode speed, memory of one model, without HTTP",
                   [bench] { run_bench(*bench); });
  const auto numbers = [bench](std::vector<int32_t>& into) {
    return [bench, &into](const std::string& text) { into = numbers_of(text, 1, "positive number"); };
  };
  add_model_options(command, bench->load);
  command.require("model");
  command.read("--batch", numbers(bench->batches), "sequences that decode at once, comma-separated", "1");
  command.number("--context", bench->context, 1, 1 << 20, "tokens cached before decoding");
  command.read("--prefill", numbers(bench->prefills), "prompt lengths, comma-separated", "128");
  command.number("--threads", bench->load.threads, 0, 1024,
                 "threads of all ranks together (0: one per core)");
  add_core_options(command, bench->load);
  command.number("--tp", bench->load.tp, 1, kMaxRanks, "tensor-parallel ranks");
  command.number("--repeat", bench->repeats, 1, 100000, "decode steps that are timed");
  add_device_options(command, bench->load.device);
  add_cache_options(command, bench->load, false);
  bench->load.finishes_cache = true;
  command.choice<LoopLaunch>(
      "--launch", bench->load.device.launch,
      {{"loop", LoopLaunch::kLoop}, {"step", LoopLaunch::kStep}, {"graph", LoopLaunch::kGraph}},
      "loop stays while there are steps, step starts anew for each, graph does so by replaying a CUDA graph");
  command.number("--processors", bench->load.device.processors, 0, 1024,
                 "processors of a GPU that each rank takes (0: all, shared out)");
  command.number("--groups", bench->load.device.groups, 0, 64,
                 "tiles that share a matrix product's rows of weights, a power of two (0: chosen by cost)");
  command.text("--trace", bench->trace, "file for the timeline of the last steps (ui.perfetto.dev)");
  command.flag(
      "--profile", bench->profile,
      "time of each phase of these steps, with GB/s of weights and GFLOP/s, to stderr and into --json");
  command.flag("--json", bench->json, "one JSON line");
}

}  // namespace ark
