// ark-run MODEL: runs data sets, inputs from .npy files, a whole suite, or a prompt.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "importer/import.h"
#include "server/tools/main_guard.h"
#include "server/tools/run_suite.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model, suite, output_dir;
  std::vector<std::string> test_data, inputs;
  tools::SuiteOptions run;
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

// A name from the model as a file name: what is not a letter, digit, '.', '_' or '-' becomes '_'.
std::string file_name(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  return name + ".npy";
}

int run_inputs(const Options& options) {
  const Graph graph = import_model(options.model);
  std::vector<std::optional<Tensor>> inputs(graph.inputs.size());
  for (const std::string& text : options.inputs) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
      throw Error(Code::kUsage, "--input '" + escaped(text) + "' is not name=file.npy");
    const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                 [&](ValueId id) { return graph.value(id).name == text.substr(0, equals); });
    if (at == graph.inputs.end())
      throw Error(Code::kUsage, "--input: the model has no input '" + escaped(text.substr(0, equals)) + "'");
    inputs[static_cast<std::size_t>(at - graph.inputs.begin())] = tools::read_npy(text.substr(equals + 1));
  }
  const auto driver = tools::make_driver(options.run.driver, graph, options.run.ranks, options.run.threads);
  const std::vector<Tensor> outputs = driver->run(inputs);
  if (!options.output_dir.empty()) fs::create_directories(options.output_dir);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = graph.value(graph.outputs[i]).name;
    if (outputs[i].dtype == DType::kUndefined) continue;
    const Shape shape(outputs[i].dims.begin(), outputs[i].dims.end());
    print(escaped(name) + " " + std::string(name_of(outputs[i].dtype)) + str(shape) + "\n");
    if (!options.output_dir.empty())
      tools::write_npy(fs::path(options.output_dir) / file_name(name), outputs[i]);
  }
  return 0;
}

int run(const Options& options) {
  if (!options.suite.empty()) return run_whole_suite(options);
  if (options.model.empty()) throw Error(Code::kUsage, "give a MODEL, or --suite DIR");
  if (!options.test_data.empty()) return run_data_sets(options);
  return run_inputs(options);
}

}  // namespace
}  // namespace ark

int main(int argc, char** argv) {
  CLI::App app("Runs an ONNX model on stored inputs and compares or saves what comes out", "ark-run");
  ark::Options options;
  app.add_option("model", options.model, "an .onnx file, or a directory that holds one");
  app.add_option("--test-data", options.test_data,
                 "ONNX backend data sets (input_N.pb, output_N.pb) to compare with");
  app.add_option("--suite", options.suite, "a folder of NAME/model.onnx with NAME/test_data_set_*");
  app.add_option("--input", options.inputs, "name=file.npy, once an input");
  app.add_option("--output-dir", options.output_dir, "where to save the outputs as .npy");
  app.add_option("--driver", options.run.driver, "auto, static, dynamic or decoder")->capture_default_str();
  app.add_option("--tp", options.run.ranks, "tensor-parallel ranks of the decoder driver")
      ->capture_default_str();
  app.add_option("--threads", options.run.threads, "threads")->capture_default_str();
  app.add_option("--rtol", options.run.relative, "relative tolerance (default: the set's own, or 1e-3)");
  app.add_option("--atol", options.run.absolute, "absolute tolerance (default: the set's own, or 1e-5)");
  return ark::run_main(app, argc, argv, [&] { return ark::run(options); });
}
