// Calls in a model's text, however it is cut into pieces.
#include "server/api/tool_calls.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace ark::api {
namespace {

// The text and the calls as "name arguments;" of these pieces.
std::pair<std::string, std::string> read(const std::vector<std::string>& pieces) {
  ToolCalls calls("id-");
  std::string text, called;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ToolCalls::Found found = calls.push(pieces[i], i + 1 == pieces.size());
    text += found.text;
    for (const Json& call : found.calls) {
      EXPECT_EQ(call["id"], "id-" + std::to_string(call["index"].get<int>()));
      EXPECT_EQ(call["type"], "function");
      called += call["function"]["name"].get<std::string>() + " " +
                call["function"]["arguments"].get<std::string>() + ";";
    }
  }
  EXPECT_EQ(calls.any(), !called.empty());
  return {text, called};
}

TEST(ToolCalls, AreFoundWhereverTheTextIsCut) {
  const std::string one = R"(<tool_call>
{"name": "f", "arguments": {"x": "</tool_"}}
</tool_call>)";
  const std::string f = R"(f {"x":"</tool_"};)";
  for (const auto& [text, rest, called] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"", "", ""},
           {"Hi <there> \n", "Hi <there> \n", ""},
           {one, "", f},
           {"Let me see.\n\n" + one + "\n" + one + "\n", "Let me see.", f + f},
           {one + " and then", " and then", f},
           {R"(<tool_call>{"name": "g"})", "", "g {};"},  // the end of the text ends it
           {R"(a <tool_call>{"name": "g", "argu)", R"(a <tool_call>{"name": "g", "argu)", ""},
           {"a <tool_call> b </tool_call> " + one, "a <tool_call> b </tool_call>", f},
           {"The <tool_call> tag.\n" + one, "The <tool_call> tag.", f},
           {"<tool_call> <tool_call>" + one + "\n" + one, "<tool_call> <tool_call>", f + f},
           {R"(<tool_call>{"name": "g", "arguments": {"x": "<tool_call>"}}</tool_call>)", "",
            R"(g {"x":"<tool_call>"};)"},
           {R"(<tool_call> a <tool_call> {"name")", R"(<tool_call> a <tool_call> {"name")", ""},
           {R"(<tool_call>{"name": 1}</tool_call>)", R"(<tool_call>{"name": 1}</tool_call>)", ""},
           {R"(<tool_call>{"name": "g", "arguments": 5}</tool_call>)",
            R"(<tool_call>{"name": "g", "arguments": 5}</tool_call>)", ""},
           {one + " <tool_c", " <tool_c", f},
           {"<<tool_call", "<<tool_call", ""}}) {
    const std::pair wanted(rest, called);
    EXPECT_EQ(read({text}), wanted);
    std::vector<std::string> letters;
    for (std::size_t at = 0; at < text.size(); ++at) {
      EXPECT_EQ(read({text.substr(0, at), text.substr(at)}), wanted) << at;
      letters.push_back(text.substr(at, 1));
    }
    if (!letters.empty()) {
      EXPECT_EQ(read(letters), wanted);
    }
    letters.emplace_back();  // the end may come alone
    EXPECT_EQ(read(letters), wanted);
  }
}

TEST(ToolCalls, AreExpectedOfTemplatesThatAskForThem) {
  EXPECT_TRUE(
      ToolCalls::are_asked_for(R"(<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>)"));
  EXPECT_TRUE(ToolCalls::are_asked_for(R"({{- "<tool_call>\n{\"name\": <name>, \"arguments\": <json>}" }})"));
  EXPECT_FALSE(ToolCalls::are_asked_for("<tool_call>\n<function={{ call.name }}>{{ call.arguments }}"));
  EXPECT_FALSE(ToolCalls::are_asked_for(R"([TOOL_CALLS][{"name": "f", "arguments": {}}])"));
}

TEST(ToolCalls, TextBesideThemIsToldAsSoonAsItIsCertain) {
  ToolCalls calls;
  EXPECT_EQ(calls.push("Hi", false).text, "Hi");
  EXPECT_EQ(calls.push(" <", false).text, "");
  EXPECT_EQ(calls.push("b>", false).text, " <b>");
}

}  // namespace
}  // namespace ark::api
