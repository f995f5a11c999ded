// Checked reading of JSON files: every access names its place in the message when it does not fit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ark::text {

inline constexpr int kMaxSequenceDepth = 16;  // of parts of a tokenizer that are lists of such parts

// Parses a whole file. kNotFound if it cannot be read, kBadModel if it is too large or not JSON.
nlohmann::json parse_json_file(const std::filesystem::path& file, std::size_t max_bytes = 256u << 20);
nlohmann::json parse_json(std::string_view text, const std::string& name);

// A value and its place ("tokenizer.json: model.vocab"). The document must outlive the view.
class JsonView {
 public:
  using Json = nlohmann::json;
  JsonView(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const Json& json() const { return *value_; }
  const std::string& place() const { return place_; }
  bool is_null() const { return value_->is_null(); }

  // A missing member reads as null.
  JsonView at(std::string_view member) const;
  JsonView at(std::size_t index) const;
  std::size_t size() const { return value_->size(); }

  const std::string& string() const;  // valid UTF-8, as nlohmann::json checks it
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

}  // namespace ark::text
