// The composition root between a model file and the server: everything that serving one model needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/runner.h"
#include "server/config.h"
#include "server/stage_log.h"

namespace ark::text {
class ModelText;
}

namespace ark {

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
