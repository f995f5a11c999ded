// The front door of parsing: which file, what it is, and where external data may lie.
#include "importer/onnx.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "importer/onnx_parser.h"

namespace ark::onnx {
namespace {

namespace fs = std::filesystem;

// The one .onnx file of a directory.
fs::path resolve(const fs::path& given) {
  std::error_code ignored;
  if (!fs::is_directory(given, ignored)) return given;
  std::vector<fs::path> found;
  for (const std::string& name : names_in(given))
    if (fs::path(name).extension() == ".onnx") found.push_back(given / name);
  if (found.size() == 1) return found[0];
  throw Error(Code::kNotFound, "directory " + escaped(given.string()) + " holds " +
                                   std::to_string(found.size()) + " .onnx files: name the file");
}

constexpr const char* kExport = "export the model: optimum-cli export onnx --model FOLDER OUT_DIR";

// What else the file could be, as advice; "" if nothing comes to mind.
std::string advice(const WeightFile& file) {
  char head[64] = {};
  file.read(0, std::min<int64_t>(file.size(), sizeof head), head);
  const std::string_view text(head, sizeof head);
  if (text.starts_with("version https://git-lfs"))
    return "a Git LFS pointer; run `git lfs pull` where it lies";
  if (text.starts_with("GGUF")) return "a GGUF file; convert it: python3 models/gguf_to_onnx.py FILE OUT_DIR";
  if (text.starts_with("PK\x03\x04"))
    return std::string("a zip archive, as PyTorch saves .bin and .pt files; ") + kExport;
  if (text.find("\"__metadata__\"") != text.npos || text.find("{\"") == 8)
    return std::string("a safetensors file; ") + kExport;
  // A model begins with a control character, the key of its first field.
  const bool is_text = std::all_of(text.begin(), text.begin() + std::min<int64_t>(file.size(), sizeof head),
                                   [](unsigned char c) { return c >= ' ' || (c >= '\t' && c <= '\r'); });
  return is_text ? "text" : "";
}

std::string shown_of(const std::string& location) { return "external data '" + escaped(location) + "'"; }

fs::path folder_of(const fs::path& model) { return model.has_parent_path() ? model.parent_path() : "."; }

}  // namespace

fs::path ExternalFiles::find(const std::string& location) const {
  const fs::path relative(location);
  const std::string shown = shown_of(location);
  if (location.empty() || location.find('\0') != location.npos || relative.is_absolute())
    throw Error(Code::kBadModel, shown + " is no path relative to the model");
  for (const fs::path& part : relative)
    if (part == "..") throw Error(Code::kBadModel, shown + " leaves the directory of the model");
  if (directory_.empty()) throw Error(Code::kBadModel, shown + " of a model in memory cannot be read");
  return find_beside(directory_, relative, model_, shown);
}

std::shared_ptr<const WeightFile> ExternalFiles::open(const std::string& location, const Limits& limits) {
  if (const auto it = files_.find(location); it != files_.end()) return it->second;
  const fs::path path = find(location);
  opened_.push_back({location, stamp_of(path).value_or(FileStamp{})});
  auto file = WeightFile::open(path);
  if (file->size() > limits.max_file_bytes)
    throw Error(Code::kBadModel, shown_of(location) + " has " + std::to_string(file->size()) +
                                     " bytes; at most " + std::to_string(limits.max_file_bytes) +
                                     " (max_file_bytes)");
  return files_[location] = file;
}

Model parse_model(const fs::path& given, const Limits& limits) {
  const fs::path path = resolve(given);
  const FileStamp stamp = stamp_of(path).value_or(FileStamp{});
  const auto file = WeightFile::open(path);
  if (file->size() == 0) throw Error(Code::kBadModel, escaped(path.string()) + " is empty");
  WireReader wire(file, {}, escaped(path.string()), limits);
  ExternalFiles external(folder_of(path), path);
  try {
    Model model = Parser(wire, file, external).model();
    model.files = external.opened();
    model.files.insert(model.files.begin(), {"", stamp});
    return model;
  } catch (const Error& e) {
    const std::string hint = advice(*file);
    if (hint.empty()) throw;
    throw Error(Code::kBadModel, escaped(path.string()) + " is no ONNX model but " + hint);
  }
}

Model parse_model(std::shared_ptr<const WeightFile> file, std::span<const std::byte> bytes,
                  const fs::path& directory, const Limits& limits) {
  const std::string name = file ? escaped(file->path()) : "model in memory";
  WireReader wire(file, bytes, name, limits);
  ExternalFiles external(directory, file ? fs::path(file->path()) : fs::path());
  return Parser(wire, std::move(file), external).model();
}

TensorRef parse_tensor(const fs::path& path, const Limits& limits) {
  const auto file = WeightFile::open(path);
  WireReader wire(file, {}, escaped(path.string()), limits);
  ExternalFiles external(folder_of(path), path);
  return Parser(wire, file, external).lone_tensor();
}

std::optional<FileStamp> stamp_now(const fs::path& model, const std::string& location) {
  if (location.empty()) return stamp_of(model);
  try {
    return stamp_of(ExternalFiles(folder_of(model), model).find(location));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace ark::onnx
