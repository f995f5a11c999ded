#include "importer/import.h"

#include <chrono>

#include "importer/join_embeddings.h"

namespace ark {
namespace {

// Runs `work`, then reports the stage with the graph it returns (may be null) and its wall time.
template <typename F>
void timed(const ImportOptions& options, const std::string& stage, F&& work) {
  const auto start = std::chrono::steady_clock::now();
  const Graph* graph = work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (options.on_stage) options.on_stage(stage, graph, took.count());
}

void drop_defaults(onnx::Model& model, const std::set<std::string>& given) {
  constexpr int64_t kDefaults = 4;  // of the IR; before, such initializers are weights
  if (model.ir_version < kDefaults) return;
  std::set<std::string> inputs;
  for (const onnx::ValueInfo& input : model.graph.inputs)
    if (given.contains(input.name)) inputs.insert(input.name);
  std::erase_if(model.graph.initializers,
                [&](const onnx::TensorRef& tensor) { return inputs.contains(tensor.name); });
}

}  // namespace

void run_passes(Graph& graph, const ImportOptions& options) {
  for (const Pass& pass : standard_passes())
    timed(options, "passes/" + pass.name, [&]() -> const Graph* {
      pass.run(graph);
      verify(graph, pass.name);
      return &graph;
    });
}

Graph import_model(const std::filesystem::path& file, const ImportOptions& options) {
  onnx::Model model;
  timed(options, "parse", [&]() -> const Graph* {
    model = onnx::parse_model(file, options.limits);
    drop_defaults(model, options.given);
    if (options.settle_controls) onnx::join_embeddings(model, file, options.limits);
    return nullptr;
  });
  Graph graph;
  timed(options, "graph", [&]() -> const Graph* {
    graph = build_graph(model, options);
    return &graph;
  });
  if (options.files) *options.files = std::move(model.files);
  model = {};
  run_passes(graph, options);
  return graph;
}

}  // namespace ark
