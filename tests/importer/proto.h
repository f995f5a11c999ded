// Writes ONNX files by hand, so that tests can write what no exporter would.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "importer/onnx.h"

namespace ark::test {

// One protobuf message under construction.
class Proto {
 public:
  Proto& varint(int field, int64_t value) {
    raw_varint(static_cast<uint64_t>(field) << 3);
    raw_varint(static_cast<uint64_t>(value));
    return *this;
  }
  Proto& text(int field, std::string_view value) {
    raw_varint(static_cast<uint64_t>(field) << 3 | 2);
    raw_varint(value.size());
    bytes.append(value);
    return *this;
  }
  Proto& message(int field, const Proto& inner) { return text(field, inner.bytes); }
  Proto& real(int field, float value) {
    raw_varint(static_cast<uint64_t>(field) << 3 | 5);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
    bytes.push_back(static_cast<char>(value));
  }
  std::string bytes;
};

using Names = std::vector<std::string>;

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline Proto tensor(const std::string& name, const std::vector<int64_t>& dims, int type,
                    const std::string& payload) {
  Proto t;
  for (int64_t d : dims) t.varint(1, d);
  return t.varint(2, type).text(8, name).text(9, payload);
}
inline Proto ints_tensor(const std::string& name, const std::vector<int64_t>& values) {
  return tensor(name, {static_cast<int64_t>(values.size())}, 7, raw(values));
}
inline Proto scalar_tensor(const std::string& name, int64_t value) {
  return tensor(name, {}, 7, raw<int64_t>({value}));
}

inline Proto int_attribute(const std::string& name, int64_t value) {
  return Proto().text(1, name).varint(3, value).varint(20, 2);
}
inline Proto graph_attribute(const std::string& name, const Proto& graph) {
  return Proto().text(1, name).message(6, graph).varint(20, 5);
}

inline Proto node(const std::string& op, const Names& inputs, const Names& outputs,
                  const std::vector<Proto>& attributes = {}, const std::string& domain = "") {
  Proto n;
  for (const auto& i : inputs) n.text(1, i);
  for (const auto& o : outputs) n.text(2, o);
  n.text(3, "n_" + (outputs.empty() ? op : outputs[0])).text(4, op);
  for (const auto& a : attributes) n.message(5, a);
  if (!domain.empty()) n.text(7, domain);
  return n;
}

// TensorProto.DataType.
constexpr int kF32 = 1, kI64 = 7, kBool = 9;

// dims: numbers are dim_value, other texts dim_param, "" neither.
inline Proto value_info(const std::string& name, int type, const Names& dims) {
  Proto shape;
  for (const auto& d : dims) {
    Proto dim;
    if (!d.empty() && (std::isdigit(static_cast<unsigned char>(d[0])) || d[0] == '-'))
      dim.varint(1, std::stoll(d));
    else if (!d.empty())
      dim.text(2, d);
    shape.message(1, dim);
  }
  return Proto().text(1, name).message(2, Proto().message(1, Proto().varint(1, type).message(2, shape)));
}

struct GraphParts {
  std::vector<Proto> nodes{}, initializers{}, inputs{}, outputs{};
};
inline Proto graph(const GraphParts& parts) {
  Proto g;
  for (const auto& n : parts.nodes) g.message(1, n);
  g.text(2, "g");
  for (const auto& t : parts.initializers) g.message(5, t);
  for (const auto& v : parts.inputs) g.message(11, v);
  for (const auto& v : parts.outputs) g.message(12, v);
  return g;
}
inline Proto opset(const std::string& domain, int64_t version) {
  return Proto().text(1, domain).varint(2, version);
}
inline Proto model(const Proto& graph, const std::vector<Proto>& functions = {}, int64_t ir = 8,
                   int64_t version = 17) {
  Proto m;
  m.varint(1, ir).message(8, opset("", version)).message(8, opset("local", 1)).message(7, graph);
  for (const auto& f : functions) m.message(25, f);
  return m;
}

inline onnx::Model parse(const std::string& bytes, const Limits& limits = {}) {
  return onnx::parse_model(nullptr, std::as_bytes(std::span(bytes)), "", limits);
}
inline onnx::Model parse(const Proto& model, const Limits& limits = {}) { return parse(model.bytes, limits); }

// A directory of the test's own, removed with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ark-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return path / name;
  }
  std::filesystem::path path;
};

// The message of the ark::Error that `f` throws with code `code`; "" (and a failure) if it does not.
template <typename F>
std::string error_of(Code code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace ark::test
