#include "server/text/json_view.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "server/json.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

const Json kNull;
// Values take some 80 bytes each; the largest published file has 2 million.
constexpr JsonLimits kLimits{.depth = 64, .values = 3'000'000};
constexpr std::size_t kMaxParts = 256;
constexpr int kMaxSequenceDepth = 16;  // of parts of a tokenizer that are lists of such parts

// Python writes what is no number by words that JSON has not: configurations of Mamba hold Infinity.
std::string with_nulls(std::string_view text) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = text[i] == '"' ? end_of_string(text, i) : i + 1;
    std::string_view word;
    for (const std::string_view one : {"NaN", "Infinity", "-Infinity"})
      if (text.substr(i).starts_with(one)) word = one;
    if (word.empty()) {
      out += text.substr(i, end - i);
      continue;
    }
    out += "null";
    out.resize(out.size() + std::max<std::size_t>(word.size(), 4) - 4, ' ');  // errors tell their places
    end = i + word.size();
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name) {
  if (const std::string why = why_too_large(text, kLimits); !why.empty())
    throw Error(Code::kBadModel, name + ": " + why);
  if (Json json = parse_json_or_discard(text); !json.is_discarded()) return json;
  try {
    return ark::parse_json(with_nulls(text));
  } catch (const JsonError& error) {
    throw Error(Code::kBadModel, name + ": not valid JSON: " + escaped(error.what(), 300));
  }
}

Json parse_json_file(const std::filesystem::path& file) {
  return parse_json(read_file(file, kMaxTokenizer), escaped(file.filename().string()));
}

bool JsonView::is_null() const { return value_->is_null(); }
bool JsonView::is_string() const { return value_->is_string(); }
bool JsonView::is_number() const { return value_->is_number(); }
bool JsonView::is_array() const { return value_->is_array(); }
bool JsonView::is_object() const { return value_->is_object(); }
std::size_t JsonView::size() const { return value_->size(); }
bool JsonView::has(std::string_view member) const { return value_->contains(member); }

void JsonView::each(const std::function<void(const std::string&, const JsonView&)>& f) const {
  object();
  for (const auto& [name, value] : value_->items())
    f(name, {value, place_ + "[\"" + name.substr(0, 60) + "\"]"});
}

JsonView JsonView::at(std::string_view member) const {
  const std::string place = place_ + (place_.ends_with(":") ? " " : ".") + escaped(member, 60);
  if (value_->is_null()) return {kNull, place};
  object();
  const auto found = value_->find(member);
  return {found == value_->end() ? kNull : *found, place};
}

JsonView JsonView::at(std::size_t index) const {
  return {value_->at(index), place_ + "[" + std::to_string(index) + "]"};
}

const std::string& JsonView::string() const {
  if (!value_->is_string()) fail(std::string("expected a string, found ") + value_->type_name());
  return value_->get_ref<const std::string&>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail(std::string("expected true or false, found ") + value_->type_name());
  return value_->get<bool>();
}

std::int64_t JsonView::integer(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) fail(std::string("expected an integer, found ") + value_->type_name());
  const bool huge = value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX;
  const std::int64_t value = huge ? INT64_MAX : value_->get<std::int64_t>();
  if (huge || value < low || value > high)
    fail(to_text(*value_) + " is not in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  return value;
}

double JsonView::number() const {
  if (!value_->is_number()) fail(std::string("expected a number, found ") + value_->type_name());
  return value_->get<double>();
}

char32_t JsonView::character() const {
  const std::string& text = string();
  std::size_t at = 0;
  const char32_t c = text.empty() ? 0 : next_char(text, at);
  if (text.empty() || at != text.size()) fail("expected one character, found \"" + escaped(text, 40) + "\"");
  return c;
}

const JsonView& JsonView::object() const {
  if (!value_->is_object()) fail(std::string("expected an object, found ") + value_->type_name());
  return *this;
}

const JsonView& JsonView::array() const {
  if (!value_->is_array()) fail(std::string("expected an array, found ") + value_->type_name());
  return *this;
}

std::vector<JsonView> parts_of(const JsonView& list, int depth) {
  if (list.array().size() > kMaxParts)
    list.fail(std::to_string(list.size()) + " parts, the limit is " + std::to_string(kMaxParts));
  if (depth >= kMaxSequenceDepth) list.fail("nested deeper than " + std::to_string(kMaxSequenceDepth));
  std::vector<JsonView> parts;
  for (std::size_t i = 0; i < list.size(); ++i) parts.push_back(list.at(i));
  return parts;
}

void JsonView::fail(const std::string& message) const {
  throw Error(Code::kBadModel, place_ + ": " + message);
}

void JsonView::unsupported(const std::string& message) const {
  throw Error(Code::kUnsupported, place_ + ": " + message);
}

}  // namespace ark::text
