// The stages that ark-inspect can print: one row each in stages(), computed on demand.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/compile.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/config.h"
#include "server/json_fwd.h"

namespace ark {

// A model on its way through the load path; each stage is computed when first asked for.
class Inspection {
 public:
  // `options`: the model, tp, the plan to force and the limits that programs are made for.
  explicit Inspection(const ServeOptions& options) : options_(options), file_(options.model) {}

  const std::filesystem::path& file() const { return file_; }
  const onnx::Model& parsed();
  const Graph& built();
  const Graph& passed();
  const std::variant<DecoderModel, NotRecognised>& recognised();
  // Of a recognised decoder as ark-serve would run it; of another graph on one rank, every size up to
  // kPlainSize. Throws Error(kUnsupported) if the graph's sizes depend on data.
  const Compiled& compiled();
  bool is_decoder() { return std::holds_alternative<DecoderModel>(recognised()); }
  static constexpr int64_t kPlainSize = 128;

 private:
  ServeOptions options_;
  std::filesystem::path file_;
  std::optional<onnx::Model> parsed_;
  std::optional<Graph> built_, passed_;
  std::optional<std::variant<DecoderModel, NotRecognised>> recognised_;
  std::optional<Compiled> compiled_;
};

struct InspectStage {
  const char* name;
  std::string (*text)(Inspection&);
  Json (*json)(Inspection&);
  std::string (*dot)(Inspection&);  // null: this stage has no picture
};
const std::vector<InspectStage>& inspect_stages();  // in the order of the load path

// The stages behind recognise, one each.
std::string plan_text(Inspection& inspection);
Json plan_json(Inspection& inspection);
std::string program_text(Inspection& inspection);
Json program_json(Inspection& inspection);
std::string program_dot(Inspection& inspection);
std::string weights_text(Inspection& inspection);
Json weights_json(Inspection& inspection);
std::string placement_text(Inspection& inspection);
Json placement_json(Inspection& inspection);
std::string cuda_text(Inspection& inspection);
Json cuda_json(Inspection& inspection);

// One line for --check: what the model is and how it runs. Imports, compiles and validates, but reads no
// weights. Throws Error where no driver can run it.
std::string summary(Inspection& inspection);

}  // namespace ark
