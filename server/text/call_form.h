// How a model writes its calls of tools: as its chat template prints calls of earlier turns, which it was trained on.
// There is no table of model families: the template is asked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fwd.h"

namespace ark::text {

class ChatTemplate;

// What stands around the parts of calls, without the blanks around it; blanks between parts are nobody's. A '\1' stands
// for a call's id, whatever it is.
struct CallForm {
  enum class Kind {
    kJson,        // {"name": "f", "arguments": {...}}, alone or in a list
    kNamed,       // the name, then arguments as JSON
    kParameters,  // the name, then each argument's name and value: texts as they are, other values as JSON
  };
  Kind kind = Kind::kJson;
  // A section of calls stands between both. Without a begin it is an answer that is a call from its first letter on,
  // without an end it takes all that is left of the answer.
  std::string begin, end;
  std::string before, again;  // in a section: before its first call, between two calls
  std::string after;          // behind the section's last call
  // kJson: the members' names.
  std::string name, arguments;
  // kNamed, kParameters: behind the name; kParameters: around each argument's name, and behind its value.
  std::string after_name, before_key, after_key, after_value;
  bool lines = false;           // kParameters: values have lines of their own
  bool text_arguments = false;  // the template wants arguments of earlier calls as a text
  bool null_content = false;  // the template leaves earlier calls out where the text beside them is not null

  std::vector<std::string_view> marks() const;  // words and tags of all the above
};

// <tool_call>{"name": "f", "arguments": {...}}</tool_call>, one call a section.
CallForm json_in_tool_call();

// Renders some small chats; null where the template prints no calls, or in none of these forms. `tokens`: as in
// ChatInput.
std::optional<CallForm> call_form_of(const ChatTemplate& chat_template,
                                     const std::map<std::string, std::string>& tokens);

struct ToolCall {
  std::string name;
  std::string arguments;  // the JSON of an object, as the model wrote it, without blanks between its parts
};
// The calls of a section; empty where it holds anything else. `tools`: as in requests; their schemas tell which
// parameters are texts.
std::vector<ToolCall> read_calls(const CallForm& form, std::string_view section, const Json& tools);

// Behind the JSON object that begins at `begin`; npos where it does not end. Says nothing of what is inside.
std::size_t end_of_object(std::string_view text, std::size_t begin);
// Tags, as <a> or [A], also those that begin or end outside of `text`, and the words between them.
std::vector<std::string_view> units_of(std::string_view text);
// Without blanks at both ends.
inline constexpr std::string_view kBlanks = " \t\r\n";
std::string_view trimmed(std::string_view text);

}  // namespace ark::text
