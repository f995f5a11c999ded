#include "server/api/responses_input.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "server/api/chat_messages.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

constexpr std::size_t kMostItems = 8192;

const OtherField kInput{
    "input",
    [](const Limits&) {
      return Json{{"oneOf", Json::array({type("string"), at_least_one(list(reference("ResponseItem")))})}};
    },
    true};
constexpr TextField kInstructions{"instructions", "Stands before the input, as of role system."};
constexpr IntegerField kMaxOutput{"max_output_tokens", 0, INT32_MAX, "Tokens to generate at most.", true};
constexpr FlagField kStore{"store", false, "Not used: nothing is kept."};
constexpr TextsField kInclude{"include", 64, 256,
                              "message.output_text.logprobs is made; what else there is to include is not."};
constexpr TextField kTruncation{"truncation", "disabled: what is too long is refused."};
constexpr TextField kPrevious{"previous_response_id", "Refused: nothing is kept; input is the conversation."};
const OtherField kReasoning{
    "reasoning", [](const Limits&) {
      return maybe(object({{"effort", maybe(type("string"))}, {"summary", maybe(type("string"))}}));
    }};
const OtherField kTextForm{"text", [](const Limits&) {
                             Json format = object({{"type", one_of({"text", "json_object", "json_schema"})},
                                                   {"name", type("string")},
                                                   {"schema", type("object")},
                                                   {"strict", maybe(type("boolean"))}},
                                                  {"type"});
                             return maybe(object({{"format", maybe(std::move(format))}}));
                           }};
const OtherField kFunctions{"tools", [](const Limits&) {
                              return maybe(list(object({{"type", one_of({"function"})},
                                                        {"name", type("string")},
                                                        {"description", maybe(type("string"))},
                                                        {"parameters", maybe(type("object"))},
                                                        {"strict", maybe(type("boolean"))}},
                                                       {"type", "name"}),
                                                "Given to the model's chat template."));
                            }};
const OtherField kFunctionChoice{
    "tool_choice", [](const Limits&) {
      const Json function =
          object({{"type", one_of({"function"})}, {"name", type("string")}}, {"type", "name"});
      const Json allowed = object({{"type", one_of({"allowed_tools"})},
                                   {"mode", one_of({"auto", "required"})},
                                   {"tools", at_least_one(list(function))}},
                                  {"type", "mode", "tools"});
      return maybe({{"oneOf", Json::array({one_of({"auto", "none", "required"}), function, allowed})}});
    }};
const OtherField kMetadata{"metadata", [](const Limits&) { return maybe(type("object")); }};

// What is read here, and what changes nothing: neither is the chat request's.
constexpr const char* kNotOfChat[] = {
    "input", "instructions", "max_output_tokens", "store", "include", "truncation", "previous_response_id",
    "reasoning", "text", "tools", "tool_choice", "metadata", "top_logprobs",
    // where and for whom it is computed, how it is paid and kept, what is watched
    "background", "conversation", "context_management", "max_tool_calls", "moderation", "prompt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier",
    "stream_options"};
// Of these, those that would change the answer.
constexpr const char* kRefused[] = {"conversation", "context_management", "moderation", "prompt"};

const Json& object_in(const Fields& fields, const Json& value, const std::string& name) {
  const std::string place = fields.path(name);
  if (!value.is_object())
    throw http::HttpError(400, place + " must be an object, not " + kind_of(value), place, "invalid_type");
  return value;
}

std::string text_in(const Fields& fields, const char* name) {
  const auto text = fields.string(name);
  if (!text) fields.wrong_type(name, "a string");
  return *text;
}

// As a chat names it.
Json chosen_function(const Fields& own) {
  if (const std::string kind = text_in(own, "type"); kind != "function")
    own.fail("type", "is " + escaped(kind, 40) + R"(; it must be "function")");
  return {{"type", "function"}, {"function", {{"name", text_in(own, "name")}}}};
}

// A string, or parts that are text, as a chat has them.
Json content_of(const Fields& item, const char* name) {
  const Json* content = item.find(name);
  if (!content || !(content->is_string() || content->is_array()))
    item.wrong_type(name, "a string or an array of text parts");
  if (content->is_string()) return *content;
  Json parts = Json::array();
  for (std::size_t i = 0; i < content->size(); ++i) {
    const std::string place = std::string(name) + "[" + std::to_string(i) + "]";
    const Fields part(object_in(item, (*content)[i], place), item.path(place + "."));
    const std::string kind = text_in(part, "type");
    if (kind != "input_text" && kind != "output_text" && kind != "text" && kind != "refusal")
      part.fail("type", "is " + escaped(kind, 40) + "; the model takes only text");
    parts.push_back({{"type", "text"}, {"text", text_in(part, kind == "refusal" ? "refusal" : "text")}});
  }
  return parts;
}

}  // namespace

const std::vector<Field>& responses_fields() {
  static const std::vector<Field> all = {kInput,    kInstructions, kMaxOutput,      kStore,
                                         kInclude,  kTruncation,   kPrevious,       kReasoning,
                                         kTextForm, kFunctions,    kFunctionChoice, kMetadata};
  return all;
}

Json response_item_schema(const Limits&) {
  const Json content = content_schema({"input_text", "output_text", "text"});
  return {{"anyOf", Json::array({object({{"type", one_of({"message"})},
                                         {"role", one_of({"user", "assistant", "system", "developer"})},
                                         {"content", content}},
                                        {"role", "content"}),
                                 object({{"type", one_of({"function_call"})},
                                         {"call_id", type("string")},
                                         {"name", type("string")},
                                         {"arguments", type("string")}},
                                        {"type", "call_id", "name", "arguments"}),
                                 object({{"type", one_of({"function_call_output"})},
                                         {"call_id", type("string")},
                                         {"output", content}},
                                        {"type", "call_id", "output"})})}};
}

ResponsesInput::ResponsesInput(const Fields& fields) : chat(Json::object()), shown(Json::object()) {
  for (const auto& [name, value] : fields.object().items())
    if (std::ranges::find(kNotOfChat, name) == std::end(kNotOfChat)) chat[name] = value;
  if (fields.has("messages")) fields.fail("messages", "is only for /v1/chat/completions; use input");
  chat["messages"] = Json::array();
  if (const auto instructions = fields.get(kInstructions); instructions && !instructions->empty())
    add({{"role", "system"}, {"content", *instructions}}, kInstructions.name);
  read_items(fields);
  read_tools(fields);
  read_form(fields);
  read_rest(fields);
}

void ResponsesInput::add(Json message, const std::string& place) {
  chat["messages"].push_back(std::move(message));
  places_.push_back(place);
}

void ResponsesInput::read_items(const Fields& fields) {
  const Json* input = fields.get(kInput);
  if (!input || !(input->is_string() || input->is_array()))
    fields.wrong_type(kInput.name, "a string or an array of items");
  if (input->is_string()) return add({{"role", "user"}, {"content", *input}}, kInput.name);
  if (input->empty()) fields.fail(kInput.name, "must not be empty");
  if (input->size() > kMostItems)
    fields.fail(kInput.name, "has more than " + std::to_string(kMostItems) + " items");
  for (std::size_t i = 0; i < input->size(); ++i) {
    const std::string place = std::string(kInput.name) + "[" + std::to_string(i) + "]";
    read_item(object_in(fields, (*input)[i], place), place);
  }
}

void ResponsesInput::read_item(const Json& given, const std::string& place) {
  const Fields item(given, place + ".");
  const std::string kind = item.string("type").value_or("message");
  if (kind == "message") return read_message(item);
  if (kind == "function_call") return read_call(item);
  if (kind == "function_call_output") return read_call_output(item);
  if (kind == "reasoning") return;  // templates leave out what was thought before earlier answers
  item.fail("type",
            "is " + escaped(kind, 40) + ", none of message, function_call, function_call_output, reasoning");
}

void ResponsesInput::read_message(const Fields& item) {
  const std::string role = text_in(item, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    item.fail("role", "is " + escaped(role, 40) + ", none of user, assistant, system, developer");
  add({{"role", role}, {"content", content_of(item, "content")}}, item.path(""));
}

// Calls that stand behind each other, or behind what the assistant says, are one message.
void ResponsesInput::read_call(const Fields& item) {
  const std::string arguments = text_in(item, "arguments");
  if (!arguments.empty()) (void)parse_json(arguments, item.path("arguments"), item.path("arguments"));
  const Json call = {{"id", text_in(item, "call_id")},
                     {"type", "function"},
                     {"function", {{"name", text_in(item, "name")}, {"arguments", arguments}}}};
  Json& messages = chat["messages"];
  if (messages.empty() || messages.back()["role"] != "assistant")
    add({{"role", "assistant"}, {"content", nullptr}}, item.path(""));
  messages.back()["tool_calls"].push_back(call);
}

void ResponsesInput::read_call_output(const Fields& item) {
  add({{"role", "tool"}, {"tool_call_id", text_in(item, "call_id")}, {"content", content_of(item, "output")}},
      item.path(""));
}

void ResponsesInput::read_tools(const Fields& fields) {
  if (const Json* tools = fields.get(kFunctions)) {
    if (!tools->is_array()) fields.wrong_type(kFunctions.name, "an array");
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const std::string place = std::string(kFunctions.name) + "[" + std::to_string(i) + "]";
      const Fields tool(object_in(fields, (*tools)[i], place), place + ".");
      if (const std::string kind = text_in(tool, "type"); kind != "function")
        tool.fail("type", "is " + escaped(kind, 40) + "; only functions of the client's can be called");
      Json function = {{"name", text_in(tool, "name")}};
      (void)tool.string("description"), (void)tool.boolean("strict");
      if (const Json* parameters = tool.find("parameters")) object_in(tool, *parameters, "parameters");
      for (const char* name : {"description", "parameters", "strict"})
        if (const Json* value = tool.find(name)) function[name] = *value;
      chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  const Json* choice = fields.get(kFunctionChoice);
  if (!choice) return;
  if (!choice->is_object()) {
    chat["tool_choice"] = *choice;
    return;
  }
  const Fields own(*choice, fields.path("tool_choice."));
  if (text_in(own, "type") != "allowed_tools") {
    chat["tool_choice"] = chosen_function(own);
    return;
  }
  const Json* given = own.find("tools");
  if (!given || !given->is_array()) own.wrong_type("tools", "an array");
  Json tools = Json::array();
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "]";
    tools.push_back(chosen_function(Fields(object_in(own, (*given)[i], place), own.path(place + "."))));
  }
  chat["tool_choice"] = {{"type", "allowed_tools"},
                         {"allowed_tools", {{"mode", text_in(own, "mode")}, {"tools", std::move(tools)}}}};
}

void ResponsesInput::read_form(const Fields& fields) {
  const Json* text = fields.get(kTextForm);
  if (!text) return;
  const Fields own(object_in(fields, *text, kTextForm.name), fields.path("text."));
  own.refuse("verbosity", kNoNumber);
  const Json* format = own.find("format");
  if (!format) return;
  const Fields form(object_in(own, *format, "format"), own.path("format."));
  if (fields.find("response_format"))
    fields.fail("response_format", "stands beside text.format; one is enough");
  (void)text_in(form, "type");
  chat["response_format"] = *format;  // whose schema may stand beside the type
}

void ResponsesInput::read_rest(const Fields& fields) {
  for (const char* name : kRefused) fields.refuse(name, kNoNumber);
  fields.refuse("background", kNoNumber, "is not supported: the answer is computed while the client waits");
  if (!fields.get(kPrevious).value_or("").empty())
    fields.fail(kPrevious.name, "is not supported: nothing is kept; send the whole conversation as input");
  if (fields.get(kTruncation).value_or("disabled") != "disabled")
    fields.fail(kTruncation.name, "must be disabled: what is too long is refused");
  (void)fields.get(kStore);  // checked
  if (const Json* metadata = fields.get(kMetadata)) object_in(fields, *metadata, kMetadata.name);
  fields.refuse("n", 1, "is not supported: a response is one answer");
  if (const auto most = fields.get(kMaxOutput)) chat["max_completion_tokens"] = *most;
  if (const Json* reasoning = fields.get(kReasoning)) {
    const Fields own(object_in(fields, *reasoning, kReasoning.name), fields.path("reasoning."));
    if (const auto effort = own.string("effort"); effort && *effort != "none")
      chat["reasoning_effort"] = *effort;
    (void)own.string("summary");  // of reasoning that is told; there is none
  }
  const auto top = fields.integer("top_logprobs", 0, 20);
  const std::vector<std::string> include = fields.get(kInclude).value_or(std::vector<std::string>());
  if (top.value_or(0) > 0 || std::ranges::find(include, "message.output_text.logprobs") != include.end())
    chat["logprobs"] = true, chat["top_logprobs"] = top.value_or(0);
  for (const char* name :
       {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature",
        "text", "tool_choice", "tools", "top_logprobs", "top_p", "user"})
    if (const Json* value = fields.find(name)) shown[name] = *value;
}

// "messages[3]" -> "input[5]", and what fields are called.
std::string ResponsesInput::own_words(const std::string& text) const {
  static constexpr std::string_view kMessages = "messages";
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"max_completion_tokens", "max_output_tokens"},
      {"response_format", "text.format"},
      {"reasoning_effort", "reasoning.effort"},
      {"tool_choice.allowed_tools", "tool_choice"}};
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.starts_with(kMessages)) {
      at += kMessages.size();
      std::size_t index = 0, end = at + 1;
      while (end < text.size() && end < at + 8 && std::isdigit(static_cast<unsigned char>(text[end])))
        index = 10 * index + static_cast<std::size_t>(text[end++] - '0');
      const bool numbered = at < text.size() && text[at] == '[' && end < text.size() && text[end] == ']';
      if (numbered && index < places_.size()) {
        std::string_view place = places_[index];
        if (place.ends_with('.')) place.remove_suffix(1);
        out += place;
        at = end + 1;
      } else {
        out += kInput.name;
      }
      continue;
    }
    const auto* name = std::ranges::find_if(kNames, [&](const auto& n) { return rest.starts_with(n.first); });
    out += name == std::end(kNames) ? rest.substr(0, 1) : name->second;
    at += name == std::end(kNames) ? 1 : name->first.size();
  }
  return out;
}

http::HttpError ResponsesInput::in_own_words(http::HttpError error) const {
  error.message = own_words(error.message);
  error.param = own_words(error.param);
  return error;
}

}  // namespace ark::api
