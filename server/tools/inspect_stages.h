// The stages that ark-inspect can print: one row each in stages(), computed on demand.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ir/picture.h"
#include "engine/compile.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/config.h"
#include "server/json_fwd.h"
#include "server/load/load.h"
#include "server/load/model_file.h"
#include "server/load/terms.h"

namespace ark {

// The step and the GPU that stage cost replays.
struct CostOptions {
  std::string arch = "sm_90a", trace;  // trace: file for its timeline, or empty
  int32_t batch = 1, context = 128, prompt = 0, groups = 0, gpus = 0;
};

// A model on its way through the load path; each stage is computed when first asked for.
class Inspection {
 public:
  // `options`: the model, tp, the plan to force and the limits that programs are made for.
  // `for_gpu`: compiled as for one.
  explicit Inspection(const ServeOptions& options, bool for_gpu = false, CostOptions cost = {})
      : options_(options),
        for_gpu_(for_gpu),
        cost_(std::move(cost)),
        file_(find_model(options.model, options.variant)) {}

  const std::filesystem::path& file() const { return file_.onnx; }
  const std::filesystem::path& text_folder() const { return file_.text_folder; }
  const onnx::Model& parsed();
  const Graph& built();
  const Graph& passed();
  const std::variant<DecoderModel, NotRecognised>& recognised();
  // Of a recognised decoder as ark-serve would run it; of another graph on one rank, every size up to
  // kPlainSize. Throws Error(kUnsupported) if the graph's sizes depend on data.
  const Compiled& compiled();
  bool is_decoder() { return std::holds_alternative<DecoderModel>(recognised()); }
  // What ark-serve would be asked for, with what the files beside the model say.
  const LoadOptions& load();
  // Of a recognised decoder, as compiled: tokens of a sequence, and of a page of keys and values.
  int64_t max_length() { return compiled(), limits_.max_length; }
  int64_t page_size() { return compiled(), limits_.page_size; }
  // The limits, and how a device multiplies.
  LaunchTerms launch_terms();
  const CostOptions& cost() const { return cost_; }
  static constexpr int64_t kPlainSize = 128;

 private:
  ServeOptions options_;
  bool for_gpu_;
  CostOptions cost_;
  ModelFile file_;
  std::optional<onnx::Model> parsed_;
  std::optional<Graph> built_, passed_;
  std::optional<std::variant<DecoderModel, NotRecognised>> recognised_;
  std::optional<LoadOptions> load_;
  std::optional<Compiled> compiled_;
  RunnerLimits limits_;
};

struct InspectStage {
  const char* name;
  std::string (*text)(Inspection&);
  Json (*json)(Inspection&);
  Picture (*picture)(Inspection&);  // null: this stage has none
};
const std::vector<InspectStage>& inspect_stages();  // in the order of the load path

// The stages behind recognise, one each.
std::string plan_text(Inspection& inspection);
Json plan_json(Inspection& inspection);
std::string program_text(Inspection& inspection);
Picture plan_picture(Inspection& inspection);
Picture program_picture(Inspection& inspection);
Json program_json(Inspection& inspection);
std::string weights_text(Inspection& inspection);
Json weights_json(Inspection& inspection);
std::string placement_text(Inspection& inspection);
Json placement_json(Inspection& inspection);
std::string cuda_text(Inspection& inspection);
Json cuda_json(Inspection& inspection);
// What a step would take on a GPU (engine/cuda/cost): text also writes the timeline that was asked for.
std::string cost_text(Inspection& inspection);
Json cost_json(Inspection& inspection);

// Why the model is served plain, or not at all; of no recognised decoder.
std::string why_plain(Inspection& inspection);
// One line for --check: what the model is and how it runs. Imports, compiles, validates and reads the text beside it,
// but no weights; a decoder that is served plain runs a prompt of two tokens. Throws Error where no driver can run it.
std::string summary(Inspection& inspection);

}  // namespace ark
