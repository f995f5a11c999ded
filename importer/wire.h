// protobuf's wire format, read once from front to back. Knows fields, not messages: importer/onnx_parser.cc
// does. Every length is checked against what is left before it is used; every error names file and byte.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <memory>
#include <span>
#include <string>

#include "base/ir/constant.h"
#include "base/ir/limits.h"

namespace ark {

class WireReader {
 public:
  enum Type : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };
  struct Field {
    uint32_t number = 0;
    Type type = kVarint;
  };
  // Where a bytes field lies; `data` holds it if it is small or there is no file to read it from later.
  struct Payload {
    int64_t offset = 0, bytes = 0;
    std::shared_ptr<std::byte> data;
  };

  // Reads `file` in small windows, or `bytes` if file is null.
  WireReader(std::shared_ptr<const WeightFile> file, std::span<const std::byte> bytes, std::string name,
             const Limits& limits);
  ~WireReader();

  // Calls on_field(Field) for each field up to the end of the current message. It must consume the field.
  template <typename F>
  void fields(F&& on_field);
  // The same for the message in a field.
  template <typename F>
  void message(Field field, F&& on_field);

  int64_t varint(Field field);
  double fixed32(Field field);  // a float
  double fixed64(Field field);  // a double
  std::string text(Field field, int64_t max_bytes, const char* limit);
  std::string name(Field field) { return text(field, limits_.max_name_bytes, "max_name_bytes"); }
  Payload payload(Field field);
  // A repeated scalar: packed (many values) or one. on_value is called for each.
  template <typename F>
  void varints(Field field, F&& on_value);
  template <typename F>
  void floats(Field field, F&& on_value);  // on_value(double)
  void skip(Field field);

  // Accounts for memory that a decoded structure takes; throws when max_structure_bytes is passed.
  void charge(int64_t bytes);
  // One level of nesting that recursion costs us, for its life.
  class Level {
   public:
    explicit Level(WireReader& reader);
    ~Level() { --reader_.depth_; }
    Level(const Level&) = delete;

   private:
    WireReader& reader_;
  };

  [[noreturn]] void fail(const std::string& why) const;         // Error(kBadModel)
  [[noreturn]] void unsupported(const std::string& why) const;  // Error(kUnsupported)
  const Limits& limits() const { return limits_; }

 private:
  bool next(Field& field);
  void expect(Field field, Type type) const;
  int length();  // of a kLength field, checked against the message around it
  google::protobuf::io::CodedInputStream::Limit enter(Field field);
  void leave(google::protobuf::io::CodedInputStream::Limit outer);
  bool at_end() { return stream_->BytesUntilLimit() == 0; }
  std::string where() const;

  const Limits& limits_;
  std::string name_;
  std::shared_ptr<const WeightFile> file_;
  std::unique_ptr<google::protobuf::io::ZeroCopyInputStream> source_;
  std::unique_ptr<google::protobuf::io::CodedInputStream> stream_;
  int64_t charged_ = 0;
  int depth_ = 0;
};

template <typename F>
void WireReader::fields(F&& on_field) {
  for (Field field; next(field);) on_field(field);
}

template <typename F>
void WireReader::message(Field field, F&& on_field) {
  const auto outer = enter(field);
  fields(on_field);
  leave(outer);
}

template <typename F>
void WireReader::varints(Field field, F&& on_value) {
  if (field.type != kLength) return on_value(varint(field));
  const auto outer = enter(field);
  while (!at_end()) on_value(varint({field.number, kVarint}));
  leave(outer);
}

template <typename F>
void WireReader::floats(Field field, F&& on_value) {
  if (field.type != kLength) return on_value(fixed32(field));
  const auto outer = enter(field);
  while (!at_end()) on_value(fixed32({field.number, kFixed32}));
  leave(outer);
}

}  // namespace ark
