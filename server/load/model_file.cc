#include "server/load/model_file.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/sha256.h"
#include "importer/join_embeddings.h"
#include "server/version.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsual = "model";
// The decoder of a model in pieces, beside embed_tokens.onnx (importer/join_embeddings.h).
constexpr const char* kUsualOfPieces = "decoder_model_merged";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Sorted by name; none where the folder cannot be read.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const std::string& name : names_in(folder))
    if (fs::path file = folder / name; is_file(file)) files.push_back(std::move(file));
  return files;
}

std::vector<fs::path> onnx_in(const fs::path& folder) {
  std::vector<fs::path> files = files_in(folder);
  std::erase_if(files, [](const fs::path& file) { return file.extension() != ".onnx"; });
  return files;
}

std::string usual_stem(const fs::path& file) {
  return onnx::embeddings_beside(file) ? kUsualOfPieces : kUsual;
}

// "q4" of model_q4.onnx; else the stem.
std::string variant_of(const fs::path& file) {
  const std::string stem = file.stem().string(), prefix = usual_stem(file) + "_";
  return stem.starts_with(prefix) ? stem.substr(prefix.size()) : stem;
}

// And the files of external data beside it, whose names begin with its own.
std::vector<fs::path> parts_of(const fs::path& file) {
  std::vector<fs::path> parts = files_in(file.has_parent_path() ? file.parent_path() : ".");
  std::erase_if(parts, [name = file.filename().string()](const fs::path& part) {
    return !part.filename().string().starts_with(name);
  });
  return parts;
}

std::string size_of(const fs::path& file) {
  uintmax_t bytes = 0;
  for (const fs::path& part : parts_of(file)) {
    std::error_code error;
    const uintmax_t more = fs::file_size(part, error);
    if (!error) bytes += more;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string list_of(const std::vector<fs::path>& files) {
  std::string list;
  for (const fs::path& file : files)
    list += (list.empty() ? "" : ", ") + escaped(variant_of(file)) + " (" +
            escaped(file.filename().string()) + ", " + size_of(file) + ")";
  return list;
}

// What a folder without an ONNX file holds that could become one, and how; "" if nothing is known.
std::string remedy(const fs::path& folder) {
  const std::string shown = escaped(folder.string());
  for (const fs::path& file : files_in(folder)) {
    const std::string name = escaped(file.filename().string()), extension = file.extension().string();
    if (extension == ".gguf")
      return "but " + name + ", a GGUF file: python3 models/gguf_to_onnx.py " + shown + "/" + name +
             " OUT_DIR makes an ONNX file of it";
    const bool is_torch = extension == ".bin" || extension == ".pt" || extension == ".pth";
    if (extension == ".safetensors" || is_torch)
      return "but " + name + ", weights of " + (is_torch ? "PyTorch" : "safetensors") +
             ": optimum-cli export onnx --model " + shown + " OUT_DIR makes an ONNX file of them";
  }
  return "";
}

[[noreturn]] void refuse_unreadable(const fs::path& given, const std::error_code& why) {
  throw Error(Code::kNotFound, escaped(given.string()) + ": cannot be read: " + why.message());
}

// "owner/name" or "name" of what is a model's name or address on the Hugging Face hub; else "".
std::string hub_name(std::string text) {
  for (const std::string_view prefix :
       {"https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf://"})
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  const auto is_good = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  const fs::path path(text), name = path.filename(), owner = path.parent_path();
  // Versions have digits behind a dot, files letters.
  const std::string extension = name.extension().string();
  const bool is_file = extension.size() > 1 && std::all_of(extension.begin() + 1, extension.end(), ::isalpha);
  if (name.empty() || is_file || text.front() == '.' || text.front() == '/' || !owner.parent_path().empty() ||
      !std::ranges::all_of(name.string() + owner.string(), is_good))
    return "";
  return text;
}

[[noreturn]] void refuse_missing(const fs::path& given) {
  const std::string missing = escaped(given.string()) + ": no such file or folder",
                    name = hub_name(given.string());
  if (name.empty()) throw Error(Code::kNotFound, missing);
  const std::string folder = fs::path(name).filename().string();
  throw Error(Code::kNotFound,
              missing + ". It looks like a name on the Hugging Face hub; models are served from the " +
                  "disk: hf download " + name + " --local-dir " + folder +
                  " if it holds an ONNX file, else optimum-cli export onnx --model " + name + " " + folder +
                  "; then give " + folder);
}

fs::path choose(const fs::path& folder, const std::string& variant) {
  const std::string name = escaped(folder.string());
  std::vector<fs::path> found = onnx_in(folder);
  if (found.empty()) found = onnx_in(folder / "onnx");
  if (found.empty()) {
    std::error_code error;
    names_in(folder, &error);
    if (!error && ::access(folder.c_str(), X_OK) != 0) error.assign(errno, std::generic_category());
    if (error) refuse_unreadable(folder, error);
    const std::string known = remedy(folder);
    throw Error(Code::kNotFound, name + ": holds no .onnx file" + (known.empty() ? "" : " " + known));
  }
  const std::string count = "holds " + std::to_string(found.size()) + " .onnx files";
  if (!variant.empty()) {
    for (const fs::path& file : found)
      if (variant_of(file) == variant || file.stem() == variant) return file;
    throw Error(Code::kUsage,
                name + ": " + count + ", none of variant " + escaped(variant) + ": " + list_of(found));
  }
  if (found.size() == 1) return found[0];
  for (const fs::path& file : found)
    if (file.stem() == kUsual) return file;
  for (const fs::path& file : found)
    if (file.stem() == usual_stem(file)) return file;
  throw Error(Code::kUsage, name + ": " + count + "; choose by --variant, as --variant " +
                                escaped(variant_of(found[0])) + ": " + list_of(found));
}

bool has_text(const fs::path& folder) {
  const char* const names[] = {"tokenizer.json", "tokenizer_config.json", "config.json", "genai_config.json"};
  return std::any_of(std::begin(names), std::end(names), [&](const char* name) {
    std::error_code error;
    return fs::symlink_status(folder / name, error).type() != fs::file_type::not_found;
  });
}

}  // namespace

ModelFile find_model(const fs::path& given, const std::string& variant) {
  std::error_code error;
  if (!fs::exists(given, error)) error ? refuse_unreadable(given, error) : refuse_missing(given);
  const bool is_folder = fs::is_directory(given, error);
  if (!is_folder && !variant.empty())
    throw Error(Code::kUsage,
                "--variant chooses of a folder's files; " + escaped(given.string()) + " is a file");
  ModelFile model;
  model.onnx = is_folder ? choose(given, variant) : given;
  const fs::path folder = fs::absolute(model.onnx).lexically_normal().parent_path();
  // As repositories on the hub: onnx/model.onnx and its variants, everything else one folder up.
  const bool is_hub_layout = folder.filename() == "onnx" && !has_text(folder);
  model.text_folder = is_hub_layout ? folder.parent_path() : folder;
  const std::string stem = model.onnx.stem().string(), repository = model.text_folder.filename().string();
  const std::string usual = usual_stem(model.onnx);
  const bool is_repository =
      stem == usual || (stem.starts_with(usual + "_") && (is_hub_layout || !variant.empty()));
  model.name = is_repository && !repository.empty() ? repository : stem;
  return model;
}

std::string fingerprint_of(const ModelFile& model) {
  constexpr uintmax_t kSamples = 64, kBytes = 16 << 10;
  Sha256 sum;
  sum.add_field(kVersion);
  std::vector<fs::path> parts = parts_of(model.onnx);
  if (const auto lookup = onnx::embeddings_beside(model.onnx))
    for (fs::path& part : parts_of(*lookup)) parts.push_back(std::move(part));
  for (const fs::path& part : parts) {
    std::error_code error;
    const uintmax_t size = fs::file_size(part, error);
    sum.add_field(std::to_string(size));
    std::ifstream in(part, std::ios::binary);
    std::string sample(kBytes, '\0');
    for (uintmax_t i = 0; i < kSamples && in; ++i) {
      in.seekg(static_cast<std::streamoff>(size > kBytes ? (size - kBytes) / (kSamples - 1) * i : 0));
      in.read(sample.data(), static_cast<std::streamsize>(kBytes));
      sum.add_field(std::string_view(sample).substr(0, static_cast<std::size_t>(in.gcount())));
    }
  }
  return "fp_" + sum.hex().substr(0, 16);
}

}  // namespace ark
