// Which file a user means by --model, in the layouts that people have on disk.
#pragma once

#include <filesystem>
#include <string>

namespace ark {

struct ModelFile {
  std::filesystem::path onnx;
  std::filesystem::path text_folder;  // where tokenizer.json, config.json and others are looked for
  std::string name;                   // what requests call the model, unless told otherwise
};

// `given`: an ONNX file, or a folder that holds some, itself or in its folder onnx/ (as on the Hugging Face hub). Of
// several model.onnx is taken, or the one that `variant` names: "q4" for model_q4.onnx; beside embed_tokens.onnx
// decoder_model_merged.onnx and decoder_model_merged_q4.onnx. Text files lie beside the
// model, or where it is in a folder onnx/ without any, one folder up; the repository then gives the name, too.
// Throws Error(kNotFound) that says what lies there instead and which command makes an ONNX file of it, Error(kUsage)
// with the variants and their sizes.
ModelFile find_model(const std::filesystem::path& given, const std::string& variant);

// "fp_" and 16 digits that tell other weights or another ark apart: of the version and of the model's file with those
// of external data, their sizes and samples all over them. Costs some milliseconds.
std::string fingerprint_of(const ModelFile& model);

}  // namespace ark
