#include "server/api/chat_messages.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "base/error.h"
#include "server/api/schema.h"
#include "server/api/tools.h"
#include "server/text/chat_input.h"

namespace ark::api {
namespace {

constexpr std::size_t kMostMessages = 4096;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

std::string known_roles() {
  std::string text;
  for (const std::string_view role : kRoles) text += (text.empty() ? "" : ", ") + std::string(role);
  return text;
}

constexpr FlagField kGenerationPrompt{"add_generation_prompt", true,
                                      "End the prompt where the assistant begins (extension)."};
constexpr FlagField kGoOn{"continue_final_message", false,
                          "Go on with the last message instead of answering it (extension)."};
const OtherField kMessages{"messages",
                           [](const Limits&) { return at_least_one(list(reference("ChatMessage"))); }, true};
const OtherField kTemplateVariables{
    "chat_template_kwargs", [](const Limits&) {
      return maybe({{"type", "object"}, {"description", "Further variables for the template (extension)."}});
    }};

constexpr TextField kEffort{"reasoning_effort",
                            "A variable of chat templates; refused where the model's does not look at it."};
constexpr const char* kPrefix = "prefix";  // of the last message, as Mistral and DeepSeek have it

// Parts become one text, a line each; a model of text takes no others.
std::string text_of_parts(const Fields& message, const Json& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string place = "content[" + std::to_string(i) + "]";
    if (!parts[i].is_object()) message.fail(place, "must be an object, not " + kind_of(parts[i]));
    const Fields part(parts[i], message.path(place + "."));
    const auto type = part.string("type");
    if (!type) part.wrong_type("type", "a string");
    if (*type != "text" && *type != "refusal")  // both are what was said
      part.fail("type", "is " + escaped(*type, 40) + "; the model takes only text");
    const auto piece = part.string(*type);
    if (!piece) part.wrong_type(*type, "a string");
    text += (i ? "\n" : "") + *piece;
  }
  return text;
}

// OpenAI sends a call's arguments as JSON in a string; templates walk through them as objects, or print them: then they
// stay the client's text, whose numbers may have more digits than ours.
void read_arguments(const Fields& message, Json& calls, bool as_text) {
  if (!calls.is_array()) message.wrong_type("tool_calls", "an array");
  for (Json& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      message.fail("tool_calls", "must hold objects with a function");
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string())
      message.fail("tool_calls", "must name their function");
    if (!function.contains("arguments")) continue;
    Json& arguments = function["arguments"];
    std::string text = arguments.is_string() ? arguments.get<std::string>() : to_text(arguments);
    if (text.empty()) text = "{}";
    if (arguments.is_string())
      arguments = parse_json(text, message.path("tool_calls: arguments"), message.path("tool_calls"));
    if (as_text) arguments = std::move(text);
  }
}

Json read_message(const Json& given, std::size_t index, const text::CallForm& form) {
  const std::string place = "messages[" + std::to_string(index) + "]";
  if (!given.is_object())
    throw http::HttpError(400, place + " must be an object, not " + kind_of(given), place, "invalid_type");
  const Fields fields(given, place + ".");
  const auto role = fields.string("role");
  if (!role) fields.wrong_type("role", "a string");
  if (std::ranges::find(kRoles, *role) == std::end(kRoles))
    fields.fail("role", "is " + escaped(*role, 40) + ", none of " + known_roles());
  (void)fields.string("name");
  (void)fields.string("tool_call_id");
  const auto refusal = fields.string("refusal");
  Json message = given;
  const Json* content = fields.find("content");
  if (content)
    message["content"] = read_content(fields, *content);
  else if (*role == "assistant" && refusal)
    message["content"] = *refusal;  // it was said in the content's place
  else if (*role != "assistant" && !fields.find("tool_calls"))
    fields.wrong_type("content", "a string or an array of text parts");
  else
    message["content"] = "";  // templates append it
  if (message.contains("tool_calls") && message["tool_calls"].is_null()) message.erase("tool_calls");
  if (message.contains("tool_calls")) {
    read_arguments(fields, message["tool_calls"], form.text_arguments);
    if (form.null_content && !message["tool_calls"].empty() && message["content"] == "")
      message["content"] = nullptr;
  }
  return message;
}

Json read_messages(const Fields& fields, const text::CallForm& form) {
  const Json* messages = fields.get(kMessages);
  if (!messages || !messages->is_array()) fields.wrong_type("messages", "an array of messages");
  if (messages->empty()) fields.fail("messages", "must not be empty");
  if (messages->size() > kMostMessages)
    fields.fail("messages", "has more than " + std::to_string(kMostMessages) + " messages");
  Json all = Json::array();
  for (std::size_t i = 0; i < messages->size(); ++i) all.push_back(read_message((*messages)[i], i, form));
  return all;
}

// Whether the last message is the beginning of the answer by its own word.
bool is_begun(const Json& messages) {
  bool begun = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Fields message(messages[i], "messages[" + std::to_string(i) + "].");
    if (!message.boolean(kPrefix).value_or(false)) continue;
    if (i + 1 < messages.size() || messages[i]["role"] != "assistant")
      message.fail(kPrefix, "is only for the last message, of the assistant");
    begun = true;
  }
  return begun;
}

std::string content_of(const Json& message) {
  const Json& content = message["content"];
  return content.is_null() ? "" : content.get<std::string>();
}

// A model that must call functions which its template does not show would know nothing of them.
void tell_of_tools(text::ChatInput& input) {
  Json& first = input.messages.front();
  first["content"] = "Answer by calling one of these functions, with its name and its arguments as JSON:\n" +
                     to_text(input.tools) + "\n\n" + content_of(first);
  input.tools = nullptr;
}

// Stands where the last message ends. The space behind it shows whether a template trims what it prints.
constexpr std::string_view kEndMark = "ARK-THE-TEXT-GOES-ON-HERE ";
// Shows whether a template prints a message; another one, as both may be in a chat.
constexpr std::string_view kPrintMark = "ARK-THIS-IS-PRINTED";

// What the model did beside its text. Names of speakers and old reasoning are for those templates that know them:
// clients send them to all servers alike.
constexpr const char* kSaying[] = {"tool_calls", "function_call"};

// What a template leaves out without a word would be lost: the first message of each role that not every template knows
// is rendered once more with a mark in it; tools and the first field of each kind once more without them.
class LossCheck {
 public:
  using Render = std::function<std::string(const text::ChatInput&)>;
  LossCheck(const Fields& fields, const text::ChatInput& input, const std::string& chat, const Render& render)
      : fields_(fields), input_(input), chat_(chat), render_(render) {}

  void run() {
    for (std::size_t i = 0; i < input_.messages.size(); ++i) {
      check_role(i);
      for (const char* name : kSaying) check_field(i, name);
    }
    check_effort();
  }

  bool prints_tools() const {
    if (input_.tools.is_null()) return true;
    text::ChatInput without = input_;
    without.tools = nullptr;
    return !renders(without, chat_);
  }

 private:
  // Whether this makes the same text. A template that refuses it looks at the difference.
  bool renders(const text::ChatInput& input, const std::string& chat) const {
    try {
      return render_(input) == chat;
    } catch (const Error&) {
      return false;
    }
  }

  std::string role_of(std::size_t i) const { return input_.messages[i]["role"].get<std::string>(); }

  [[noreturn]] void fail(std::size_t i, const std::string& field, const std::string& what) const {
    fields_.fail("messages[" + std::to_string(i) + "]." + field,
                 what + " the model's chat template does not print");
  }

  void check_role(std::size_t i) {
    const std::string role = role_of(i);
    if (role == "user" || role == "assistant" || !seen_.insert(role).second) return;
    text::ChatInput marked = input_;
    Json& message = marked.messages[i];
    message["content"] = content_of(message) + std::string(kPrintMark);
    if (render_(marked).find(kPrintMark) == std::string::npos) fail(i, "role", "is " + role + ", which");
  }

  void check_effort() const {
    if (fields_.get(kEffort).value_or("").empty()) return;
    text::ChatInput other = input_;
    other.extra[kEffort.name] = kEndMark;
    if (renders(other, chat_))
      fields_.fail(kEffort.name, "is what the model's chat template does not look at");
  }

  void check_field(std::size_t i, const std::string& name) {
    const Json& message = input_.messages[i];
    const auto said = message.find(name);
    const std::string role = role_of(i);
    if (said == message.end() || said->is_null() || *said == "" || (said->is_structured() && said->empty()) ||
        !seen_.insert(role + "." + name).second)
      return;
    text::ChatInput without = input_;
    without.messages[i].erase(name);
    if (renders(without, chat_)) fail(i, name, "is what");
  }

  const Fields& fields_;
  const text::ChatInput& input_;
  const std::string& chat_;
  const Render& render_;
  std::set<std::string> seen_;
};

// The rendered chat up to the end of the last message's text, for the model to go on with it.
std::string up_to_mark(std::string chat) {
  const std::size_t at = chat.rfind(kEndMark.substr(0, kEndMark.size() - 1));
  if (at == std::string::npos)
    throw http::HttpError(
        400, "the model's chat template does not print the last message, so it cannot be continued",
        "continue_final_message", "invalid_value");
  const bool trimmed = chat.compare(at, kEndMark.size(), kEndMark) != 0;
  chat.resize(at);
  if (trimmed) chat.resize(chat.find_last_not_of(" \t\r\n") + 1);
  return chat;
}

}  // namespace

const std::vector<Field>& template_fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> fields = {kMessages, kGenerationPrompt, kGoOn, kTemplateVariables, kEffort};
    fields.insert(fields.end(), tool_fields().begin(), tool_fields().end());
    return fields;
  }();
  return all;
}

bool is_continued(const Fields& fields) { return fields.get(kGoOn) || is_begun(*fields.get(kMessages)); }

std::string chat_prompt(const Fields& fields, const Model& model) {
  tokenizer_for(model, "messages");
  fields.refuse("chat_template", kNoNumber, "is not supported: chats are rendered by the model's own");
  const text::ModelText& text = *model.served.text;
  text::ChatInput input;
  input.messages = read_messages(fields, text.call_form.value_or(text::CallForm()));
  const Tools tools = read_tools(fields);
  input.tools = tools.shown;
  const bool begun = is_continued(fields);
  input.add_generation_prompt = fields.given(kGenerationPrompt).value_or(!begun);
  if (begun && input.add_generation_prompt)
    fields.fail("continue_final_message", "and add_generation_prompt cannot both be true");
  if (begun) {
    Json& last = input.messages.back();
    last["content"] = content_of(last) + std::string(kEndMark);
  }
  if (const Json* extra = fields.get(kTemplateVariables)) {
    if (!extra->is_object()) fields.wrong_type("chat_template_kwargs", "an object");
    input.extra = *extra;
  }
  if (const auto effort = fields.get(kEffort).value_or(""); !effort.empty())
    input.extra.emplace(kEffort.name, effort);
  if (!text.chat_template)
    throw http::HttpError(
        400,
        "the model " + escaped(model.name()) + " has no chat template that works" +
            (text.chat_template_error.empty() ? "" : " (" + text.chat_template_error + ")") +
            "; use /v1/completions",
        "messages", "no_chat_template");
  input.tokens = text.tokens;
  try {
    text::Rendering within;
    const LossCheck::Render render = [&](const text::ChatInput& some) {
      return text.template_for(some).render(some, within);
    };
    std::string chat = render(input);
    LossCheck losses(fields, input, chat, render);
    if (!losses.prints_tools()) {
      if (!tools.must_call) fields.fail("tools", "are not printed by the model's chat template");
      tell_of_tools(input);
      chat = render(input);
    }
    losses.run();
    return begun ? up_to_mark(std::move(chat)) : chat;
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidArgument) throw;
    throw http::HttpError(400, e.what(), "messages", "invalid_value");
  }
}

std::vector<int32_t> chat_tokens(const Fields& fields, const Model& model) {
  return encode(model, "messages", chat_prompt(fields, model), false);
}

Json content_schema(std::initializer_list<const char*> types) {
  const Json part = {
      {"anyOf", Json::array({object({{"type", one_of(types)}, {"text", type("string")}}, {"type", "text"}),
                             object({{"type", one_of({"refusal"})}, {"refusal", type("string")}},
                                    {"type", "refusal"})})}};
  return {{"oneOf", Json::array({type("string"), list(part)})}};
}

std::string read_content(const Fields& fields, const Json& content) {
  if (content.is_array()) return text_of_parts(fields, content);
  if (!content.is_string()) fields.wrong_type("content", "a string or an array of text parts");
  return content.get<std::string>();
}

Json chat_message_schema(const Limits&) {
  Json call = object({{"function", object({{"name", type("string")}}, {"name"})}}, {"function"});
  const Json content = content_schema();
  const Json calls = list(std::move(call));
  Json all = object(
      {{"role", {{"type", "string"}, {"enum", Json(kRoles)}}},
       {"content", maybe(content)},
       {"refusal", maybe(type("string"))},
       {"name", maybe(type("string"))},
       {"tool_calls", maybe(calls)},
       {"tool_call_id", maybe(type("string"))},
       {kPrefix, maybe({{"type", "boolean"},
                        {"description", "Of the last, the assistant's: go on with it (extension)."}})}},
      {"role"});
  // Only assistants may say nothing.
  all["anyOf"] = Json::array({object({{"content", content}}, {"content"}),
                              object({{"tool_calls", calls}}, {"tool_calls"}),
                              object({{"role", one_of({"assistant"})}}, {"role"})});
  return all;
}

}  // namespace ark::api
