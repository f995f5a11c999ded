// TensorProto: element type, dims, and where the payload lies.
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/texts.h"
#include "importer/onnx_parser.h"

namespace ark::onnx {
namespace {

const char* const kTypeNames[] = {
    "UNDEFINED",      "FLOAT",      "UINT8",          "INT8",       "UINT16",    "INT16",
    "INT32",          "INT64",      "STRING",         "BOOL",       "FLOAT16",   "DOUBLE",
    "UINT32",         "UINT64",     "COMPLEX64",      "COMPLEX128", "BFLOAT16",  "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4",      "INT4",      "FLOAT4E2M1",
    "FLOAT8E8M0",     "UINT2",      "INT2",           "FLOAT6E2M3", "FLOAT6E3M2"};

// The field of TensorProto that holds a type's elements one by one.
uint32_t typed_field(DType type) {
  switch (type) {
    case DType::kF32:
      return 4;
    case DType::kI64:
      return 7;
    case DType::kF64:
      return 10;
    case DType::kU32:
    case DType::kU64:
      return 11;
    default:
      return 5;  // int32_data
  }
}

// Bytes that one varint of int32_data, int64_data or uint64_data becomes. 4-bit types: two elements a varint.
std::size_t varint_width(DType type) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(bits_of(type) / 8));
}

}  // namespace

std::string element_type_name(int64_t type) {
  const bool known = type >= 0 && type < static_cast<int64_t>(std::size(kTypeNames));
  return (known ? kTypeNames[type] : "unknown") + (" (" + std::to_string(type) + ")");
}

namespace {

// Collects the fields of one TensorProto; finish() checks them against each other.
class TensorReader {
 public:
  using Field = WireReader::Field;
  TensorReader(WireReader& wire, std::shared_ptr<const WeightFile> file, ExternalFiles& external)
      : wire_(wire), file_(std::move(file)), external_(external) {}

  void field(Field f) {
    switch (f.number) {
      case 1:
        wire_.varints(f, [&](int64_t d) { dimension(d); });
        break;
      case 2:
        type_ = wire_.varint(f), dtype_ = dtype_numbered(type_);
        break;
      case 3:
        wire_.unsupported("tensors in segments are not supported: store the tensor whole");
      case 4:
      case 10:
        fixed(f);
        break;
      case 5:
      case 7:
      case 11:
        integers(f);
        break;
      case 6:
        wire_.charge(sizeof(std::string));
        texts_.push_back(wire_.text(f, wire_.limits().max_string_bytes, "max_string_bytes"));
        break;
      case 8:
        result_.name = wire_.name(f);
        break;
      case 9:
        raw_ = wire_.payload(f), has_raw_ = true;
        break;
      case 13:
        external_entry(f);
        break;
      case 14:
        is_external_ = wire_.varint(f) == 1;
        break;
      default:
        wire_.skip(f);
    }
  }

  TensorRef finish() {
    if (type_ == 0) fail("has no element type");
    if (dtype_ == DType::kUndefined)
      wire_.unsupported(label() + " has element type " + element_type_name(type_) +
                        ", which ark does not read: convert it to FLOAT or FLOAT16");
    const int64_t count = checked_count();
    if (dtype_ == DType::kString && static_cast<int64_t>(texts_.size()) != count)
      fail("has " + std::to_string(texts_.size()) + " strings for " + std::to_string(count) + " elements");
    wire_.charge(sizeof(TensorRef) + sizeof(Constant));
    auto c = std::make_shared<Constant>();
    c->dtype = dtype_;
    c->dims = c->stored_dims = dims_;
    c->name = result_.name;
    c->bytes = bytes_of(dtype_, count);
    if (dtype_ == DType::kString)
      c->inline_data = tensor_of_texts(dims_, texts_);
    else
      locate(*c);
    result_.constant = std::move(c);
    return std::move(result_);
  }

 private:
  std::string label() const {
    return "tensor " + (result_.name.empty() ? "without name" : "'" + escaped(result_.name) + "'");
  }
  [[noreturn]] void fail(const std::string& why) const { wire_.fail(label() + " " + why); }

  void dimension(int64_t size) {
    if (static_cast<int>(dims_.size()) >= wire_.limits().max_rank)
      fail("has more than " + std::to_string(wire_.limits().max_rank) + " dimensions (max_rank)");
    dims_.push_back(size);
  }

  int64_t checked_count() const {
    try {
      const int64_t count = element_count(dims_);
      if (count <= wire_.limits().max_tensor_bytes) return count;
    } catch (const Error& e) {
      fail(std::string("has a ") + e.what());
    }
    fail("has more than " + std::to_string(wire_.limits().max_tensor_bytes) + " elements (max_tensor_bytes)");
  }

  // float_data, double_data: on the wire as in memory. One packed run stays where it is.
  void fixed(Field f) {
    seen(f.number);
    if (f.type == WireReader::kLength) {
      WireReader::Payload run = wire_.payload(f);
      if (!run_ && typed_.empty())
        run_ = run;
      else
        append_run(run);
      return;
    }
    if (run_) flush_run();
    const double value = f.number == 4 ? wire_.fixed32(f) : wire_.fixed64(f);
    const auto narrow = static_cast<float>(value);
    if (f.number == 4)
      append(&narrow, sizeof narrow);
    else
      append(&value, sizeof value);
  }

  void flush_run() {
    const WireReader::Payload run = *run_;
    run_.reset();
    append_run(run);
  }

  void append_run(const WireReader::Payload& run) {
    if (run_) flush_run();
    wire_.charge(run.bytes);
    const std::size_t old = typed_.size();
    typed_.resize(old + static_cast<std::size_t>(run.bytes));
    if (run.data)
      std::memcpy(typed_.data() + old, run.data.get(), static_cast<std::size_t>(run.bytes));
    else if (run.bytes)
      file_->read(run.offset, run.bytes, typed_.data() + old);
  }

  void integers(Field f) {
    seen(f.number);
    // The element type comes first in every known writer; if not, 8 bytes are kept until it is known.
    const std::size_t width =
        dtype_ == DType::kUndefined || dtype_ == DType::kString ? 8 : varint_width(dtype_);
    if (!typed_.empty() && width != width_) narrow(width);
    width_ = width;
    wire_.varints(f, [&](int64_t v) { append(&v, width); });  // the low bytes: little-endian
  }

  void append(const void* bytes, std::size_t n) {
    if (n == 8) wire_.charge(8);  // narrower elements take no more memory than twice the file's bytes
    const auto* from = static_cast<const std::byte*>(bytes);
    typed_.insert(typed_.end(), from, from + n);
  }

  void narrow(std::size_t width) {
    if (width > width_) fail("states its element type twice");
    const std::size_t count = typed_.size() / width_;
    for (std::size_t i = 0; i < count; ++i) std::memmove(&typed_[i * width], &typed_[i * width_], width);
    typed_.resize(count * width);
    width_ = width;
  }

  void seen(uint32_t field) {
    if (field_ && field_ != field) fail("has data in two fields of different types");
    field_ = field;
  }

  void external_entry(Field f) {
    std::string key, value;
    wire_.message(f, [&](Field entry) {
      switch (entry.number) {
        case 1:
          key = wire_.name(entry);
          break;
        case 2:
          value = wire_.name(entry);
          break;
        default:
          wire_.skip(entry);
      }
    });
    if (key == "location") location_ = value;
    if (key == "offset") offset_ = number(key, value);
    if (key == "length") length_ = number(key, value);
  }

  int64_t number(const std::string& key, const std::string& value) const {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error != std::errc() || end != value.data() + value.size() || n < 0)
      fail("has external " + key + " '" + escaped(value) + "', which is no size");
    return n;
  }

  // Sets the constant's payload; its bytes are what dims and type ask for.
  void locate(Constant& c) {
    const bool typed = run_ || !typed_.empty();
    if (is_external_ + (has_raw_ && raw_.bytes) + typed > 1) fail("has its data in two places");
    if (is_external_) return locate_external(c);
    if (typed && field_ != typed_field(dtype_)) fail("has data in the field of another element type");
    if (typed && !run_ && field_ != 4 && field_ != 10 && width_ != varint_width(dtype_))
      narrow(varint_width(dtype_));
    const int64_t found = typed ? (run_ ? run_->bytes : static_cast<int64_t>(typed_.size())) : raw_.bytes;
    if (found != c.bytes)
      fail("has " + std::to_string(found) + " bytes of data, but dims and type ask for " +
           std::to_string(c.bytes));
    const WireReader::Payload payload = run_ ? *run_ : raw_;
    if (file_ && c.bytes && !payload.data && typed_.empty()) {
      c.file = file_;
      c.offset = payload.offset;
      return;
    }
    c.inline_data = {dtype_, dims_, payload.data};
    if (!typed_.empty()) {
      c.inline_data.data = aligned_bytes(c.bytes);
      std::memcpy(c.inline_data.data.get(), typed_.data(), typed_.size());
    }
  }

  void locate_external(Constant& c) {
    if (length_ && *length_ != c.bytes)
      fail("has external length " + std::to_string(*length_) + ", but dims and type ask for " +
           std::to_string(c.bytes) + " bytes");
    if (c.bytes == 0) {
      c.inline_data = {dtype_, dims_, nullptr};
      return;
    }
    try {
      c.file = external_.open(location_, wire_.limits());
    } catch (const Error& e) {
      throw Error(e.code(), label() + ": " + e.what());
    }
    if (offset_ > c.file->size() || c.bytes > c.file->size() - offset_)
      fail("has " + std::to_string(c.bytes) + " bytes at offset " + std::to_string(offset_) + " of " +
           escaped(location_) + ", which has " + std::to_string(c.file->size()));
    c.offset = offset_;
  }

  WireReader& wire_;
  std::shared_ptr<const WeightFile> file_;
  ExternalFiles& external_;
  TensorRef result_;
  std::vector<std::string> texts_;  // string_data
  Dims dims_;
  int64_t type_ = 0;
  DType dtype_ = DType::kUndefined;
  WireReader::Payload raw_;
  bool has_raw_ = false;
  std::optional<WireReader::Payload> run_;  // the one packed run of float_data or double_data
  std::vector<std::byte> typed_;            // elements of the typed fields otherwise
  std::size_t width_ = 8;                   // of one element of typed_, integers only
  uint32_t field_ = 0;                      // the typed field seen
  bool is_external_ = false;
  std::string location_;
  int64_t offset_ = 0;
  std::optional<int64_t> length_;
};

}  // namespace

TensorRef Parser::tensor(Field field) {
  TensorReader reader(wire_, file_, external_);
  wire_.message(field, [&](Field f) { reader.field(f); });
  return reader.finish();
}

TensorRef Parser::lone_tensor() {
  TensorReader reader(wire_, file_, external_);
  wire_.fields([&](Field f) { reader.field(f); });
  return reader.finish();
}

}  // namespace ark::onnx
