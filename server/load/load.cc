#include "server/load/load.h"

#include <algorithm>

#include "base/error.h"
#include "dma/bootstrap.h"
#include "dma/launch.h"
#include "server/text/model_text.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

// Only folders that hold one model can be named instead of the file.
fs::path model_file(const fs::path& given) {
  const std::string name = escaped(given.string());
  std::error_code error;
  if (!fs::exists(given, error)) throw Error(Code::kNotFound, name + ": no such file or folder");
  if (!fs::is_directory(given, error)) return given;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(given, error))
    if (entry.path().extension() == ".onnx") found.push_back(entry.path());
  if (found.empty()) throw Error(Code::kNotFound, name + ": holds no .onnx file");
  if (found.size() == 1) return found[0];
  const auto usual =
      std::find_if(found.begin(), found.end(), [](const fs::path& p) { return p.stem() == "model"; });
  if (usual == found.end())
    throw Error(Code::kUsage,
                name + ": holds " + std::to_string(found.size()) + " .onnx files; name one of them");
  return *usual;
}

// A file called model.onnx is named after its folder.
std::string name_of(const fs::path& file) {
  const fs::path folder = fs::absolute(file).lexically_normal().parent_path().filename();
  return file.stem() == "model" && !folder.empty() ? folder.string() : file.stem().string();
}

LoadOptions load_options(const ServeOptions& options, const fs::path& file, const text::ModelText& text) {
  LoadOptions load;
  load.model = file;
  load.tp = options.tp;
  load.processes = options.processes;
  load.threads = options.threads;
  load.max_length = options.max_model_len;
  load.config_length = static_cast<int32_t>(std::min<int64_t>(text.max_length.value_or(0), INT32_MAX));
  load.max_sequences = options.max_num_seqs;
  load.max_batched_tokens = options.max_num_batched_tokens;
  load.kv_memory = options.kv_memory;
  load.device = options.device;
  load.plain = options.plain;
  load.plan = options.plan;
  return load;
}

std::string text_found(const text::ModelText& text) {
  if (!text.tokenizer) return "no tokenizer.json beside the model: token ids only";
  std::string line = std::to_string(text.tokenizer->vocab_size()) + " tokens, ";
  line += text.chat_template                 ? "chat template"
          : text.chat_template_error.empty() ? "no chat template"
                                             : "chat template refused: " + text.chat_template_error;
  return line + ", " + std::to_string(text.eos_ids.size()) + " end tokens";
}

}  // namespace

LoadOptions load_options(const ServeOptions& options) {
  const fs::path file = model_file(options.model);
  return load_options(options, file, text::load_model_text(file.parent_path()));
}

ServedModel load_model(const ServeOptions& options, StageLog& log) {
  const fs::path file = model_file(options.model);
  auto text = std::make_shared<text::ModelText>(text::load_model_text(file.parent_path()));
  log.done("text", text_found(*text));
  const LoadedRunner loaded = load_runner(load_options(options, file, *text), log);
  ServedModel model;
  model.aliases = options.served_model_names;
  std::erase(model.aliases, "");
  model.name = model.aliases.empty() ? name_of(file) : model.aliases[0];
  std::erase(model.aliases, model.name);
  model.runner = loaded.runner;
  model.end_ids = text->eos_ids;
  model.text = std::move(text);
  return model;
}

bool is_rank_process() { return dma::Environment::is_set(); }

int run_rank(const ServeOptions& options) {
  dma::end_with_launcher();
  return run_rank_process(load_options(options));
}

}  // namespace ark
