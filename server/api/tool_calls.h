// The calls that a model writes into its text, as the templates of Hermes and Qwen tell it to:
// <tool_call>{"name": "f", "arguments": {...}}</tool_call>.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/json.h"

namespace ark::api {

class ToolCalls {
 public:
  static constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";

  // Calls have ids that begin so.
  explicit ToolCalls(std::string id = "") : id_(std::move(id)) {}

  // Whether a chat template tells the model to write them so. Others have <tool_call>, too, around what is no JSON.
  static bool are_asked_for(std::string_view chat_template);

  struct Found {
    std::string text;            // what is no call, without the blanks before calls and behind the last
    Json calls = Json::array();  // as OpenAI's streams have them, each whole
  };
  // What `more` of the text makes certain. Where it `ends`, a call may lack its end. What begins as a call and is none
  // is text.
  Found push(std::string_view more, bool ends);
  bool any() const { return count_ > 0; }

 private:
  bool read_call(const std::string& text, Found& found);

  std::string id_, held_;
  std::size_t count_ = 0;
};

}  // namespace ark::api
