// Writing and checked reading of the small records that ranks exchange at set-up (layouts: docs/dma.md).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace ark::dma {

class BlobWriter {
 public:
  // Little-endian, as in memory.
  template <class T>
  BlobWriter& number(T value) {
    static_assert(std::is_integral_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  BlobWriter& text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what came from outside: whatever does not fit throws Error(kUnavailable) that names `source`.
class BlobReader {
 public:
  BlobReader(std::string_view bytes, std::string source) : bytes_(bytes), source_(std::move(source)) {}

  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(number<uint32_t>()); }
  void end() const {
    if (!bytes_.empty()) malformed("has bytes too many");
  }
  [[noreturn]] void malformed(const std::string& how) const {
    throw Error(Code::kUnavailable, source_ + " " + how + "; all ranks must run the same build of ark");
  }

 private:
  std::string_view take(size_t size) {
    if (size > bytes_.size()) malformed("is cut short");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  const std::string source_;
};

}  // namespace ark::dma
