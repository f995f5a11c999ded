#include <algorithm>
#include <initializer_list>
#include <utility>

#include "server/text/call_form.h"

namespace ark::text {
namespace {

constexpr JsonLimits kCallLimits{64, 100'000};

Json json_of(std::string_view text) {  // null where the text is none
  if (!why_too_large(std::string(text), kCallLimits).empty()) return {};
  Json json = parse_json_or_discard(text);
  return json.is_discarded() ? Json() : json;
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
  // An object that comes next; null if none does.
  Json object() {
    skip(kBlanks);
    const std::size_t end = at_ < text_.size() && text_[at_] == '{' ? end_of_object(text_, at_) : text_.npos;
    if (end == text_.npos) return {};
    const std::size_t begin = std::exchange(at_, end);
    return json_of(text_.substr(begin, end - begin));
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

std::string_view first_mark(std::string_view literal) {
  const auto units = units_of(literal);
  return units.empty() ? "" : units[0].substr(0, units[0].find('\1'));
}

// Arguments are an object, or the text of one, as in OpenAI's answers, or there are none. Null: none of these.
Json as_object(Json json) {
  if (json.is_null()) return Json::object();
  if (json.is_string()) json = json_of(json.get<std::string>());
  return json.is_object() ? json : Json();
}

bool read_json(const CallForm& form, const Json& object, std::vector<ToolCall>& calls) {
  const Json* from = &object;
  if (const auto inner = object.find("function"); inner != object.end() && inner->is_object()) from = &*inner;
  const auto name = from->find(form.name);
  if (name == from->end() || !name->is_string()) return false;
  Json arguments = Json::object();
  for (const std::string& key : {form.arguments, std::string("arguments"), std::string("parameters")})
    if (const auto given = from->find(key); given != from->end()) {
      arguments = as_object(*given);
      break;
    }
  if (!arguments.is_object()) return false;
  calls.push_back({name->get<std::string>(), std::move(arguments)});
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

// The value of a parameter. What the function's schema calls a text is one, also where it looks like a number; others
// are JSON, or constants as Python has them.
Json value_of(std::string_view text, const Json& schema, bool lines) {
  if (lines && text.starts_with('\n')) text.remove_prefix(1);
  if (lines && text.ends_with('\n')) text.remove_suffix(1);
  if (!is_text(schema)) {
    const std::string_view bare = trimmed(text);
    if (bare == "True" || bare == "False") return bare == "True";
    Json json = json_of(bare);
    if (!json.is_null() || bare == "null" || bare == "None") return json;
  }
  return std::string(text);
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

Json read_parameters(const CallForm& form, Reader& from, const Json& schemas) {
  Json arguments = Json::object();
  const std::string_view behind_key = first_mark(form.after_key);
  // A tag may say more than the name, another thing for each value: <parameter name="x" string="false">.
  const bool has_attributes = form.after_key.starts_with('"') && form.after_key.ends_with('>');
  while (from.take(form.before_key)) {
    const std::string key(trimmed(from.up_to({behind_key})));
    if (key.empty() || !(from.take(form.after_key) || (has_attributes && from.pass(">")))) return {};
    const auto schema = schemas.find(key);
    const std::string_view value = from.up_to({form.after_value});
    if (!from.take(form.after_value)) return {};  // it was cut off
    arguments[key] = value_of(value, schema == schemas.end() ? Json() : *schema, form.lines);
  }
  return arguments;
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
      const Json object = from.object();
      if (!object.is_object() || !read_json(form, object, calls)) return {};
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
    Json arguments = is_named ? from.object() : read_parameters(form, from, properties_of(tools, name));
    if (!arguments.is_object()) return {};
    calls.push_back({std::move(name), std::move(arguments)});
    if (!form.again.empty() && from.take(form.again)) continue;  // it begins as `after` does
    from.take(form.after);
    if (!from.at_end()) return {};
  }
  return calls;
}

}  // namespace ark::text
