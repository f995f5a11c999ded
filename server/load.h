// The composition root between a model file and the server: everything that serving one model needs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runner.h"
#include "server/config.h"

namespace ark::text {
class ModelText;
}

namespace ark {

// Start-up as people see it: one line per stage with its time, and facts between them.
class StageLog {
 public:
  explicit StageLog(std::function<void(const std::string& line)> print) : print_(std::move(print)) {}
  // The stage that began when the one before ended is over: "parse        0.013 s  smollm2.onnx, 272 nodes".
  void done(std::string_view stage, std::string_view detail = "");
  // A line without time: what was recognised, the sharding, memory per rank, KV tokens.
  void fact(std::string_view name, std::string_view text);

 private:
  std::function<void(const std::string&)> print_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// One model, ready to serve.
struct ServedModel {
  std::string name;                             // what requests call it
  std::shared_ptr<StepRunner> runner;           // never null
  std::shared_ptr<const text::ModelText> text;  // null: no tokenizer beside the file, token ids only
  std::vector<int32_t> end_ids;                 // tokens that end a text, unless ignore_eos
};

// Import -> recognise -> compile -> runner, and the tokenizer, template and ids beside the file. Throws
// Error.
ServedModel load_model(const ServeOptions& options, StageLog& log);

}  // namespace ark
