#include "server/tools/run_suite.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "importer/decoder.h"
#include "importer/import.h"

namespace ark::tools {
namespace {

namespace fs = std::filesystem;

// Which axes of each output the padding rule is about: logits [B, S, V] and present caches, where the graph
// is a decoder.
class PaddingRule {
 public:
  explicit PaddingRule(const Graph& graph) : graph_(graph), signature_(find_signature(graph, nullptr)) {}

  std::optional<PaddingAxes> axes(std::size_t output, const DataSet& set) const {
    if (!signature_) return std::nullopt;
    const auto& shape = graph_.value(graph_.outputs[output]).shape;
    if (output == signature_->logits)
      return shape && shape->size() == 3 ? std::optional(PaddingAxes{0, 1}) : std::nullopt;
    for (const DecoderSignature::Cache& cache : signature_->caches)
      if (cache.output == output && set.inputs[cache.input])
        return PaddingAxes{cache.batch_axis, cache.sequence_axis,
                           set.inputs[cache.input]->dims[cache.sequence_axis], parts_of(cache)};
    return std::nullopt;
  }

 private:
  int64_t parts_of(const DecoderSignature::Cache& cache) const {
    const Shape &shape = *graph_.value(graph_.inputs[cache.input]).shape,
                &ids = *graph_.value(graph_.inputs[signature_->ids]).shape;
    const auto parts = parts_a_row(shape[static_cast<std::size_t>(cache.batch_axis)], ids[0]);
    return std::max<int64_t>(1, parts.value_or(1));
  }

  const Graph& graph_;
  std::optional<DecoderSignature> signature_;
};

SetResult compare(const Graph& graph, const DataSet& set, const std::vector<Tensor>& outputs,
                  const Tolerance& tolerance, const PaddingRule& padding) {
  int64_t compared = 0;
  for (std::size_t i = 0; i < set.outputs.size(); ++i) {
    if (!set.outputs[i] || outputs[i].dtype == DType::kUndefined) continue;
    ++compared;
    if (const auto why = difference(outputs[i], *set.outputs[i], tolerance, padding.axes(i, set)))
      return {Verdict::kFail, "output '" + escaped(graph.value(graph.outputs[i]).name) + "': " + *why};
  }
  if (compared == 0) return {Verdict::kUnsupported, "no output of this set can be compared"};
  if (compared == std::ssize(outputs)) return {Verdict::kPass, ""};
  return {Verdict::kPass,
          "(" + std::to_string(compared) + " of " + std::to_string(outputs.size()) + " outputs compared)"};
}

// A name from the model as a file name: what is not a letter, digit, '.', '_' or '-' becomes '_'.
std::string file_name(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  return name + ".npy";
}

void save_set(const SuiteOptions& options, const fs::path& set, const Graph& graph,
              const std::vector<Tensor>& outputs) {
  if (options.output_dir.empty()) return;
  const fs::path within = options.root.empty() ? plain_path(set).filename() : fs::relative(set, options.root);
  save_outputs(options.output_dir / within, graph, outputs);
}

}  // namespace

// The decoder driver serves; the others take each input for what it is.
Graph import_for(const std::string& driver, const fs::path& model, std::set<std::string> given) {
  ImportOptions options;
  options.given = std::move(given);
  options.settle_controls = driver == "decoder";
  return import_model(model, options);
}

void save_outputs(const fs::path& directory, const Graph& graph, const std::vector<Tensor>& outputs) {
  fs::create_directories(directory);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].dtype != DType::kUndefined)
      write_npy(directory / file_name(graph.output_names[i]), outputs[i]);
}

SuiteCounts run_sets(const fs::path& model, const std::vector<fs::path>& sets, const SuiteOptions& options,
                     const std::function<void(const fs::path&, const SetResult&)>& report) {
  SuiteCounts counts;
  const auto say = [&](const fs::path& set, const SetResult& result) {
    ++(result.verdict == Verdict::kPass   ? counts.passed
       : result.verdict == Verdict::kFail ? counts.failed
                                          : counts.skipped);
    report(set, result);
  };
  const auto fail = [&](const fs::path& set, const std::exception& e) {
    const auto* error = dynamic_cast<const Error*>(&e);
    if (!error) return say(set, {Verdict::kFail, "internal: " + escaped(e.what())});
    say(set, {error->code() == Code::kUnsupported ? Verdict::kUnsupported : Verdict::kFail, e.what()});
  };
  Graph graph;
  std::unique_ptr<GraphDriver> driver;
  try {
    graph = import_for(options.driver, model);
    driver = make_driver(options.driver, graph, options);
  } catch (const std::exception& e) {
    // What the user asked for, unless a suite asks it of many models.
    const auto* error = dynamic_cast<const Error*>(&e);
    const bool asked = error && (error->code() == Code::kUsage || error->code() == Code::kNotFound);
    if (asked && options.root.empty()) throw;
    for (const fs::path& set : sets) fail(set, e);
    return counts;
  }
  const PaddingRule padding(graph);
  for (const fs::path& set : sets) try {
      const DataSet data = read_data_set(set, graph.inputs.size(), graph.outputs.size());
      Tolerance tolerance = tolerance_for(set);
      tolerance.relative = options.relative.value_or(tolerance.relative);
      tolerance.absolute = options.absolute.value_or(tolerance.absolute);
      const std::vector<Tensor> outputs = driver->run(data.inputs);
      save_set(options, set, graph, outputs);
      say(set, compare(graph, data, outputs, tolerance, padding));
    } catch (const std::exception& e) {
      fail(set, e);
    }
  return counts;
}

SuiteCounts run_suite(const fs::path& root, const SuiteOptions& options,
                      const std::function<void(const fs::path&, const SetResult&)>& report) {
  if (!fs::is_directory(root)) throw Error(Code::kNotFound, root.string() + " is no directory");
  std::map<fs::path, std::vector<fs::path>> models;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_directory() || !entry.path().filename().string().starts_with("test_data_set_")) continue;
    const fs::path model = entry.path().parent_path() / "model.onnx";
    if (fs::exists(model)) models[model].push_back(entry.path());
  }
  if (models.empty())
    throw Error(Code::kNotFound, root.string() + " holds no NAME/model.onnx with NAME/test_data_set_*");
  SuiteCounts total;
  SuiteOptions within = options;
  within.root = root;
  for (auto& [model, sets] : models) {
    std::sort(sets.begin(), sets.end());
    const SuiteCounts counts = run_sets(model, sets, within, report);
    total.passed += counts.passed;
    total.failed += counts.failed;
    total.skipped += counts.skipped;
  }
  return total;
}

}  // namespace ark::tools
