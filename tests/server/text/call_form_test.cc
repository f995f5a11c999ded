// Calls are read as templates print them: what a template writes of random calls comes back as these calls.
#include "server/text/call_form.h"

#include <gtest/gtest.h>

#include <random>

#include "server/text/chat_input.h"
#include "server/text/chat_template.h"
#include "tests/fixtures.h"

namespace ark::text {
namespace {

struct Published {
  const char* form;    // whose models are told to write so
  const char* answer;  // the part of a template that prints an assistant's message `m`
};
// Models' turns as their makers' templates print them, here without the rest.
constexpr Published kPublished[] = {
    {"Hermes, Qwen",
     R"({{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n{"name": "' }}{{ c.function.name }}{{ '", "arguments": ' }}{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %})"},
    {"Qwen 3, which shows that it does not think",
     R"({{ '<think>\n\n</think>\n\n' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n{"name": "' ~ c.function.name ~ '", "arguments": ' ~ c.function.arguments | tojson ~ '}\n</tool_call>' }}{% endfor %})"},
    {"Llama 3",
     R"({% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}{{ '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}{{ m.tool_calls[0].function.arguments | tojson }}{{ '}' }}{% else %}{{ m.content }}{% endif %})"},
    {"Mistral 7B",
     R"({% if m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ (c.function | tojson)[:-1] }}{{ ', "id": "' + c.id + '"}' }}{{ ', ' if not loop.last else ']' }}{% endfor %}{% else %}{{ ' ' + m.content }}{% endif %})"},
    {"Mistral Small 3.2",
     R"({{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]' + c.function.arguments | tojson }}{% endfor %})"},
    {"Qwen 3 Coder",
     R"({{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' }}{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %})"},
    {"GLM 4.5",
     R"({{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name }}{% for k, v in c.function.arguments | items %}{{ '\n<arg_key>' ~ k ~ '</arg_key>\n<arg_value>' }}{{ v if v is string else v | tojson }}{{ '</arg_value>' }}{% endfor %}{{ '\n</tool_call>' }}{% endfor %})"},
    {"DeepSeek V3",
     R"({% if m.tool_calls %}{{ m.content or '' }}{{ '<|tool_calls_begin|>' }}{% for c in m.tool_calls %}{{ '<|tool_call_begin|>' + c.type + '<|tool_sep|>' + c.function.name + '\n```json\n' }}{{ c.function.arguments | tojson }}{{ '\n```<|tool_call_end|>' }}{{ '' if loop.last else '\n' }}{% endfor %}{{ '<|tool_calls_end|>' }}{% else %}{{ m.content }}{% endif %})"},
    {"Phi 4 mini, Granite", R"({{ m.content or '' }}{% if m.tool_calls %}{{ '<|tool_call|>[' }}{% for c in m.tool_calls %}{{ '{"name": "' ~ c.function.name ~ '", "arguments": ' ~ c.function.arguments | tojson ~ '}' }}{{ ', ' if not loop.last }}{% endfor %}{{ ']<|/tool_call|>' }}{% endif %})"},
    {"Command R7B",
     R"({% if m.tool_calls %}{{ '<|START_ACTION|>[' }}{% for c in m.tool_calls %}{{ '\n    {"tool_call_id": "' ~ loop.index0 ~ '", "tool_name": "' ~ c.function.name ~ '", "parameters": ' ~ c.function.arguments | tojson ~ '}' }}{{ ',' if not loop.last }}{% endfor %}{{ '\n]<|END_ACTION|>' }}{% else %}{{ '<|START_RESPONSE|>' ~ m.content ~ '<|END_RESPONSE|>' }}{% endif %})"},
    {"MiniMax M2",
     R"({{ m.content or '' }}{% if m.tool_calls %}{{ '\n<minimax:tool_call>\n' }}{% for c in m.tool_calls %}{{ '<invoke name="' ~ c.function.name ~ '">\n' }}{% for k, v in c.function.arguments.items() %}{{ '<parameter name="' ~ k ~ '">' }}{{ v if v is string else v | tojson }}{{ '</parameter>\n' }}{% endfor %}{{ '</invoke>\n' }}{% endfor %}{{ '</minimax:tool_call>' }}{% endif %})"},
    {"DeepSeek 3.1, where arguments are a text",
     R"({{ m.content or '' }}{% if m.tool_calls %}{{ '<|tool_calls_begin|>' }}{% for c in m.tool_calls %}{{ '<|tool_call_begin|>' + c.function.name + '<|tool_sep|>' + c.function.arguments + '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_end|>' }}{% endif %})"},
    {"DeepSeek 3.2",
     R"({{ m.content }}{% if m.tool_calls %}{{ '\n\n<|DSML|function_calls>\n' }}{% for c in m.tool_calls %}{{ '<|DSML|invoke name="' ~ c.function.name ~ '">\n' }}{% for k, v in c.function.arguments.items() %}{{ '<|DSML|parameter name="' ~ k ~ '" string="' ~ ('true' if v is string else 'false') ~ '">' ~ (v if v is string else v | tojson) ~ '</|DSML|parameter>\n' }}{% endfor %}{{ '</|DSML|invoke>\n' }}{% endfor %}{{ '</|DSML|function_calls>' }}{% endif %})"},
    {"Kimi K2",
     R"({{ '<think>' ~ (m.reasoning_content or '') ~ '</think>' }}{{ m.content or '' }}{% if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}{% for c in m.tool_calls %}{{ '<|tool_call_begin|>' ~ c.id ~ '<|tool_call_argument_begin|>' ~ c.function.arguments | tojson ~ '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %})"},
    {"Kimi K2 as it came out", R"({{ m.content or '' }}{% if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}{% for c in m.tool_calls %}{{ '<|tool_call_begin|>functions.' ~ c.function.name ~ ':' ~ loop.index0 ~ '<|tool_call_argument_begin|>' ~ c.function.arguments | tojson ~ '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %})"},
    {"DeepSeek R1",
     R"({% if m.content is none %}{{ '<|tool_calls_begin|>' }}{% for c in m.tool_calls %}{{ '<|tool_call_begin|>' + c.type + '<|tool_sep|>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```<|tool_call_end|>' }}{{ '' if loop.last else '\n' }}{% endfor %}{{ '<|tool_calls_end|>' }}{% else %}{{ m.content }}{% endif %})"},
    {"functionary",
     R"({{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '<function=' ~ c.function.name ~ '>' ~ c.function.arguments | tojson ~ '</function>' }}{% endfor %})"},
};

ChatTemplate parsed(const std::string& answer) {
  return ChatTemplate::parse(
      "{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}" + answer +
      "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}");
}

Json random_value(std::mt19937& random, int depth) {
  const char* const texts[] = {"",           "a",    "two words", "12",   "true", "{",
                               "\"quoted\\", "a\nb", "]",         "é 世", "<b>",  "null"};
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return static_cast<int64_t>(random() % 100) - 50;
    case 1:
      return random() % 2 == 0;
    case 2:
      return nullptr;
    case 3:
      return 0.25 * static_cast<double>(random() % 9);
    case 5:
      return Json::array({random_value(random, depth - 1), random_value(random, depth - 1)});
    case 6:
      return Json{{"k", random_value(random, depth - 1)}};
    default:
      return texts[random() % std::size(texts)];
  }
}

// Calls as in messages, and tools whose schemas have their types.
std::pair<Json, Json> random_calls(std::mt19937& random, std::size_t count) {
  const char* const types[] = {"integer", "boolean", "null", "number", "string", "array", "object"};
  Json calls = Json::array(), tools = Json::array();
  for (std::size_t i = 0; i < count; ++i) {
    Json arguments = Json::object(), properties = Json::object();
    for (std::size_t k = random() % 4; k > 0; --k) {
      Json value = random_value(random, 2);
      const std::size_t type = value.is_boolean()  ? 1
                               : value.is_null()   ? 2
                               : value.is_number() ? 3
                               : value.is_string() ? 4
                               : value.is_array()  ? 5
                                                   : 6;
      const std::string key = (random() % 2 ? "key_" : "parameter") + std::to_string(k);
      properties[key] = {{"type", types[type]}};
      arguments[key] = std::move(value);
    }
    const std::string name = "function_" + std::to_string(i);
    calls.push_back({{"id", "Abcdefgh" + std::to_string(i)},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", arguments}}}});
    tools.push_back(
        {{"type", "function"},
         {"function", {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}});
  }
  return {calls, tools};
}

// What a template has of the calls, in whole sections; the marks are found as the server finds them.
std::vector<ToolCall> read_all(const CallForm& form, std::string_view text, const Json& tools) {
  std::vector<ToolCall> all;
  for (std::size_t at = 0; (at = text.find(form.begin, at)) != text.npos && at < text.size();) {
    const std::size_t inner = at + form.begin.size();
    const std::size_t end =
        form.end.empty() ? text.size() : std::min(text.size(), text.find(form.end, inner));
    for (ToolCall& call : read_calls(form, text.substr(inner, end - inner), tools))
      all.push_back(std::move(call));
    at = std::max(end, at + 1);
  }
  return all;
}

TEST(CallForm, WhatATemplatePrintsOfCallsIsReadAsTheseCalls) {
  std::mt19937 random(7);
  for (const auto& [whose, answer] : kPublished) {
    const ChatTemplate chat_template = parsed(answer);
    const auto form = call_form_of(chat_template, {{"eos_token", "<|end|>"}});
    ASSERT_TRUE(form) << whose;
    EXPECT_EQ(form->null_content, std::string_view(whose) == "DeepSeek R1") << whose;
    const bool single = std::string_view(whose) == "Llama 3";
    int several = 0;
    for (int i = 0; i < test::rounds(200, 5000); ++i) {
      const auto [calls, tools] = random_calls(random, single ? 1 : 1 + random() % 3);
      Json messages = calls;
      for (std::size_t c = 0; c < calls.size(); ++c) {
        Json& function = messages[c]["function"];
        if (form->text_arguments) function["arguments"] = to_text(function["arguments"]);
        if (std::string_view(whose) == "Kimi K2")
          messages[c]["id"] =
              "functions." + function["name"].get<std::string>() + ":" + std::to_string(c + 9);
      }
      ChatInput input;
      input.messages = Json::array({{{"role", "user"}, {"content", "?"}},
                                    {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", messages}}});
      input.tools = tools;
      Rendering within;
      std::string said = chat_template.render(input, within);
      said.erase(0, said.find("<|assistant|>") + 13);
      said.resize(said.rfind("<|end|>"));
      const std::vector<ToolCall> read = read_all(*form, said, tools);
      ASSERT_EQ(read.size(), calls.size()) << whose << ": " << said;
      several += calls.size() > 1;
      for (std::size_t c = 0; c < read.size(); ++c) {
        EXPECT_EQ(read[c].name, calls[c]["function"]["name"]) << whose << ": " << said;
        EXPECT_EQ(parse_json(read[c].arguments), calls[c]["function"]["arguments"]) << whose << ": " << said;
      }
      if (HasFailure()) break;
    }
    EXPECT_EQ(several > 0, !single);
  }
}

TEST(CallForm, MarksAreThoseOfTheTemplate) {
  const auto form = [](std::size_t i) {
    return call_form_of(parsed(kPublished[i].answer), {{"eos_token", "<|end|>"}}).value();
  };
  EXPECT_EQ(form(0).begin, "<tool_call>");
  EXPECT_EQ(form(0).end, "</tool_call>");
  EXPECT_EQ(form(1).begin, "<tool_call>") << "what it thought is no call's";
  EXPECT_EQ(form(2).begin, "");
  EXPECT_EQ(form(2).arguments, "parameters");
  EXPECT_EQ(form(3).begin, "[TOOL_CALLS]");
  EXPECT_EQ(form(3).end, "");
  EXPECT_EQ(form(4).after_name, "[CALL_ID]\1[ARGS]");
  EXPECT_EQ(form(5).end, "</tool_call>");
  EXPECT_EQ(form(5).after_value, "</parameter>");
  EXPECT_EQ(form(6).before_key, "<arg_key>");
  EXPECT_EQ(form(7).begin, "<|tool_calls_begin|>");
  EXPECT_EQ(form(7).end, "<|tool_calls_end|>");
  EXPECT_EQ(form(9).name, "tool_name");
}

TEST(CallForm, ThereIsNoneOfTemplatesThatPrintNoCallsOrNoneThatCanBeRead) {
  for (const char* answer :
       {"{{ m.content }}",                    // no calls
        "{{ m.tool_calls }}{{ m.content }}",  // as Python has them
        "{{ raise_exception('no') }}",        // nothing
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{{ m.content }}",  // no arguments
        // A word begins them, as it may any text.
        "{{ m.content }}{% for c in m.tool_calls or [] %}call {{ c.function.name }} with {{ "
        "c.function.arguments | tojson }}{% endfor %}",
        // Texts in quotes.
        "{{ m.content }}{% for c in m.tool_calls or [] %}<py>{{ c.function.name }}({% for k, v in "
        "c.function.arguments | items %}{{ k }}=\"{{ v }}\",{% endfor %})</py>{% endfor %}"})
    EXPECT_FALSE(call_form_of(parsed(answer), {})) << answer;
  // Told in the system's message only.
  const auto told = ChatTemplate::parse(
      R"({{ tools }}{{ '<tool_call>\n{"name": <name>, "arguments": <json>}\n</tool_call>' }}{{ messages[0].content }})");
  EXPECT_EQ(call_form_of(told, {}).value().end, "</tool_call>");
}

// What schemas call a text is one; of the rest models of some templates write constants as Python does.
TEST(CallForm, ParametersAreWhatTheirSchemasSay) {
  const CallForm form = call_form_of(parsed(kPublished[5].answer), {{"eos_token", "<|end|>"}}).value();
  const auto value = [&](const std::string& text, Json schema) {
    const Json tools = {
        {{"function", {{"name", "f"}, {"parameters", {{"properties", {{"x", std::move(schema)}}}}}}}}};
    const auto calls =
        read_calls(form, "<function=f>\n<parameter=x>\n" + text + "\n</parameter>\n</function>", tools);
    return calls.size() == 1 ? parse_json(calls[0].arguments)["x"] : Json("no call");
  };
  EXPECT_EQ(value("12345", {{"type", "string"}}), "12345");
  EXPECT_EQ(value("12345", {{"type", {"string", "null"}}}), "12345");
  EXPECT_EQ(value("12345", {{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}}), "12345");
  EXPECT_EQ(value("12345", {{"anyOf", {{{"type", "string"}}, {{"type", "integer"}}}}}), 12345);
  EXPECT_EQ(value("12345", {}), 12345);
  EXPECT_EQ(value("True", {{"type", "boolean"}}), true);
  EXPECT_EQ(value("None", {{"type", "integer"}}), nullptr);
  EXPECT_EQ(value("a word", {{"type", "integer"}}), "a word");
  EXPECT_EQ(value("line\n", {{"type", "string"}}), "line\n");
  EXPECT_TRUE(read_calls(form, "<function=f>\n<parameter=x>\nSan ", {}).empty()) << "it is cut off";
}

TEST(CallForm, WhatIsNoCallGivesNone) {
  for (const auto& [whose, answer] : kPublished) {
    const CallForm form = call_form_of(parsed(answer), {{"eos_token", "<|end|>"}}).value();
    for (const char* section :
         {"", " ", "{", "}", "[", "{}", "[{}]", "f", "f {", "{\"name\": 1}", "\1", "<", "f[ARGS]", ">",
          "<function=>", "<function=f>\n<parameter=a>", "f\n<arg_key>", "{\"name\": \"f\"} and more"})
      for (const ToolCall& call : read_calls(form, section, {})) {
        EXPECT_TRUE(parse_json(call.arguments).is_object()) << whose << ": " << section;
        EXPECT_NE(call.name, "") << whose << ": " << section;
      }
  }
}

}  // namespace
}  // namespace ark::text
