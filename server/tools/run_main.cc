// ark-run MODEL: runs data sets, inputs from .npy files, a whole suite, or a prompt.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <set>

#include "base/error.h"
#include "engine/compile.h"
#include "server/load/load.h"
#include "server/load/model_file.h"
#include "server/tools/main_guard.h"
#include "server/tools/run_prompt.h"
#include "server/tools/run_suite.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string suite;
  std::vector<std::string> test_data, inputs;
  tools::SuiteOptions run;
  tools::PromptOptions prompt;  // and which model

  fs::path onnx() const { return find_model(prompt.load.model, prompt.load.variant).onnx; }
};

void report(const fs::path& set, const tools::SetResult& result) {
  const char* const words[] = {"PASS", "FAIL", "UNSUPPORTED"};
  print(std::string(words[static_cast<int>(result.verdict)]) + " " + set.string() +
        (result.reason.empty() ? "" : " " + result.reason) + "\n");
}

int run_data_sets(const Options& options) {
  const std::vector<fs::path> sets(options.test_data.begin(), options.test_data.end());
  const tools::SuiteCounts counts = tools::run_sets(options.onnx(), sets, options.run, report);
  return counts.failed == 0 && counts.skipped == 0 ? 0 : 1;
}

int run_whole_suite(const Options& options) {
  const tools::SuiteCounts counts = tools::run_suite(options.suite, options.run, report);
  print(std::to_string(counts.passed) + " passed, " + std::to_string(counts.failed) + " failed, " +
        std::to_string(counts.skipped) + " skipped\n");
  return counts.failed == 0 ? 0 : 1;
}

// Of a driver that has run once: what it makes for its first run is not timed.
void time_runs(tools::GraphDriver& driver, const std::vector<std::optional<Tensor>>& inputs,
               const tools::SuiteOptions& options) {
  std::vector<double> ms;
  for (int i = 0; i < options.repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    driver.run(inputs);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::sort(ms);
  char text[96];
  std::snprintf(text, sizeof text, "%d runs: fastest %.3f ms, median %.3f ms\n", options.repeats, ms.front(),
                ms[ms.size() / 2]);
  print(text + (options.profile ? driver.profile(1) : std::string()));
}

int run_inputs(const Options& options) {
  std::set<std::string> given;
  for (const std::string& text : options.inputs) given.insert(text.substr(0, text.find('=')));
  const Graph graph = tools::import_for(options.run.driver, options.onnx(), std::move(given));
  std::vector<std::optional<Tensor>> inputs(graph.inputs.size());
  for (const std::string& text : options.inputs) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
      throw Error(Code::kUsage, "--input '" + escaped(text) + "' is not name=file.npy");
    const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                 [&](ValueId id) { return graph.value(id).name == text.substr(0, equals); });
    if (at == graph.inputs.end())
      throw Error(Code::kUsage, "--input: the model has no input '" + escaped(text.substr(0, equals)) + "'");
    inputs[at - graph.inputs.begin()] = tools::read_npy(text.substr(equals + 1));
  }
  const auto driver = tools::make_driver(options.run.driver, graph, options.run);
  const std::vector<Tensor> outputs = driver->run(inputs);
  if (options.run.repeats > 0) time_runs(*driver, inputs, options.run);
  if (!options.run.output_dir.empty()) tools::save_outputs(options.run.output_dir, graph, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = graph.output_names[i];
    if (outputs[i].dtype == DType::kUndefined) continue;
    const Shape shape(outputs[i].dims.begin(), outputs[i].dims.end());
    print(escaped(name) + " " + std::string(name_of(outputs[i].dtype)) + str(shape) + "\n");
  }
  return 0;
}

int run_prompt(const Options& options) {
  tools::PromptOptions prompt = options.prompt;
  prompt.load.tp = options.run.ranks;
  prompt.load.threads = options.run.threads;
  prompt.load.plain = options.run.driver == "dynamic";
  if (is_rank_process(prompt.load)) return run_rank(prompt.load);
  return tools::run_prompt(prompt);
}

// What no model could make right.
void check(const Options& options) {
  const bool prompt = !options.prompt.prompt.empty(), ids = !options.prompt.prompt_ids.empty();
  std::string modes;
  int count = 0;
  const auto mode = [&](bool given, const char* name) {
    if (given) modes += (count++ ? ", " : "") + std::string(name);
  };
  mode(!options.suite.empty(), "--suite");
  mode(!options.test_data.empty(), "--test-data");
  mode(!options.inputs.empty(), "--input");
  mode(prompt, "--prompt");
  mode(ids, "--prompt-ids");
  if (!options.suite.empty() && !options.prompt.load.model.empty())
    throw Error(Code::kUsage, "MODEL and --suite: these exclude each other");
  if (count > 1) throw Error(Code::kUsage, modes + ": these exclude each other");
  tools::check_driver(options.run.driver, prompt || ids ? 0 : options.run.ranks);
  if ((prompt || ids) && options.run.driver == "static")
    throw Error(Code::kUsage, "--driver static: generates nothing; take auto, decoder or dynamic");
}

int run(const Options& options) {
  check(options);
  if (!options.suite.empty()) return run_whole_suite(options);
  if (options.prompt.load.model.empty()) throw Error(Code::kUsage, "give a MODEL, or --suite DIR");
  if (!options.prompt.prompt.empty() || !options.prompt.prompt_ids.empty()) return run_prompt(options);
  if (options.prompt.load.device.device == Device::kCuda)
    throw Error(Code::kUsage,
                "--device cuda: the GPU runs decoders that generate; give --prompt or --prompt-ids");
  if (options.prompt.load.processes)
    throw Error(Code::kUsage, "--processes: of decoders that generate; give --prompt or --prompt-ids");
  if (!options.prompt.load.plan.empty())
    throw Error(Code::kUsage,
                "--plan: forces programs of decoders that generate; give --prompt or --prompt-ids");
  if (!options.test_data.empty()) return run_data_sets(options);
  return run_inputs(options);
}

}  // namespace
}  // namespace ark

namespace {

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

void add_prompt_options(ark::CommandLine& line, ark::tools::PromptOptions& options) {
  line.text("--prompt", options.prompt, "generates: goes on with this text");
  line.text("--prompt-ids", options.prompt_ids, "the same with token ids: 1,2,3");
  line.number("--max-tokens", options.max_tokens, 0, kMost, "tokens to generate at most");
  line.number("--temperature", options.sampling.temperature, 0, 100, "0: the most likely token");
  line.number("--top-p", options.sampling.top_p, 0, 1, "keeps the most likely tokens of this probability");
  line.number("--top-k", options.sampling.top_k, 0, kMost, "keeps so many tokens; 0: all");
  line.number("--seed", options.sampling.seed, 0, std::numeric_limits<uint64_t>::max(), "of the sampling");
  line.flag("--chat", options.chat, "the prompt is a user's message in the model's chat template");
  line.flag("--ignore-eos", options.ignore_eos, "goes on after the end token");
  line.flag("--json", options.json, "prints token ids, text, finish reason and usage as JSON");
  line.file("--plan", options.load.plan, "programs to run, as ark-inspect --stage program prints them");
  line.flag("--processes", options.load.processes, "each rank but the first is a process of its own");
  ark::add_cluster_options(line, options.load);
  ark::add_cache_options(line, options.load, true);
  options.load.finishes_cache = true;
  line.number("--max-model-len", options.load.max_length, 0, 1 << 20, "as of ark-serve");
}

}  // namespace

int main(int argc, char** argv) {
  ark::CommandLine line("ark-run",
                        "Runs an ONNX model on stored inputs and compares or saves what comes out");
  ark::Options options;
  ark::add_model_options(line, options.prompt.load);
  line.texts("--test-data", options.test_data,
             "ONNX backend data sets (input_N.pb, output_N.pb) to compare with");
  line.text("--suite", options.suite, "a folder of NAME/model.onnx with NAME/test_data_set_*");
  line.texts("--input", options.inputs, "name=file.npy, once an input");
  line.file("--output-dir", options.run.output_dir, "where to save the outputs as .npy");
  line.text("--driver", options.run.driver, "auto, static, dynamic or decoder");
  line.number("--tp", options.run.ranks, 0, ark::kMaxRanks, "tensor-parallel ranks of a decoder; 0: chosen");
  line.number("--threads", options.run.threads, 1, 4096, "threads");
  line.number("--repeat", options.run.repeats, 0, 1000000,
              "runs single inputs so often more, and says how long that took");
  line.flag("--profile", options.run.profile,
            "with --repeat: which operators the last run spent its time in");
  const auto tolerance = [](std::optional<double>& into) {
    return [&into](const std::string& text) { into = ark::number_of(text, 0, 1e300); };
  };
  line.read("--rtol", tolerance(options.run.relative), "relative tolerance", "the set's own, or 1e-3");
  line.read("--atol", tolerance(options.run.absolute), "absolute tolerance", "the set's own, or 1e-5");
  ark::add_device_options(line, options.prompt.load.device);
  ark::add_run_limits(line, options.prompt.load.run);
  add_prompt_options(line, options.prompt);
  return ark::run_main(line, argc, argv, [&] {
    const ark::DeviceChoice& how = options.prompt.load.device;
    options.run.weights = how.weights;
    options.run.limits = options.prompt.load.run;
    if (how.activations != ark::Activations::kAuto) options.run.activations = how.activations;
    if (how.kv_dtype != ark::DType::kUndefined) options.run.kv_dtype = how.kv_dtype;
    return ark::run(options);
  });
}
