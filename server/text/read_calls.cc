#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <utility>

#include "server/json.h"
#include "server/text/call_form.h"

namespace ark::text {
namespace {

constexpr JsonLimits kCallLimits{64, 100'000};

// The parser would pass over a byte order mark.
bool is_json(std::string_view text) {
  return !text.starts_with('\xEF') && why_too_large(text, kCallLimits).empty() &&
         !parse_json_or_discard(text).is_discarded();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool at_end() {
    skip(kBlanks);
    return at_ == text_.size();
  }
  void skip(std::string_view letters) { at_ = std::min(text_.size(), text_.find_first_not_of(letters, at_)); }
  // Whether the literal comes next, with whatever blanks before and within; then it is passed.
  bool take(std::string_view literal) {
    std::size_t at = at_;
    for (std::size_t i = 0; i < literal.size(); ++i) {
      if (kBlanks.find(literal[i]) != kBlanks.npos) continue;
      if (literal[i] == '\1') {
        at = i + 1 < literal.size() ? text_.find(literal[i + 1], at) : text_.size();
        if (at == text_.npos) return false;
        continue;
      }
      at = text_.find_first_not_of(kBlanks, at);
      if (at == text_.npos || text_[at] != literal[i]) return false;
      ++at;
    }
    at_ = at;
    return true;
  }
  // Up to the first of the marks that there is, or all that is left.
  std::string_view up_to(std::initializer_list<std::string_view> marks) {
    std::size_t end = text_.size();
    for (const std::string_view mark : marks)
      if (!mark.empty()) end = std::min(end, text_.find(mark, at_));
    const std::size_t begin = std::exchange(at_, end);
    return text_.substr(begin, end - begin);
  }
  // Whether the mark comes at all; then it and all before it is passed.
  bool pass(std::string_view mark) {
    up_to({mark});
    return take(mark);
  }
  // An object that comes next; empty if none does.
  std::string_view object() {
    skip(kBlanks);
    const std::size_t end = at_ < text_.size() && text_[at_] == '{' ? end_of_object(text_, at_) : text_.npos;
    if (end == text_.npos) return {};
    const std::size_t begin = std::exchange(at_, end);
    const std::string_view object = text_.substr(begin, end - begin);
    return is_json(object) ? object : "";
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

std::string_view first_mark(std::string_view literal) {
  const auto units = units_of(literal);
  return units.empty() ? "" : units[0].substr(0, units[0].find('\1'));
}

std::string string_of(std::string_view json) { return ark::parse_json(json).get<std::string>(); }

// Of an object that is JSON, with the values as they are written: a parser would round numbers, and spell strings its
// own way. Of those with the same name the last.
using Members = std::map<std::string, std::string_view, std::less<>>;
Members members_in(std::string_view object) {
  Members members;
  std::string_view* value = nullptr;
  std::size_t depth = 0, begin = 0;
  for (std::size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    const bool closes = c == '}' || c == ']';
    if (c == '"') {
      i = end_of_string(object, i) - 1;
    } else if (c == '{' || c == '[') {
      if (depth++ == 0) begin = i + 1;
    } else if (c == ':' && depth == 1) {
      value = &members[string_of(object.substr(begin, i - begin))];
      begin = i + 1;
    } else if (closes || c == ',') {
      if (depth == 1 && value) *value = trimmed(object.substr(begin, i - begin));
      if (depth == 1) begin = i + 1;
      depth -= closes;
    }
  }
  return members;
}

// Arguments are an object, or the text of one, as in OpenAI's answers, or there are none. Empty: none of these.
std::string arguments_of(std::string_view value) {
  if (value == "null") return "{}";
  std::string text;
  if (value.starts_with('"')) {
    text = string_of(value);
    value = is_json(text) ? trimmed(text) : "";
  }
  return value.starts_with('{') ? compact_text(value) : "";
}

bool read_json(const CallForm& form, std::string_view object, std::vector<ToolCall>& calls) {
  Members members = members_in(object);
  if (const auto inner = members.find("function"); inner != members.end() && inner->second.starts_with('{'))
    members = members_in(inner->second);
  const auto name = members.find(form.name);
  if (name == members.end() || !name->second.starts_with('"')) return false;
  std::string arguments = "{}";
  for (const std::string_view key :
       {std::string_view(form.arguments), std::string_view("arguments"), std::string_view("parameters")})
    if (const auto given = members.find(key); given != members.end()) {
      arguments = arguments_of(given->second);
      break;
    }
  if (arguments.empty()) return false;
  calls.push_back({string_of(name->second), std::move(arguments)});
  return true;
}

// Whether a schema allows no value but a text, or none at all.
bool is_text(const Json& schema) {
  if (!schema.is_object()) return false;
  if (const auto type = schema.find("type"); type != schema.end()) {
    const auto is_one = [](const Json& name) { return name == "string" || name == "null"; };
    return *type == "string" || (type->is_array() && std::ranges::all_of(*type, is_one) &&
                                 std::ranges::count(*type, "string") > 0);
  }
  const auto some = schema.find("anyOf");
  if (some == schema.end() || !some->is_array()) return false;
  const auto is_null = [](const Json& one) { return one.is_object() && one.value("type", Json()) == "null"; };
  return std::ranges::any_of(*some, is_text) &&
         std::ranges::all_of(*some, [&](const Json& one) { return is_text(one) || is_null(one); });
}

// The value of a parameter as JSON. What the function's schema calls a text is one, also where it looks like a number;
// others are JSON, or constants as Python has them.
std::string value_of(std::string_view text, const Json& schema, bool lines) {
  if (lines && text.starts_with('\n')) text.remove_prefix(1);
  if (lines && text.ends_with('\n')) text.remove_suffix(1);
  if (!is_text(schema)) {
    const std::string_view bare = trimmed(text);
    if (bare == "True" || bare == "False") return bare == "True" ? "true" : "false";
    if (bare == "None") return "null";
    if (is_json(bare)) return compact_text(bare);
  }
  return to_text(std::string(text));
}

// The schemas of a function's parameters by name; an empty object if there are none.
Json properties_of(const Json& tools, const std::string& name) {
  if (!tools.is_array()) return Json::object();
  for (const Json& tool : tools) {
    const Json* at = &tool;
    for (const char* member : {"function", "parameters", "properties"}) {
      const auto inner = at->is_object() ? at->find(member) : at->end();
      if (!at->is_object() || inner == at->end()) break;
      at = &*inner;
      if (member == std::string_view("function") && (!at->is_object() || at->value("name", Json()) != name))
        break;
      if (member == std::string_view("properties") && at->is_object()) return *at;
    }
  }
  return Json::object();
}

// Empty where they are none.
std::string read_parameters(const CallForm& form, Reader& from, const Json& schemas) {
  Json values = Json::object();  // their JSON
  const std::string_view behind_key = first_mark(form.after_key);
  // A tag may say more than the name, another thing for each value: <parameter name="x" string="false">.
  const bool has_attributes = form.after_key.starts_with('"') && form.after_key.ends_with('>');
  while (from.take(form.before_key)) {
    const std::string key(trimmed(from.up_to({behind_key})));
    if (key.empty() || !(from.take(form.after_key) || (has_attributes && from.pass(">")))) return {};
    const auto schema = schemas.find(key);
    const std::string_view value = from.up_to({form.after_value});
    if (!from.take(form.after_value)) return {};  // it was cut off
    values[key] = value_of(value, schema == schemas.end() ? Json() : *schema, form.lines);
  }
  std::string arguments;
  for (const auto& [key, value] : values.items())
    arguments += (arguments.empty() ? "" : ",") + to_text(key) + ":" + value.get_ref<const std::string&>();
  return "{" + arguments + "}";
}

}  // namespace

std::vector<ToolCall> read_calls(const CallForm& form, std::string_view section, const Json& tools) {
  std::vector<ToolCall> calls;
  Reader from(section);
  from.take(form.before);
  while (!from.at_end()) {
    if (form.kind == CallForm::Kind::kJson) {
      from.skip("[], ;\t\r\n");
      if (from.take(form.after)) from.skip("]");
      if (from.at_end()) break;
      const std::string_view object = from.object();
      if (object.empty() || !read_json(form, object, calls)) return {};
      // Without an end the section holds all that the model marks, each time anew.
      if (form.end.empty() && !form.begin.empty() && from.take(form.begin)) from.take(form.before);
      continue;
    }
    const bool is_named = form.kind == CallForm::Kind::kNamed;
    const std::string_view mark = first_mark(form.after_name);
    std::string name(
        trimmed(mark.empty() ? from.up_to({is_named ? "{" : form.before_key, "\n", first_mark(form.after)})
                             : from.up_to({mark})));
    if (name.empty() || name.find_first_of(" \t\r\n") != name.npos || !from.take(form.after_name)) return {};
    std::string arguments =
        is_named ? compact_text(from.object()) : read_parameters(form, from, properties_of(tools, name));
    if (arguments.empty()) return {};
    calls.push_back({std::move(name), std::move(arguments)});
    if (!form.again.empty() && from.take(form.again)) continue;  // it begins as `after` does
    from.take(form.after);
    if (!from.at_end()) return {};
  }
  return calls;
}

}  // namespace ark::text
