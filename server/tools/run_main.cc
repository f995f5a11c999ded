// ark-run MODEL: runs data sets, inputs from .npy files, a whole suite, or a prompt.
#include <CLI/CLI.hpp>
#include <cmath>

#include "base/error.h"
#include "engine/compile.h"
#include "server/load/load.h"
#include "server/tools/main_guard.h"
#include "server/tools/run_prompt.h"
#include "server/tools/run_suite.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model, suite;
  std::vector<std::string> test_data, inputs;
  tools::SuiteOptions run;
  tools::PromptOptions prompt;
};

void report(const fs::path& set, const tools::SetResult& result) {
  const char* const words[] = {"PASS", "FAIL", "UNSUPPORTED"};
  print(std::string(words[static_cast<int>(result.verdict)]) + " " + set.string() +
        (result.reason.empty() ? "" : " " + result.reason) + "\n");
}

int run_data_sets(const Options& options) {
  const std::vector<fs::path> sets(options.test_data.begin(), options.test_data.end());
  const tools::SuiteCounts counts = tools::run_sets(options.model, sets, options.run, report);
  return counts.failed == 0 && counts.skipped == 0 ? 0 : 1;
}

int run_whole_suite(const Options& options) {
  const tools::SuiteCounts counts = tools::run_suite(options.suite, options.run, report);
  print(std::to_string(counts.passed) + " passed, " + std::to_string(counts.failed) + " failed, " +
        std::to_string(counts.skipped) + " skipped\n");
  return counts.failed == 0 ? 0 : 1;
}

int run_inputs(const Options& options) {
  const Graph graph = tools::import_for(options.run.driver, options.model);
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
  const auto driver = tools::make_driver(options.run.driver, graph, options.run.ranks, options.run.threads);
  const std::vector<Tensor> outputs = driver->run(inputs);
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
  prompt.load.model = options.model;
  prompt.load.tp = options.run.ranks;
  prompt.load.threads = options.run.threads;
  prompt.load.plain = options.run.driver == "dynamic";
  if (prompt.load.processes && is_rank_process()) return run_rank(prompt.load);
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
  if (!options.suite.empty() && !options.model.empty())
    throw Error(Code::kUsage, "MODEL and --suite: these exclude each other");
  if (count > 1) throw Error(Code::kUsage, modes + ": these exclude each other");
  tools::check_driver(options.run.driver, prompt || ids ? 0 : options.run.ranks);
  if ((prompt || ids) && options.run.driver == "static")
    throw Error(Code::kUsage, "--driver static: generates nothing; take auto, decoder or dynamic");
}

int run(const Options& options) {
  check(options);
  if (!options.suite.empty()) return run_whole_suite(options);
  if (options.model.empty()) throw Error(Code::kUsage, "give a MODEL, or --suite DIR");
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

// CLI::Range lets NaN through.
CLI::Validator between(double low, double high) {
  const CLI::Range range(low, high);
  return {[range](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return text + " is no number";
            return range(text);
          },
          range.get_description()};
}

void add_prompt_options(CLI::App& app, ark::tools::PromptOptions& options) {
  app.add_option("--prompt", options.prompt, "generates: goes on with this text");
  app.add_option("--prompt-ids", options.prompt_ids, "the same with token ids: 1,2,3");
  app.add_option("--max-tokens", options.max_tokens, "tokens to generate at most")
      ->check(CLI::Range(0, INT32_MAX))
      ->capture_default_str();
  app.add_option("--temperature", options.sampling.temperature, "0: the most likely token")
      ->check(between(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-p", options.sampling.top_p, "keeps the most likely tokens of this probability")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", options.sampling.top_k, "keeps so many tokens; 0: all")
      ->check(CLI::Range(0, INT32_MAX));
  app.add_option("--seed", options.sampling.seed, "of the sampling")->capture_default_str();
  app.add_flag("--chat", options.chat, "the prompt is a user's message in the model's chat template");
  app.add_flag("--ignore-eos", options.ignore_eos, "goes on after the end token");
  app.add_flag("--json", options.json, "prints token ids, text, finish reason and usage as JSON");
  app.add_option("--plan", options.load.plan, "programs to run, as ark-inspect --stage program prints them");
  app.add_flag("--processes", options.load.processes, "each rank but the first is a process of its own");
  app.add_option("--max-model-len", options.load.max_model_len, "as of ark-serve")
      ->check(CLI::Range(0, 1 << 20));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs an ONNX model on stored inputs and compares or saves what comes out", "ark-run");
  ark::Options options;
  app.add_option("model", options.model, "an .onnx file, or a directory that holds one");
  app.add_option("--test-data", options.test_data,
                 "ONNX backend data sets (input_N.pb, output_N.pb) to compare with");
  app.add_option("--suite", options.suite, "a folder of NAME/model.onnx with NAME/test_data_set_*");
  app.add_option("--input", options.inputs, "name=file.npy, once an input");
  app.add_option("--output-dir", options.run.output_dir, "where to save the outputs as .npy");
  app.add_option("--driver", options.run.driver, "auto, static, dynamic or decoder")->capture_default_str();
  app.add_option("--tp", options.run.ranks, "tensor-parallel ranks of a decoder; 0: 1")
      ->check(CLI::Range(0, ark::kMaxRanks))
      ->capture_default_str();
  app.add_option("--threads", options.run.threads, "threads")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--rtol", options.run.relative, "relative tolerance (default: the set's own, or 1e-3)")
      ->check(between(0.0, 1e300));
  app.add_option("--atol", options.run.absolute, "absolute tolerance (default: the set's own, or 1e-5)")
      ->check(between(0.0, 1e300));
  ark::add_device_options(app, options.prompt.load.device);
  add_prompt_options(app, options.prompt);
  return ark::run_main(app, argc, argv, [&] { return ark::run(options); });
}
