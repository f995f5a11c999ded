// The calls that a model writes into its text, in the form of its chat template (call_form.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/json.h"
#include "server/text/call_form.h"

namespace ark::text {

class ToolCalls {
 public:
  // What calls are looked for. `most`: what comes behind so many is lost.
  struct Expected {
    CallForm form = json_in_tool_call();
    Json tools;               // as in requests
    bool only_tools = false;  // a call of another function is text
    std::size_t most = SIZE_MAX;
  };
  explicit ToolCalls(const Expected& expected) : expected_(&expected) {}  // which must outlive it

  struct Found {
    std::string text;  // what is no call, without the blanks before calls and behind the last
    std::vector<ToolCall> calls;
  };
  // What `more` of the text makes certain. Where it `ends`, a call may lack its end. What begins as a call and is none
  // is text.
  Found push(std::string_view more, bool ends);
  bool any() const { return count_ > 0; }

 private:
  std::size_t find_begin() const;
  bool read_section(std::string_view section, Found& found);

  const Expected* expected_;
  std::string held_;
  std::size_t count_ = 0;
  bool has_begun_ = false;  // some of the text has been told
};

}  // namespace ark::text
