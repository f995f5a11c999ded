// onnx.proto's messages over the wire reader. Private to the importer: use onnx::parse_model.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "importer/onnx.h"
#include "importer/wire.h"

namespace ark::onnx {

// Opens external data files, each once. Locations must stay inside the model's directory.
class ExternalFiles {
 public:
  // `model` may be empty (a model in memory); `directory` is where locations start.
  ExternalFiles(std::filesystem::path directory, std::filesystem::path model)
      : directory_(std::move(directory)), model_(std::move(model)) {}
  // Throws Error(kBadModel) for locations that leave the directory, kNotFound for missing files.
  std::shared_ptr<const WeightFile> open(const std::string& location, const Limits& limits);
  // Where it lies, links followed. Throws as open.
  std::filesystem::path find(const std::string& location) const;
  const std::vector<SourceFile>& opened() const { return opened_; }

 private:
  std::filesystem::path directory_, model_;
  std::map<std::string, std::shared_ptr<const WeightFile>> files_;
  std::vector<SourceFile> opened_;
};

class Parser {
 public:
  using Field = WireReader::Field;
  Parser(WireReader& wire, std::shared_ptr<const WeightFile> file, ExternalFiles& external)
      : wire_(wire), file_(std::move(file)), external_(external) {}

  Model model();

  // A lone TensorProto is the whole input (test data: input_0.pb).
  TensorRef lone_tensor();

 private:
  void opset(Field field, std::map<std::string, int64_t>& into);
  void metadata(Field field, std::map<std::string, std::string>& into);
  void graph(Field field, Graph& into);
  Node node(Field field);
  Attribute attribute(Field field);
  void attribute_payload(Field field, Attribute& into);
  void finish_attribute(Attribute& a, int64_t type);
  ValueInfo value_info(Field field);
  void type(Field field, Type& into);
  void tensor_type(Field field, Type& into);
  void shape(Field field, Type& into);
  Function function(Field field);
  TensorRef tensor(Field field);  // onnx_tensor.cc

  WireReader& wire_;
  std::shared_ptr<const WeightFile> file_;
  ExternalFiles& external_;
};

}  // namespace ark::onnx
