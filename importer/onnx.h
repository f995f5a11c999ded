// The ONNX file as plain structs, straight from the wire (onnx.proto's messages and field names), nothing
// interpreted. Payloads of tensors are ConstantRefs: a range of a file, not bytes in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/ir/constant.h"
#include "base/ir/limits.h"

namespace ark::onnx {

struct Graph;

// TensorProto. Small typed fields (float_data, int64_data, ...) are decoded to inline constants.
struct TensorRef {
  std::string name;
  ConstantPtr constant;  // null where there is no tensor
};

// TypeProto: tensor types only; others keep `kind` for the message that refuses them.
struct Dimension {
  std::string parameter;  // dim_param, or empty
  int64_t value = -1;     // dim_value, -1 if absent
};
struct Type {
  std::string kind = "tensor";  // tensor, sequence, optional, map, sparse_tensor, none
  int32_t element_type = 0;     // TensorProto.DataType
  bool has_shape = false;
  std::vector<Dimension> dims;
};
struct ValueInfo {
  std::string name;
  Type type;
};

enum class AttributeType : uint8_t {
  kUndefined,
  kFloat,
  kInt,
  kString,
  kTensor,
  kGraph,
  kFloats,
  kInts,
  kStrings,
  kTensors,
  kGraphs,
  kOther
};

struct Attribute {
  std::string name;
  std::string ref_attr_name;  // inside functions
  AttributeType type = AttributeType::kUndefined;
  bool is_typed = false;  // the file says the type; else it is that of what was found
  double f = 0;
  int64_t i = 0;
  std::string s;
  TensorRef t;
  std::shared_ptr<Graph> g;
  std::vector<double> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
};

struct Node {
  std::string name, op_type, domain, overload;
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> attributes;
  const Attribute* attribute(std::string_view name) const;
};

struct Graph {
  std::string name;
  std::vector<Node> nodes;
  std::vector<TensorRef> initializers;  // sparse initializers are refused at parse
  std::vector<ValueInfo> inputs, outputs, value_infos;
};

struct Function {
  std::string name, domain, overload;
  std::vector<std::string> inputs, outputs, attributes;
  std::vector<Attribute> attribute_defaults;
  std::vector<Node> nodes;
  std::map<std::string, int64_t> opsets;
};

// A file that a model was read from.
struct SourceFile {
  std::string location;  // as external data names it; empty: the model's own
  FileStamp stamp;       // before it was opened
};

struct Model {
  int64_t ir_version = 0;
  std::string producer, producer_version;
  std::map<std::string, int64_t> opsets;  // domain ("" for ai.onnx) -> version
  Graph graph;
  std::vector<Function> functions;
  std::map<std::string, std::string> metadata;
  std::vector<SourceFile> files;  // unless it was in memory
};

// Reads FILE, or the one .onnx file in directory FILE. Never holds a payload in memory.
// Throws Error kNotFound (missing), kBadModel (broken, hostile: what, byte offset, limit, remedy).
Model parse_model(const std::filesystem::path& file, const Limits& limits = {});
// The stamp of what a location leads to now; nothing where it leads nowhere, or not where it may.
std::optional<FileStamp> stamp_now(const std::filesystem::path& model, const std::string& location);
// The same from `file`, or if that is null from memory (payloads are copied then); external data is looked up
// relative to `directory`.
Model parse_model(std::shared_ptr<const WeightFile> file, std::span<const std::byte> bytes,
                  const std::filesystem::path& directory, const Limits& limits = {});
// A file that holds one TensorProto: the data sets of ONNX's backend tests.
TensorRef parse_tensor(const std::filesystem::path& file, const Limits& limits = {});

// "FLOAT16 (10)", for messages; dtype_numbered() is ark's type.
std::string element_type_name(int64_t element_type);

}  // namespace ark::onnx
