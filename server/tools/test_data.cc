#include "server/tools/test_data.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "importer/onnx.h"

namespace ark::tools {
namespace {

namespace fs = std::filesystem;

std::optional<Tensor> read_pb(const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  const onnx::TensorRef ref = onnx::parse_tensor(file);
  if (!ref.constant) throw Error(Code::kUnsupported, file.string() + " holds no numeric tensor");
  return materialise(*ref.constant);
}

std::optional<nlohmann::json> read_json(const fs::path& file) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  nlohmann::json parsed = nlohmann::json::parse(in, nullptr, false);
  if (parsed.is_discarded()) throw Error(Code::kInvalidArgument, file.string() + " is no JSON");
  return parsed;
}

std::string index_text(const Tensor& t, int64_t i) {
  std::string out = "]";
  for (std::size_t a = t.dims.size(); a-- > 0; i /= t.dims[a])
    out = (a ? "," : "") + std::to_string(i % t.dims[a]) + out;
  return "[" + out;
}

// The element's coordinate along `axis`.
int64_t coordinate(const Tensor& t, int64_t i, int axis) {
  for (std::size_t a = t.dims.size(); a-- > static_cast<std::size_t>(axis) + 1;) i /= t.dims[a];
  return i % t.dims[static_cast<std::size_t>(axis)];
}

}  // namespace

DataSet read_data_set(const fs::path& directory, std::size_t inputs, std::size_t outputs) {
  DataSet set;
  bool any = false;
  for (std::size_t i = 0; i < inputs; ++i) {
    set.inputs.push_back(read_pb(directory / ("input_" + std::to_string(i) + ".pb")));
    any = any || set.inputs.back();
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    set.outputs.push_back(read_pb(directory / ("output_" + std::to_string(i) + ".pb")));
    any = any || set.outputs.back();
  }
  if (!any) throw Error(Code::kNotFound, directory.string() + " holds no input_N.pb or output_N.pb");
  return set;
}

Tolerance tolerance_for(const fs::path& data_set) {
  Tolerance t;
  const fs::path directory = data_set.parent_path();
  if (const auto data = read_json(directory / "data.json")) {
    t.relative = data->value("rtol", t.relative);
    t.absolute = data->value("atol", t.absolute);
  }
  const auto expected = read_json(directory / "expected.json");
  if (!expected) return t;
  if (expected->contains("tolerance")) {
    t.absolute = expected->at("tolerance").get<double>();
    t.relative = std::min(1e-4, t.absolute);
  }
  const auto pointer =
      nlohmann::json::json_pointer("/sets/" + data_set.filename().string() + "/padding_rows_to_ignore");
  if (expected->contains(pointer))
    for (const auto& pair : expected->at(pointer)) t.ignored.emplace_back(pair.at(0), pair.at(1));
  return t;
}

std::optional<std::string> difference(const Tensor& actual, const Tensor& expected,
                                      const Tolerance& tolerance, const std::optional<PaddingAxes>& padding) {
  if (actual.dtype != expected.dtype)
    return "type is " + std::string(name_of(actual.dtype)) + ", expected " +
           std::string(name_of(expected.dtype));
  if (actual.dims != expected.dims) {
    const Shape a(actual.dims.begin(), actual.dims.end()), b(expected.dims.begin(), expected.dims.end());
    return "shape is " + str(a) + ", expected " + str(b);
  }
  const bool exact = !is_floating(actual.dtype);
  const auto rank = static_cast<int>(actual.dims.size());
  double worst = 0;
  std::optional<std::string> result;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double a = actual.real(i), b = expected.real(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double gap = std::abs(a - b);
    if (!exact && gap <= tolerance.absolute + tolerance.relative * std::abs(b)) continue;
    if (padding && padding->batch < rank && padding->sequence < rank) {
      const std::pair at{coordinate(actual, i, padding->batch),
                         coordinate(actual, i, padding->sequence) - padding->shift};
      if (std::find(tolerance.ignored.begin(), tolerance.ignored.end(), at) != tolerance.ignored.end())
        continue;
    }
    if (result && !(gap > worst)) continue;
    worst = gap;
    result = "element " + index_text(actual, i) + " is " + std::to_string(a) + ", expected " +
             std::to_string(b) + ", off by " + std::to_string(gap);
  }
  return result;
}

Tensor read_npy(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(Code::kNotFound, "cannot open " + file.string());
  const auto bad = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument, file.string() + ": " + why);
  };
  char magic[10]{};
  in.read(magic, 10);
  if (!in || std::string_view(magic, 6) != "\x93NUMPY" || magic[6] != 1)
    bad("is no NumPy file of format 1.0");
  const std::size_t length = static_cast<unsigned char>(magic[8]) |
                             static_cast<std::size_t>(static_cast<unsigned char>(magic[9])) << 8;
  std::string header(length, '\0');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const auto field = [&](const std::string& key) {
    const std::size_t at = header.find("'" + key + "'");
    if (at == std::string::npos) bad("its header has no " + key);
    return header.substr(header.find(':', at) + 1);
  };
  if (field("fortran_order").find("True") < field("fortran_order").find(','))
    bad("is in Fortran order; save it with numpy.ascontiguousarray");
  const std::string descr = field("descr");
  const std::string code =
      descr.substr(descr.find('\'') + 1, descr.find('\'', descr.find('\'') + 1) - descr.find('\'') - 1);
  static const std::map<std::string, DType> kTypes{
      {"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16}, {"<i8", DType::kI64},
      {"<i4", DType::kI32}, {"<i2", DType::kI16}, {"|i1", DType::kI8},  {"|u1", DType::kU8},
      {"<u2", DType::kU16}, {"<u4", DType::kU32}, {"<u8", DType::kU64}, {"|b1", DType::kBool}};
  if (!kTypes.contains(code)) bad("has element type " + escaped(code) + ", which is not read");
  const std::string shape = field("shape");
  Dims dims;
  std::string digits;
  for (char c : shape.substr(shape.find('(') + 1, shape.find(')') - shape.find('(') - 1) + ",") {
    if (std::isdigit(static_cast<unsigned char>(c)))
      digits += c;
    else if (!digits.empty()) {
      if (digits.size() > 15) bad("has an axis of " + digits);
      dims.push_back(std::stoll(std::exchange(digits, "")));
    }
  }
  if (bytes_of(kTypes.at(code), element_count(dims)) > static_cast<int64_t>(fs::file_size(file)))
    bad("is shorter than its shape says");
  Tensor t = Tensor::empty(kTypes.at(code), dims);
  in.read(reinterpret_cast<char*>(t.data.get()), t.bytes());
  if (!in) bad("is shorter than its shape says");
  return t;
}

void write_npy(const fs::path& file, const Tensor& t) {
  static const std::map<DType, std::string> kCodes{
      {DType::kF32, "<f4"}, {DType::kF64, "<f8"}, {DType::kF16, "<f2"}, {DType::kBF16, "<u2"},
      {DType::kI64, "<i8"}, {DType::kI32, "<i4"}, {DType::kI16, "<i2"}, {DType::kI8, "|i1"},
      {DType::kU8, "|u1"},  {DType::kU16, "<u2"}, {DType::kU32, "<u4"}, {DType::kU64, "<u8"},
      {DType::kBool, "|b1"}};
  if (!kCodes.contains(t.dtype))
    throw Error(Code::kUnsupported, "cannot save type " + std::string(name_of(t.dtype)) + " as .npy");
  std::string shape;
  for (int64_t d : t.dims) shape += std::to_string(d) + ",";
  std::string header =
      "{'descr': '" + kCodes.at(t.dtype) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header += std::string(63 - (header.size() + 10) % 64, ' ') + "\n";
  std::ofstream out(file, std::ios::binary);
  const char head[10] = {'\x93',
                         'N',
                         'U',
                         'M',
                         'P',
                         'Y',
                         1,
                         0,
                         static_cast<char>(header.size() & 255),
                         static_cast<char>(header.size() >> 8)};
  out.write(head, 10).write(header.data(), static_cast<std::streamsize>(header.size()));
  out.write(reinterpret_cast<const char*>(t.data.get()), t.bytes());
  if (!out.flush()) throw Error(Code::kOs, "cannot write " + file.string());
}

}  // namespace ark::tools
