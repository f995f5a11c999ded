// Running ONNX backend data sets through a driver and saying how it went.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ir/graph.h"
#include "engine/compile.h"
#include "engine/plain/run_budget.h"
#include "server/tools/test_data.h"

namespace ark::tools {

// One way of running a whole graph. Outputs in the order of graph.outputs; an output that the driver does not
// make (the decoder's caches) has dtype undefined.
class GraphDriver {
 public:
  virtual ~GraphDriver() = default;
  virtual std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) = 0;
  // Where the time of the last `runs` runs went, a line an operator; empty where the driver does not know.
  virtual std::string profile(int64_t runs);
};
struct DriverOptions {
  int ranks = 0, threads = 1;  // ranks 0: 1, or as many as a plan has
  // Of the decoder's. Data sets hold what the weights' numbers give.
  WeightPolicy weights = WeightPolicy::kExact;
  Activations activations = Activations::kF32;
  DType kv_dtype = DType::kF32;
  RunLimits limits;      // of the others'
  int repeats = 0;       // runs that are timed, of single inputs
  bool profile = false;  // asks for GraphDriver::profile
};
// "auto" (static if every shape follows from the inputs' sizes, else dynamic), "static", "dynamic" or
// "decoder". Keeps `graph` by reference. Throws Error(kUnsupported) where the driver cannot run the graph.
std::unique_ptr<GraphDriver> make_driver(const std::string& name, const Graph& graph,
                                         const DriverOptions& options);
// Throws Error(kUsage) if there is no driver of that name, or none that runs on so many ranks.
void check_driver(const std::string& name, int ranks);
// The graph as the driver of that name wants it.
Graph import_for(const std::string& driver, const std::filesystem::path& model,
                 std::set<std::string> given = {});

// The one of recognised decoders: through the ragged runner.
std::unique_ptr<GraphDriver> make_decoder_driver(const Graph& graph, const DriverOptions& options);

enum class Verdict { kPass, kFail, kUnsupported };
struct SetResult {
  Verdict verdict;
  std::string reason;  // one line; empty for kPass with all outputs compared
};

struct SuiteOptions : DriverOptions {
  std::string driver = "auto";
  std::optional<double> relative, absolute;  // override the files' own tolerance
  // Empty, or where the outputs of each set are saved, under its path within `root` (its name if that is
  // empty).
  std::filesystem::path output_dir, root;
};
struct SuiteCounts {
  int64_t passed = 0, failed = 0, skipped = 0;
};

// Writes each output that was made to DIRECTORY/NAME.npy.
void save_outputs(const std::filesystem::path& directory, const Graph& graph,
                  const std::vector<Tensor>& outputs);

// Runs `sets` on one model; `report` is called once a set. Errors of the model itself count for every set;
// outside a suite, a missing model and options that do not fit are thrown.
SuiteCounts run_sets(const std::filesystem::path& model, const std::vector<std::filesystem::path>& sets,
                     const SuiteOptions& options,
                     const std::function<void(const std::filesystem::path&, const SetResult&)>& report);
// NAME/model.onnx with NAME/test_data_set_*, any depth, in sorted order.
SuiteCounts run_suite(const std::filesystem::path& root, const SuiteOptions& options,
                      const std::function<void(const std::filesystem::path&, const SetResult&)>& report);

}  // namespace ark::tools
