// The stages that ark-inspect can print: one row each in stages(), computed on demand.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "importer/decoder.h"
#include "importer/import.h"

namespace ark {

// A model on its way through the load path; each stage is computed when first asked for.
class Inspection {
 public:
  explicit Inspection(std::filesystem::path file, ImportOptions options = {})
      : file_(std::move(file)), options_(std::move(options)) {}

  const std::filesystem::path& file() const { return file_; }
  const onnx::Model& parsed();
  const Graph& built();
  const Graph& passed();
  const std::variant<DecoderModel, NotRecognised>& recognised();

 private:
  std::filesystem::path file_;
  ImportOptions options_;
  std::optional<onnx::Model> parsed_;
  std::optional<Graph> built_, passed_;
  std::optional<std::variant<DecoderModel, NotRecognised>> recognised_;
};

struct InspectStage {
  const char* name;
  std::string (*text)(Inspection&);
  nlohmann::json (*json)(Inspection&);
  std::string (*dot)(Inspection&);  // null: this stage has no picture
};
const std::vector<InspectStage>& inspect_stages();  // in the order of the load path

// One line for --check: what the model is. Runs the whole import.
std::string summary(Inspection& inspection);

}  // namespace ark
