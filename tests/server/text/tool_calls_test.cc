// Calls in a model's text, however it is cut into pieces.
#include "server/text/tool_calls.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace ark::text {
namespace {

// The text and the calls as "name arguments;" of these pieces.
std::pair<std::string, std::string> read(const std::vector<std::string>& pieces,
                                         const ToolCalls::Expected& expected = {}) {
  ToolCalls calls(expected);
  std::string text, called;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ToolCalls::Found found = calls.push(pieces[i], i + 1 == pieces.size());
    text += found.text;
    for (const ToolCall& call : found.calls) called += call.name + " " + call.arguments + ";";
  }
  EXPECT_EQ(calls.any(), !called.empty());
  return {text, called};
}

TEST(ToolCalls, AreFoundWhereverTheTextIsCut) {
  const std::string one = R"(<tool_call>
{"name": "f", "arguments": {"x": "</tool_"}}
</tool_call>)";
  const std::string f = R"(f {"x":"</tool_"};)";
  for (
      const auto& [text, rest, called] : std::vector<std::tuple<std::string, std::string, std::string>>{
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
          {R"(<tool_call>{"name": "g", "arguments": {"id": 98765432109876543210, "x": [1.50, "a \" b"]}}</tool_call>)",
           "", R"(g {"id":98765432109876543210,"x":[1.50,"a \" b"]};)"},  // numbers as they are written
          {R"(<tool_call>{"function": {"na\u006de": "g", "parameters": "{\"x\": 1e2}"}, "name": "f"}</tool_call>)",
           "", R"(g {"x":1e2};)"},
          {R"(<tool_call>{"arguments": {"name": {"x": 1}}, "name": "f", "name": "g"}</tool_call>)", "",
           R"(g {"name":{"x":1}};)"},
          {R"(<tool_call>{"name": "g", "arguments": null}</tool_call>)", "", "g {};"},
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

// Texts, in whichever pieces, of models that write calls without a mark, or with one at the beginning only.
TEST(ToolCalls, AreReadInOtherForms) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const ToolCalls::Expected bare{.form = {.name = "name", .arguments = "parameters"}, .tools = tools},
      begun{.form = {.begin = "[TOOL_CALLS]", .name = "name", .arguments = "arguments"}, .tools = tools},
      one{.form = begun.form, .tools = tools, .most = 1};
  const ToolCalls::Expected words{.form = {.kind = CallForm::Kind::kParameters,
                                           .begin = "<tool_call>",
                                           .end = "</tool_call>",
                                           .before_key = "<key>",
                                           .after_key = "</key><value>",
                                           .after_value = "</value>"},
                                  .tools = tools};
  const std::string f = R"({"name": "f", "parameters": {"x": 1}})", g = R"({"name": "g", "parameters": {}})";
  for (const auto& [expected, text, rest, called] :
       std::vector<std::tuple<const ToolCalls::Expected*, std::string, std::string, std::string>>{
           {&bare, f, "", R"(f {"x":1};)"},
           {&words, "<tool_call>f<key>id</key><value> 98765432109876543210 </value></tool_call>", "",
            R"(f {"id":98765432109876543210};)"},
           {&words,
            "<tool_call>f<key>x</key><value>1</value><key>x</key><value>{\"y\": a</value></tool_call>", "",
            R"(f {"x":"{\"y\": a"};)"},
           {&bare, " " + f + "; " + f, "", R"(f {"x":1};f {"x":1};)"},
           {&bare, "So: " + f, "So: " + f, ""},
           {&bare, g, g, ""},  // no function of that name
           {&bare, f + " and", f + " and", ""},
           {&bare, R"({"a": 1)", R"({"a": 1)", ""},
           {&begun, "So:\n[TOOL_CALLS][" + f + ", " + f + "]", "So:", R"(f {"x":1};f {"x":1};)"},
           {&begun, "[TOOL_CALLS] none", "[TOOL_CALLS] none", ""},
           {&begun, "[TOOL_CALLS]" + f + "\n[TOOL_CALLS]" + f, "", R"(f {"x":1};f {"x":1};)"},
           {&words, "The <tool_call>tag</tool_call>", "The <tool_call>tag</tool_call>", ""},
           {&words, "So <tool_call>f\n<key>x</key><value>1</value></tool_call>", "So", R"(f {"x":1};)"},
           {&one, "[TOOL_CALLS] [" + f + ", " + f + "]", "", R"(f {"x":1};)"}}) {
    const std::pair wanted(rest, called);
    for (std::size_t at = 0; at < text.size(); ++at)
      EXPECT_EQ(read({text.substr(0, at), text.substr(at)}, *expected), wanted) << text << at;
    std::vector<std::string> letters;
    for (const char letter : text) letters.emplace_back(1, letter);
    EXPECT_EQ(read(letters, *expected), wanted) << text;
  }
}

TEST(ToolCalls, TextBesideThemIsToldAsSoonAsItIsCertain) {
  const ToolCalls::Expected expected;
  ToolCalls calls(expected);
  EXPECT_EQ(calls.push("Hi", false).text, "Hi");
  EXPECT_EQ(calls.push(" <", false).text, "");
  EXPECT_EQ(calls.push("b>", false).text, " <b>");
}

}  // namespace
}  // namespace ark::text
