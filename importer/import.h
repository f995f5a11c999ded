// The importer's front door: file -> Graph, with the stages in between visible.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ir/graph.h"
#include "base/ir/limits.h"
#include "importer/onnx.h"

namespace ark {

struct ImportOptions {
  Limits limits;
  // Fixes named symbolic dimensions ("batch_size" -> 1) before inference.
  std::map<std::string, int64_t> fixed_dims;
  // For serving: inputs that carry no data, but say how many rows of logits to make or that there is a cache,
  // are settled so that all rows come out and the cache is used (Graph::settled); and what looks tokens up in a file
  // of its own is joined (join_embeddings.h).
  bool settle_controls = false;
  // Inputs that a call gives although the file has a default for them: an initializer of their name, from IR version 4
  // on.
  std::set<std::string> given;
  // Called after each stage ("parse", "graph", "passes/<name>") with its wall time in milliseconds.
  std::function<void(const std::string& stage, const Graph* graph, double milliseconds)> on_stage;
  std::vector<onnx::SourceFile>* files = nullptr;  // where not null: gets those that import_model has read
};

// Structs -> canonical, typed Graph: functions inlined, nodes sorted, operators canonicalised, shapes inferred.
Graph build_graph(const onnx::Model& model, const ImportOptions& options = {});

// One pass: changes the graph, returns whether it did. The list is importer/passes/passes.cc.
struct Pass {
  std::string name;
  bool (*run)(Graph& graph);
};
const std::vector<Pass>& standard_passes();
// Runs them in order, verify() after each.
void run_passes(Graph& graph, const ImportOptions& options = {});

// parse_model + build_graph + run_passes.
Graph import_model(const std::filesystem::path& file, const ImportOptions& options = {});

}  // namespace ark
