#include "server/text/call_form.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_input.h"
#include "server/text/chat_template.h"

namespace ark::text {
namespace {

constexpr Budget kAskBudget{2'000'000, std::size_t{32} << 20};
constexpr std::size_t kMostBytes = 4096;  // of an answer that is looked at: two small calls are some hundred

// What the chats that are rendered say: in no template.
constexpr std::string_view kText = "ArkText", kThought = "ArkThought",
                           kKeys[] = {"ark_first_key", "ark_second_key"},
                           kValues[] = {"ArkFirstValue", "ArkSecondValue"};
struct Asked {
  std::string_view name, id, naming_id;
};
// Mistral's templates want ids of nine letters and digits; Kimi's print calls by ids that hold the name.
constexpr Asked kCalls[] = {{"ark_function", "ArkCallA1", "functions.ark_function:0"},
                            {"ark_another", "ArkCallB2", "functions.ark_another:0"}};

// What templates differ in wanting.
struct Way {
  // By another message: some print the last one otherwise, or not at all.
  bool followed = false;
  bool text_arguments = false;  // as JSON in a text
  bool naming_ids = false;
  bool null_content = false;  // not an empty text, which some print instead of calls; others print null
};

Json tools() {
  Json properties = Json::object(), all = Json::array();
  for (const std::string_view key : kKeys)
    properties[std::string(key)] = {{"type", "string"}, {"description", "Text."}};
  Json parameters = {{"type", "object"}, {"properties", properties}, {"required", kKeys}};
  for (const Asked& call : kCalls) {
    Json function = {{"name", call.name}, {"description", "Does it."}, {"parameters", parameters}};
    all.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return all;
}

Json calling(std::size_t calls, const Way& way) {
  Json all = Json::array(), arguments = Json::object();
  for (std::size_t i = 0; i < std::size(kKeys); ++i) arguments[std::string(kKeys[i])] = kValues[i];
  if (way.text_arguments) arguments = to_text(arguments);
  for (std::size_t i = 0; i < calls; ++i)
    all.push_back({{"id", way.naming_ids ? kCalls[i].naming_id : kCalls[i].id},
                   {"type", "function"},
                   {"function", {{"name", kCalls[i].name}, {"arguments", arguments}}}});
  return {{"role", "assistant"},
          {"content", way.null_content ? Json() : Json("")},
          {"reasoning_content", kThought},
          {"tool_calls", std::move(all)}};
}

std::size_t common(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// The chats, by one template.
class Chats {
 public:
  Chats(const ChatTemplate& chat_template, const std::map<std::string, std::string>& tokens)
      : template_(chat_template), within_(kAskBudget) {
    input_.tools = tools();
    input_.tokens = tokens;
    if (const auto end = tokens.find("eos_token"); end != tokens.end()) end_token_ = end->second;
  }

  // What the assistant writes when it calls, without what every answer begins and ends with, and what it thought; empty
  // if nothing.
  std::string answer(std::size_t calls, const Way& way) {
    const std::string plain = render({{"role", "assistant"}, {"content", kText}}, way);
    return cut(render(calling(calls, way), way), plain);
  }

 private:
  static bool begins_or_ends(char before, char after) {
    return kBlanks.find(before) != kBlanks.npos || kBlanks.find(after) != kBlanks.npos || before == '>' ||
           before == ']' || after == '<' || after == '[';
  }

  std::string cut(std::string said, std::string_view plain) const {
    const std::size_t at = plain.rfind(kText);
    if (at == plain.npos || said.empty()) return "";
    std::size_t begin = std::min(at, common(plain, said));
    while (begin < at && begin > 0 && begin < said.size() && !begins_or_ends(said[begin - 1], said[begin]))
      --begin;  // not amid a tag that both begin alike
    said.erase(0, begin);
    if (const std::size_t thought = said.find(kThought); thought != said.npos) {
      said.erase(0, thought + kThought.size());
      if (const auto units = units_of(said); !units.empty())
        said.erase(0, said.find(units[0]) + units[0].size());
    }
    const std::string_view usual = plain.substr(at + kText.size());
    const auto same = std::ranges::mismatch(usual.rbegin(), usual.rend(), said.rbegin(), said.rend());
    std::size_t end = static_cast<std::size_t>(said.rend() - same.in2);
    while (end > 0 && end < said.size() && !begins_or_ends(said[end - 1], said[end])) ++end;
    said.resize(end);
    if (!end_token_.empty()) said.resize(std::min(said.size(), said.find(end_token_)));
    return said.size() <= kMostBytes ? said : "";
  }

  // Empty where the template refuses the chat.
  std::string render(Json answer, const Way& way) {
    const Json user = {{"role", "user"}, {"content", "Please."}};
    input_.messages = Json::array({user, std::move(answer)});
    if (way.followed) input_.messages.push_back(user);
    try {
      return template_.render(input_, within_);
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument) throw;
      return "";
    }
  }

  const ChatTemplate& template_;
  Rendering within_;
  ChatInput input_;
  std::string end_token_;
};

struct Range {
  std::size_t begin = std::string::npos, end = std::string::npos;
  bool found() const { return begin != std::string::npos; }
};
Range find(std::string_view text, std::string_view what, std::size_t from) {
  const std::size_t at = from > text.size() ? text.npos : text.find(what, from);
  return at == text.npos ? Range{} : Range{at, at + what.size()};
}

// Where the parts of a call are in a text.
struct Layout {
  CallForm::Kind kind = CallForm::Kind::kJson;
  Range all;                            // from the name, of kJson the object, to the last value
  Range name, arguments;                // kNamed, kParameters; kNamed
  std::array<Range, 2> keys, values;    // kParameters
  std::string name_key, arguments_key;  // kJson
};

// The members of a call that is one object, or within one.
bool find_members(const Json& object, std::string_view name, Layout& to) {
  for (const auto& [key, value] : object.items()) {
    if (value == name) to.name_key = key;
    if (value.is_object() && value.contains(kKeys[0])) to.arguments_key = key;
  }
  if (!to.name_key.empty() && !to.arguments_key.empty()) return true;
  const auto inner = object.find("function");
  return inner != object.end() && inner->is_object() && find_members(*inner, name, to);
}

std::optional<Layout> layout_of(std::string_view text, std::string_view name, std::size_t from) {
  Layout to;
  to.name = find(text, name, from);
  if (!to.name.found()) return std::nullopt;
  for (std::size_t at = text.find('{', from); at < to.name.begin; at = text.find('{', at + 1)) {
    const std::size_t end = end_of_object(text, at);
    if (end == text.npos || end < to.name.end) continue;
    const Json object = parse_json_or_discard(text.substr(at, end - at));
    if (!object.is_object() || !find_members(object, name, to)) continue;
    to.all = {at, end};
    return to;
  }
  if (const std::size_t at = text.find('{', to.name.end); at != text.npos) {
    const std::size_t end = end_of_object(text, at);
    const Json object = end == text.npos ? Json() : parse_json_or_discard(text.substr(at, end - at));
    if (object.is_object() && object.contains(kKeys[0])) {
      to.kind = CallForm::Kind::kNamed;
      to.arguments = {at, end};
      to.all = {to.name.begin, end};
      return to;
    }
  }
  to.kind = CallForm::Kind::kParameters;
  std::size_t at = to.name.end;
  for (std::size_t i = 0; i < std::size(kKeys); ++i) {
    to.keys[i] = find(text, kKeys[i], at);
    to.values[i] = find(text, kValues[i], to.keys[i].end);
    at = to.values[i].end;
    if (!to.values[i].found()) return std::nullopt;
  }
  to.all = {to.name.begin, at};
  return to;
}

// Without the brackets of a list around objects.
std::string_view without_list(std::string_view text, bool before) {
  text = trimmed(text);
  if (before && text.ends_with('[')) text.remove_suffix(1);
  if (!before && text.starts_with(']')) text.remove_prefix(1);
  return trimmed(text);
}

void replace_ids(std::string& literal) {
  for (const Asked& call : kCalls)
    for (std::size_t at; (at = literal.find(call.id)) != literal.npos;)
      literal.replace(at, call.id.size(), 1, '\1');
}

// Kimi's templates, or the ids that they print, count calls behind their names.
void replace_index(std::string& after_name) {
  const std::size_t end = after_name.find_first_not_of("0123456789", 1);
  if (after_name.starts_with(':') && end != after_name.npos && end > 1)
    after_name.replace(1, end - 1, 1, '\1');
}

bool is_quote(char c) { return c == '"' || c == '\''; }

// What is around arguments of kParameters; false where it cannot be told where one ends.
bool split_parameters(std::string_view text, const Layout& at, CallForm& form) {
  const auto between = [&](const Range& a, const Range& b) { return text.substr(a.end, b.begin - a.end); };
  const std::string_view next = between(at.values[0], at.keys[1]),
                         first = trimmed(between(at.name, at.keys[0]));
  const auto behind = units_of(next), last = units_of(form.after);
  if (behind.empty() || last.empty() || behind[0] != last[0]) return false;
  form.after_value = behind[0];
  form.before_key = trimmed(next.substr(next.find(behind[0]) + behind[0].size()));
  form.after_key = trimmed(between(at.keys[0], at.values[0]));
  form.lines = between(at.keys[0], at.values[0]).ends_with('\n') && next.starts_with('\n');
  form.after = trimmed(std::string_view(form.after).substr(behind[0].size()));
  // Texts in quotes would need to be read as some language has them.
  if (form.before_key.empty() || form.after_key.empty() || !first.ends_with(form.before_key) ||
      (is_quote(form.after_key.back()) && is_quote(form.after_value.front())))
    return false;
  form.after_name = trimmed(first.substr(0, first.size() - form.before_key.size()));
  return true;
}

// Takes the section's marks off what is before and behind its calls; false where nothing tells calls from text.
bool split_section(CallForm& form, const std::optional<std::string>& between) {
  const auto before = units_of(form.before), after = units_of(form.after);
  if (!before.empty()) {
    form.begin = before[0];
    form.before = trimmed(std::string_view(form.before).substr(before[0].size()));
  }
  const bool is_word = std::ranges::all_of(form.begin, [](unsigned char c) { return std::isalnum(c); });
  if (is_word && !(form.begin.empty() && form.kind == CallForm::Kind::kJson)) return false;
  if (!between || after.empty() || form.begin.empty()) return true;
  const auto has = [&](std::string_view mark) { return between->find(mark) != between->npos; };
  const std::string end(after.back());
  const bool each = has(form.begin) && has(end);  // call has a section of its own
  if (!each && (has(form.begin) || has(end))) return true;
  for (const std::string* other :
       {&form.before, &form.after_name, &form.before_key, &form.after_key, &form.after_value})
    if (other->find(end) != other->npos) return true;
  form.end = end;
  form.after = trimmed(std::string_view(form.after).substr(0, form.after.size() - end.size()));
  if (each) form.again.clear();
  return true;
}

std::optional<CallForm> printed_form(Chats& chats, const Way& way) {
  const std::string one = chats.answer(1, way);
  const auto at = layout_of(one, kCalls[0].name, 0);
  if (!at) return std::nullopt;
  CallForm form{.kind = at->kind,
                .name = at->name_key,
                .arguments = at->arguments_key,
                .text_arguments = way.text_arguments,
                .null_content = way.null_content};
  const std::string_view text = one;
  const bool is_json = form.kind == CallForm::Kind::kJson;
  form.before =
      is_json ? without_list(text.substr(0, at->all.begin), true) : trimmed(text.substr(0, at->all.begin));
  form.after = is_json ? without_list(text.substr(at->all.end), false) : trimmed(text.substr(at->all.end));
  if (form.kind == CallForm::Kind::kNamed)
    form.after_name = trimmed(text.substr(at->name.end, at->arguments.begin - at->name.end));
  if (!form.after_name.empty() && is_quote(form.after_name.back()))
    return std::nullopt;               // as Python prints calls
  std::optional<std::string> between;  // two calls
  const std::string two = chats.answer(2, way);
  if (const auto first = layout_of(two, kCalls[0].name, 0))
    if (const auto second = layout_of(two, kCalls[1].name, first->all.end);
        second && second->kind == form.kind)
      between = trimmed(std::string_view(two).substr(first->all.end, second->all.begin - first->all.end));
  if (between && !is_json) form.again = *between;
  if (form.kind == CallForm::Kind::kParameters) {
    if (!split_parameters(text, *at, form)) return std::nullopt;
    if (form.again.starts_with(form.after_value))
      form.again = trimmed(form.again.substr(form.after_value.size()));
  }
  if (!split_section(form, between)) return std::nullopt;
  for (std::string* literal : {&form.before, &form.again, &form.after, &form.after_name})
    replace_ids(*literal);
  replace_index(form.after_name);
  return form;
}

}  // namespace

std::vector<std::string_view> CallForm::marks() const {
  std::vector<std::string_view> all;
  for (const std::string* literal :
       {&begin, &end, &before, &again, &after, &after_name, &before_key, &after_key, &after_value})
    for (const std::string_view unit : units_of(*literal)) all.push_back(unit);
  return all;
}

CallForm json_in_tool_call() {
  return {.begin = "<tool_call>", .end = "</tool_call>", .name = "name", .arguments = "arguments"};
}

std::optional<CallForm> call_form_of(const ChatTemplate& chat_template,
                                     const std::map<std::string, std::string>& tokens) {
  Chats chats(chat_template, tokens);
  for (const bool naming_ids : {false, true})
    for (const bool followed : {false, true})
      for (const bool text_arguments : {false, true})
        for (const bool null_content : {false, true})
          if (auto form = printed_form(chats, {followed, text_arguments, naming_ids, null_content}))
            return form;
  // Some only tell the model of the form, and leave calls of earlier turns out.
  const auto has = [&](std::string_view text) {
    return chat_template.source().find(text) != std::string::npos;
  };
  if (has("<tool_call>") && (has(R"("arguments":)") || has(R"(\"arguments\":)"))) return json_in_tool_call();
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

std::vector<std::string_view> units_of(std::string_view text) {
  std::vector<std::string_view> all;
  for (std::size_t at = 0; (at = text.find_first_not_of(kBlanks, at)) != text.npos;) {
    std::size_t end = text.find_first_of(" \t\r\n<[", at + 1);
    if (text[at] == '<' || text[at] == '[')
      if (const std::size_t close = text.find(text[at] == '<' ? '>' : ']', at); close < end) end = close + 1;
    end = std::min(end, text.size());
    all.push_back(text.substr(at, end - at));
    at = end;
  }
  return all;
}

std::size_t end_of_object(std::string_view text, std::size_t begin) {
  std::size_t depth = 0;
  for (std::size_t i = begin; i < text.size(); ++i)
    if (text[i] == '"')
      i = end_of_string(text, i) - 1;
    else if (text[i] == '{')
      ++depth;
    else if (text[i] == '}' && --depth == 0)
      return i + 1;
  return text.npos;
}

}  // namespace ark::text
