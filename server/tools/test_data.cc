#include "server/tools/test_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/texts.h"
#include "importer/onnx.h"
#include "server/json.h"
#include "server/text/unicode.h"

namespace ark::tools {
namespace {

namespace fs = std::filesystem;

// Characters of one .npy file, whose texts are all as long as the longest.
constexpr std::size_t kMostCharacters = 1 << 28;

std::optional<Tensor> read_pb(const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  const onnx::TensorRef ref = onnx::parse_tensor(file);
  return materialise(*ref.constant);
}

// Calls `f` with what the file says, if there is one. What `f` does not find as it should be is the file's
// fault.
void with_json(const fs::path& file, const std::function<void(const Json&)>& f) {
  std::ifstream in(file);
  if (!in) return;
  try {
    f(Json::parse(in));
  } catch (const Json::exception& e) {
    throw Error(Code::kInvalidArgument, escaped(file.string()) + ": " + escaped(e.what()));
  }
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
  return i % t.dims[axis];
}

std::string element_text(const Tensor& t, int64_t i) {
  if (t.dtype == DType::kString) return "'" + escaped(text_numbered(t.as<uint64_t>()[i]), 60) + "'";
  if (is_floating(t.dtype)) return std::to_string(t.real(i));
  return t.dtype == DType::kU64 ? std::to_string(static_cast<uint64_t>(t.integer(i)))
                                : std::to_string(t.integer(i));
}

struct Gap {
  bool within = true;
  double size = 0;   // to find the worst
  std::string text;  // set unless `within`
};

// Integers are compared as such: doubles hold no more than 53 of their bits.
Gap integer_gap(const Tensor& actual, const Tensor& expected, int64_t i) {
  const auto a = static_cast<uint64_t>(actual.integer(i)), b = static_cast<uint64_t>(expected.integer(i));
  if (a == b) return {};
  const bool less = actual.dtype == DType::kU64 ? a < b : static_cast<int64_t>(a) < static_cast<int64_t>(b);
  const uint64_t gap = less ? b - a : a - b;
  return {false, static_cast<double>(gap), std::to_string(gap)};
}

Gap gap_of(const Tensor& actual, const Tensor& expected, int64_t i, const Tolerance& tolerance) {
  if (actual.dtype == DType::kString) {
    const bool differs = actual.as<uint64_t>()[i] != expected.as<uint64_t>()[i];
    return differs ? Gap{false, 1, "a text"} : Gap{};
  }
  if (!is_floating(actual.dtype)) return integer_gap(actual, expected, i);
  const double a = actual.real(i), b = expected.real(i);
  if (a == b || (std::isnan(a) && std::isnan(b))) return {};
  const double gap = std::abs(a - b);
  // No tolerance reaches from a number to an infinity, although a relative one of an infinity is infinite.
  if (std::isfinite(gap) && gap <= tolerance.absolute + tolerance.relative * std::abs(b)) return {};
  return {false, gap, std::to_string(gap)};
}

// One .npy file. Messages leave the file's name to the caller.
class NpyReader {
 public:
  NpyReader(std::istream& in, int64_t file_bytes) : in_(in), file_bytes_(file_bytes) {}

  Tensor read() {
    read_header();
    if (field("fortran_order").starts_with("True"))
      bad("is in Fortran order; save it with numpy.ascontiguousarray");
    const std::string_view code = type_code();
    if (const int width = character_bytes(code)) return texts(code, width);
    const DType type = element_type(code);
    Dims dims = sizes(bits_of(type));
    Tensor t = Tensor::empty(type, std::move(dims));
    in_.read(reinterpret_cast<char*>(t.data.get()), t.bytes());
    if (!in_) bad("is shorter than its shape says");
    return t;
  }

 private:
  [[noreturn]] static void bad(const std::string& why) { throw Error(Code::kInvalidArgument, why); }

  void read_header() {
    unsigned char head[8]{}, length[4]{};
    in_.read(reinterpret_cast<char*>(head), sizeof head);
    if (!in_ || std::memcmp(head, "\x93NUMPY", 6) != 0 || (head[6] != 1 && head[6] != 2))
      bad("is no NumPy file of format 1.0 or 2.0");
    in_.read(reinterpret_cast<char*>(length), head[6] == 1 ? 2 : 4);
    const int64_t bytes = length[0] | length[1] << 8 | length[2] << 16 | int64_t{length[3]} << 24;
    if (!in_ || bytes > file_bytes_) bad("is shorter than its header");
    header_.resize(static_cast<std::size_t>(bytes));
    in_.read(header_.data(), bytes);
    if (!in_) bad("is shorter than its header");
  }

  // What follows the key, to the end of the header.
  std::string_view field(const std::string& key) const {
    const std::size_t at = header_.find("'" + key + "'");
    const std::size_t colon = at == header_.npos ? at : header_.find(':', at);
    if (colon == header_.npos) bad("its header has no " + key);
    const std::size_t value = header_.find_first_not_of(' ', colon + 1);
    if (value == header_.npos) bad("its header has no " + key);
    return std::string_view(header_).substr(value);
  }

  static DType element_type(std::string_view code) {
    static const std::map<std::string_view, DType> kTypes{
        {"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16}, {"<i8", DType::kI64},
        {"<i4", DType::kI32}, {"<i2", DType::kI16}, {"|i1", DType::kI8},  {"|u1", DType::kU8},
        {"<u2", DType::kU16}, {"<u4", DType::kU32}, {"<u8", DType::kU64}, {"|b1", DType::kBool}};
    const auto type = kTypes.find(code);
    if (type == kTypes.end()) bad("has element type " + escaped(code, 40) + ", which is not read");
    return type->second;
  }

  std::string_view type_code() const {
    const std::string_view descr = field("descr");
    const std::size_t first = descr.find('\''), last = descr.find('\'', first + 1);
    return first == 0 && last != descr.npos ? descr.substr(1, last - 1) : descr;
  }

  // The shape, of a file that has as many elements of so many bits.
  Dims sizes(int64_t bits) const {
    Dims dims = shape();
    int64_t elements = 1;  // before anything is multiplied by the size of an element
    try {
      elements = element_count(dims);
    } catch (const Error& e) {
      bad(std::string("has the shape of a ") + e.what());
    }
    if (bits == 0 ? elements > kMostEmpty : elements > file_bytes_ * 8 / bits)
      bad("is shorter than its shape says");
    return dims;
  }

  // Of "<U7", code points, and "|S7", bytes; 0 for what holds no texts.
  static int character_bytes(std::string_view code) {
    return code.starts_with("<U") ? 4 : code.starts_with("|S") ? 1 : 0;
  }

  // Texts of one length, filled up with zeros.
  Tensor texts(std::string_view code, int width) {
    int64_t length = 0;
    const auto [end, failure] = std::from_chars(code.data() + 2, code.data() + code.size(), length);
    if (failure != std::errc() || end != code.data() + code.size() || length < 0 || length > file_bytes_)
      bad("has element type " + escaped(code, 40) + ", which is not read");
    Tensor t = Tensor::zeros(DType::kString, sizes(length * width * 8));
    std::u32string points(static_cast<std::size_t>(length), 0);
    std::string bytes(points.size(), 0);
    for (int64_t i = 0; i < t.size(); ++i) {
      in_.read(width == 4 ? reinterpret_cast<char*>(points.data()) : bytes.data(), length * width);
      if (!in_) bad("is shorter than its shape says");
      for (const char32_t c : points)
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) bad("has characters that Unicode has not");
      const std::string text = width == 4 ? text::to_utf8(points) : bytes;
      const std::size_t last = text.find_last_not_of('\0');
      t.as<uint64_t>()[i] =
          number_of_text(std::string_view(text).substr(0, last == text.npos ? 0 : last + 1));
    }
    return t;
  }

  // "(2, 3)", "(2,)" or "()".
  Dims shape() const {
    const std::string_view text = field("shape");
    const std::size_t close = text.find(')');
    if (text[0] != '(' || close == text.npos) bad("its header has no shape in brackets");
    Dims dims;
    for (std::string_view rest = text.substr(1, close - 1); !blank(rest);) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      dims.push_back(axis(rest.substr(0, comma)));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      if (dims.size() > kMostAxes) bad("has more than " + std::to_string(kMostAxes) + " axes");
    }
    return dims;
  }

  static bool blank(std::string_view text) { return text.find_first_not_of(' ') == text.npos; }

  static int64_t axis(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    text = text.substr(0, text.find_last_not_of(' ') + 1);
    int64_t size = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (failure != std::errc() || end != text.data() + text.size() || size < 0)
      bad("has an axis of " + (text.empty() ? "nothing" : escaped(text, 40)));
    return size;
  }

  static constexpr std::size_t kMostAxes = 64;    // as NumPy
  static constexpr int64_t kMostEmpty = 1 << 20;  // texts that take no bytes of the file

  std::istream& in_;
  int64_t file_bytes_;
  std::string header_;
};

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

fs::path plain_path(const fs::path& path) {
  const fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

Tolerance tolerance_for(const fs::path& data_set) {
  Tolerance t;
  const fs::path set = plain_path(data_set);
  with_json(set.parent_path() / "data.json", [&](const Json& data) {
    t.relative = data.value("rtol", t.relative);
    t.absolute = data.value("atol", t.absolute);
  });
  with_json(set.parent_path() / "expected.json", [&](const Json& expected) {
    if (expected.contains("tolerance")) {
      t.absolute = expected.at("tolerance").get<double>();
      t.relative = std::min(1e-4, t.absolute);
    }
    // By key: a JSON pointer would read '~' and '/' in names.
    const auto none = Json::object();
    const Json rules = expected.value("sets", none).value(set.filename().string(), none);
    for (const auto& pair : rules.value("padding_rows_to_ignore", Json::array()))
      t.ignored.emplace_back(pair.at(0), pair.at(1));
  });
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
  const auto rank = static_cast<int>(actual.dims.size());
  Gap worst;
  std::optional<std::string> result;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const Gap gap = gap_of(actual, expected, i, tolerance);
    if (gap.within) continue;
    if (padding && padding->batch < rank && padding->sequence < rank) {
      const std::pair at{coordinate(actual, i, padding->batch) / padding->parts,
                         coordinate(actual, i, padding->sequence) - padding->shift};
      if (std::find(tolerance.ignored.begin(), tolerance.ignored.end(), at) != tolerance.ignored.end())
        continue;
    }
    if (result && !(gap.size > worst.size)) continue;
    worst = gap;
    result = "element " + index_text(actual, i) + " is " + element_text(actual, i) + ", expected " +
             element_text(expected, i) + ", off by " + gap.text;
  }
  return result;
}

Tensor read_npy(const fs::path& file) {
  const std::string name = escaped(file.string());
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) throw Error(Code::kNotFound, "cannot open " + name);
  if (!fs::is_regular_file(status)) throw Error(Code::kInvalidArgument, name + ": is no regular file");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(Code::kNotFound, "cannot open " + name);
  try {
    return NpyReader(in, static_cast<int64_t>(fs::file_size(file))).read();
  } catch (const Error& e) {
    throw Error(e.code(), name + ": " + e.what());
  }
}

void write_npy(const fs::path& file, const Tensor& t) {
  static const std::map<DType, std::string> kCodes{
      {DType::kF32, "<f4"}, {DType::kF64, "<f8"}, {DType::kF16, "<f2"}, {DType::kBF16, "<u2"},
      {DType::kI64, "<i8"}, {DType::kI32, "<i4"}, {DType::kI16, "<i2"}, {DType::kI8, "|i1"},
      {DType::kU8, "|u1"},  {DType::kU16, "<u2"}, {DType::kU32, "<u4"}, {DType::kU64, "<u8"},
      {DType::kBool, "|b1"}};
  std::vector<std::u32string> texts;  // of one length
  std::size_t length = 1;
  if (t.dtype == DType::kString) {
    for (int64_t i = 0; i < t.size(); ++i)
      texts.push_back(text::to_utf32(text::lossy_utf8(text_numbered(t.as<uint64_t>()[i]))));
    for (const std::u32string& text : texts) length = std::max(length, text.size());
    if (texts.size() * length > kMostCharacters)
      throw Error(Code::kUnsupported, "texts of one length would take " +
                                          std::to_string(texts.size() * length) + " characters in " +
                                          file.string());
    for (std::u32string& text : texts) text.resize(length);
  } else if (!kCodes.contains(t.dtype))
    throw Error(Code::kUnsupported, "cannot save type " + std::string(name_of(t.dtype)) + " as .npy");
  std::string shape;
  for (int64_t d : t.dims) shape += std::to_string(d) + ",";
  std::string header = "{'descr': '" +
                       (t.dtype == DType::kString ? "<U" + std::to_string(length) : kCodes.at(t.dtype)) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
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
  for (const std::u32string& text : texts)
    out.write(reinterpret_cast<const char*>(text.data()), static_cast<std::streamsize>(length * 4));
  if (t.dtype != DType::kString) out.write(reinterpret_cast<const char*>(t.data.get()), t.bytes());
  if (!out.flush()) throw Error(Code::kOs, "cannot write " + file.string());
}

}  // namespace ark::tools
