#include "importer/wire.h"

#include <bit>
#include <climits>

#include "base/error.h"

namespace ark {
namespace {

using google::protobuf::io::CodedInputStream;

constexpr int kWindow = 64 << 10;     // bytes of the file held at once
constexpr int kInlinePayload = 1024;  // payloads up to this size are kept with the structure

// A file as protobuf likes it. Skip() moves without reading: payloads are never touched.
class FileStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit FileStream(std::shared_ptr<const WeightFile> file) : file_(std::move(file)), window_(kWindow) {}

  bool Next(const void** data, int* size) override {
    const auto n = static_cast<int>(std::min<int64_t>(kWindow, file_->size() - position_));
    if (n <= 0) return false;
    file_->read(position_, n, window_.data());
    position_ += n;
    *data = window_.data();
    *size = n;
    return true;
  }
  void BackUp(int count) override { position_ -= count; }
  bool Skip(int count) override {
    position_ += count;
    return position_ <= file_->size();
  }
  int64_t ByteCount() const override { return position_; }

 private:
  std::shared_ptr<const WeightFile> file_;
  std::vector<std::byte> window_;
  int64_t position_ = 0;
};

}  // namespace

WireReader::WireReader(std::shared_ptr<const WeightFile> file, std::span<const std::byte> bytes,
                       std::string name, const Limits& limits)
    : limits_(limits), name_(std::move(name)), file_(std::move(file)) {
  const int64_t size = file_ ? file_->size() : static_cast<int64_t>(bytes.size());
  const int64_t most = std::min<int64_t>(limits.max_inline_bytes, INT_MAX);
  if (size > most)
    throw Error(Code::kBadModel, name_ + " has " + std::to_string(size) +
                                     " bytes; a model file holds at most " + std::to_string(most) +
                                     " (max_inline_bytes): store weights as external data");
  if (file_) {
    source_ = std::make_unique<FileStream>(file_);
    stream_ = std::make_unique<CodedInputStream>(source_.get());
  } else {
    stream_ = std::make_unique<CodedInputStream>(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                 static_cast<int>(size));
  }
  stream_->PushLimit(static_cast<int>(size));
}

WireReader::~WireReader() = default;

std::string WireReader::where() const {
  return name_ + ": byte " + std::to_string(stream_->CurrentPosition()) + ": ";
}
void WireReader::fail(const std::string& why) const { throw Error(Code::kBadModel, where() + why); }
void WireReader::unsupported(const std::string& why) const { throw Error(Code::kUnsupported, where() + why); }

void WireReader::charge(int64_t bytes) {
  charged_ += bytes;
  if (charged_ > limits_.max_structure_bytes)
    fail("the file's structures take more than " + std::to_string(limits_.max_structure_bytes) +
         " bytes (max_structure_bytes): no model needs as much beside its weights");
}

WireReader::Level::Level(WireReader& reader) : reader_(reader) {
  if (reader.depth_ >= reader.limits_.max_nesting)
    reader.fail("messages are nested more than " + std::to_string(reader.limits_.max_nesting) +
                " deep (max_nesting)");
  ++reader.depth_;
}

bool WireReader::next(Field& field) {
  if (at_end()) return false;
  const uint32_t tag = stream_->ReadTag();
  field = {tag >> 3, static_cast<Type>(tag & 7)};
  if (field.number == 0) fail("broken field tag; the file is damaged or no ONNX model");
  if (field.type > kFixed32)
    fail("wire type " + std::to_string(field.type) + " does not exist; the file is damaged");
  return true;
}

void WireReader::expect(Field field, Type type) const {
  if (field.type != type)
    fail("field " + std::to_string(field.number) + " has wire type " + std::to_string(field.type) +
         " instead of " + std::to_string(type) + "; the file is damaged or no ONNX model");
}

int WireReader::length() {
  uint64_t n = 0;
  if (!stream_->ReadVarint64(&n)) fail("broken length; the file is damaged");
  const int left = stream_->BytesUntilLimit();
  if (n > static_cast<uint64_t>(left))
    fail("a length of " + std::to_string(n) + " bytes where " + std::to_string(left) +
         " are left; the file is cut off or damaged");
  return static_cast<int>(n);
}

CodedInputStream::Limit WireReader::enter(Field field) {
  expect(field, kLength);
  return stream_->PushLimit(length());
}

void WireReader::leave(CodedInputStream::Limit outer) { stream_->PopLimit(outer); }

int64_t WireReader::varint(Field field) {
  expect(field, kVarint);
  uint64_t value = 0;
  if (!stream_->ReadVarint64(&value)) fail("broken integer; the file is cut off or damaged");
  return static_cast<int64_t>(value);
}

double WireReader::fixed32(Field field) {
  expect(field, kFixed32);
  uint32_t bits = 0;
  if (!stream_->ReadLittleEndian32(&bits)) fail("broken float; the file is cut off or damaged");
  return std::bit_cast<float>(bits);
}

double WireReader::fixed64(Field field) {
  expect(field, kFixed64);
  uint64_t bits = 0;
  if (!stream_->ReadLittleEndian64(&bits)) fail("broken double; the file is cut off or damaged");
  return std::bit_cast<double>(bits);
}

std::string WireReader::text(Field field, int64_t max_bytes, const char* limit) {
  expect(field, kLength);
  const int n = length();
  if (n > max_bytes)
    fail("a string of " + std::to_string(n) + " bytes; at most " + std::to_string(max_bytes) + " (" + limit +
         ")");
  if (n > 15) charge(n);
  std::string value;
  if (!stream_->ReadString(&value, n)) fail("broken string; the file is cut off");
  return value;
}

WireReader::Payload WireReader::payload(Field field) {
  expect(field, kLength);
  Payload p;
  p.bytes = length();
  p.offset = stream_->CurrentPosition();
  const auto n = static_cast<int>(p.bytes);
  if (file_ && n > kInlinePayload) {
    if (!stream_->Skip(n)) fail("the file is cut off");
    return p;
  }
  charge(file_ ? n : 0);
  p.data = aligned_bytes(n);
  if (!stream_->ReadRaw(p.data.get(), n)) fail("the file is cut off");
  return p;
}

void WireReader::skip(Field field) {
  bool whole = true;
  uint64_t ignored = 0;
  switch (field.type) {
    case kVarint:
      whole = stream_->ReadVarint64(&ignored);
      break;
    case kFixed64:
      whole = stream_->Skip(8);
      break;
    case kFixed32:
      whole = stream_->Skip(4);
      break;
    case kLength:
      whole = stream_->Skip(length());
      break;
    case kEndGroup:
      fail("a group ends that did not begin; the file is damaged");
    case kGroup: {
      const Level level(*this);
      for (Field inner; next(inner);) {
        if (inner.type == kEndGroup && inner.number == field.number) return;
        skip(inner);
      }
      fail("a group does not end; the file is cut off or damaged");
    }
  }
  if (!whole) fail("the file is cut off or damaged");
}

}  // namespace ark
