// Checked reading of JSON files: every access names its place in the message when it does not fit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fwd.h"

namespace ark::text {

// Bytes of a tokenizer.json; the largest published has 35 MB.
inline constexpr std::size_t kMaxTokenizer = std::size_t{64} << 20;

// Parses a whole file. kNotFound if it cannot be read, kBadModel if it is larger, nested too deeply or not JSON.
Json parse_json_file(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& name);

// A value and its place ("tokenizer.json: model.vocab"). The document must outlive the view.
class JsonView {
 public:
  JsonView(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  bool is_null() const;
  bool is_string() const;
  bool is_number() const;
  bool is_array() const;
  bool is_object() const;

  // A missing member reads as null.
  JsonView at(std::string_view member) const;
  JsonView at(std::size_t index) const;
  std::size_t size() const;
  bool has(std::string_view member) const;
  // Calls `f` for each member of an object, in the file's order.
  void each(const std::function<void(const std::string& name, const JsonView& value)>& f) const;

  const std::string& string() const;  // valid UTF-8, as the parser checks it
  std::string string_or(std::string_view fallback) const {
    return is_null() ? std::string(fallback) : string();
  }
  bool boolean() const;
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  double number() const;
  char32_t character() const;  // a string of exactly one character
  const JsonView& object() const;
  const JsonView& array() const;

  [[noreturn]] void fail(const std::string& message) const;         // kBadModel
  [[noreturn]] void unsupported(const std::string& message) const;  // kUnsupported

 private:
  const Json* value_;
  std::string place_;
};

// A list of parts of a tokenizer (normalizers, pre-tokenizers ...), in `depth` others. There must not be too many: each
// looks at all of a text.
std::vector<JsonView> parts_of(const JsonView& list, int depth);

}  // namespace ark::text
