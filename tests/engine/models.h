// Decoders of the fixtures and of the zoo, read and recognised as ark-serve does it.
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "engine/compile.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "tests/fixtures.h"

namespace ark::test {

// Fixtures that must be recognised; they cover the exporters, fused attention, 16 bits, windows, experts.
inline const std::vector<std::string> kDecoders = {
    "tiny-random-gpt2", "gpt2-optimum",         "gpt2-torchscript",    "gpt2-dynamo",
    "gpt2-ort-fused",   "gpt2-fp16-io32",       "gpt2-no-past",        "llama-optimum",
    "llama-eager",      "llama-dynamo",         "llama-dynamo-latest", "llama-dynamo-opset23",
    "llama-fp16",       "llama-dynamo-opset24", "llama-fp16-dynamo",   "llama-fp16-fused",
    "llama-ort-fused",  "llama-ort-extended",   "llama-genai-fp32",    "mistral-sliding",
    "qwen3-moe"};

// model.onnx in `folder`, or wherever below it lies the only one.
inline std::filesystem::path model_file(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "model.onnx") || !std::filesystem::exists(folder))
    return folder / "model.onnx";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".onnx") return entry.path();
  }
  return folder / "model.onnx";
}

// Throws Error if the file is broken; `why` tells what is not recognised.
inline std::optional<DecoderModel> read_decoder(const std::filesystem::path& file, std::string& why) {
  auto found = recognise_decoder(import_model(file), 64);
  if (const auto* no = std::get_if<NotRecognised>(&found)) {
    why = no->node + ": " + no->reason;
    return std::nullopt;
  }
  return std::get<DecoderModel>(std::move(found));
}

inline Compiled compile_small(const DecoderModel& model, int32_t ranks) {
  return compile_decoder(
      model, {.ranks = ranks, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = 8});
}

}  // namespace ark::test
