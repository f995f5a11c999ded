// Decoders of pictures and text are exported in pieces: embed_tokens.onnx looks token ids up, the decoder takes its
// rows beside those of pictures (transformers.js, optimum). For text alone the two are one model again.
#pragma once

#include <filesystem>
#include <optional>

#include "importer/onnx.h"

namespace ark::onnx {

// The file beside `model` that looks tokens up for it, by its name: embed_tokens_q4.onnx for
// decoder_model_merged_q4.onnx, else embed_tokens.onnx, else the only one.
std::optional<std::filesystem::path> embeddings_beside(const std::filesystem::path& model);

// Where `model`, read from `file`, has inputs that such a file makes of integers alone, the integers become its inputs
// in their place; `model.files` gets that file, too. Throws as parse_model, and Error(kBadModel) where widths differ.
void join_embeddings(Model& model, const std::filesystem::path& file, const Limits& limits);

}  // namespace ark::onnx
