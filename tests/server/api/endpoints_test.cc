// Endpoints behind the router, without HTTP.
#include "server/api/endpoints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/json.h"
#include "server/text/model_text.h"
#include "tests/server/http/status_thrown.h"
#include "tests/server/schedule/requests.h"

namespace ark::api {
namespace {

ServedModel with_template(const char* source) {
  auto text = std::make_shared<text::ModelText>();
  text->tokenizer.emplace(
      Json::parse(R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})"));
  text->chat_template = text::ChatTemplate::parse(source);
  return {.name = "fake",
          .runner = std::make_shared<test::FakeRunner>(test::small_limits()),
          .text = std::move(text)};
}

TEST(Endpoints, WorkOnTextEndsWhenItsClientIsGone) {
  Service service;
  service.add(with_template("{% for i in range(90000) %}{% for k in range(90000) %}{{ i * k }}{% endfor %}"
                            "{% endfor %}"),  // does not end before its budget does
              {});
  const http::Router router = make_router(service);
  int asked = 0;
  for (const char* path : {"/apply-template", "/v1/chat/completions", "/tokenize"}) {
    http::Request request;
    request.body = R"({"messages": [{"role": "user", "content": "a"}]})";
    request.client_gone = [&] { return ++asked > 3; };
    http::HttpError error(200, "");
    asked = 0;
    EXPECT_EQ(http::status_thrown([&] { router.find("POST", path).route->handler(request); }, &error), 400);
    EXPECT_NE(error.message.find("was stopped: nobody waits for it"), std::string::npos) << error.message;
    EXPECT_EQ(asked, 4);
  }
}

// The field that /apply-template refuses, "" for none.
std::string lost_field(const char* source, const std::string& messages) {
  Service service;
  service.add(with_template(source), {});
  http::Request request;
  request.body = R"({"messages": )" + messages + "}";
  http::HttpError error(200, "");
  const http::Router router = make_router(service);
  const int status =
      http::status_thrown([&] { router.find("POST", "/apply-template").route->handler(request); }, &error);
  EXPECT_EQ(status, error.param.empty() ? 200 : 400) << error.message;
  return error.param;
}

TEST(Endpoints, WhatTheTemplateDoesNotPrintOfAMessageIsRefusedByName) {
  const char* plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  const char* printing =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.function_call }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}\n{% endfor %}";
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"tool_calls", R"([{"function": {"name": "f", "arguments": "{}"}}])"},
           {"function_call", R"({"name": "f", "arguments": "{}"})"}}) {
    SCOPED_TRACE(field);
    const auto chat = [&, &field = field](const std::string& said) {
      return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", ")" + field +
             "\": " + said + R"(}, {"role": "user", "content": "c"}])";
    };
    EXPECT_EQ(lost_field(plain, chat(value)), "messages[1]." + field);
    EXPECT_EQ(lost_field(plain, chat("null")), "");
    EXPECT_EQ(lost_field(printing, chat(value)), "");
  }
  for (const char* more : {R"("name": "Ann")", R"("reasoning_content": "hm")"})
    EXPECT_EQ(lost_field(plain, R"([{"role": "assistant", "content": "b", )" + std::string(more) + "}]"), "")
        << more;
  EXPECT_EQ(lost_field(plain, R"([{"role": "tool", "name": "f", "content": "a"}])"), "");
}

TEST(Endpoints, PartsOfAMessageAreItsText) {
  Service service;
  service.add(with_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), {});
  const http::Router router = make_router(service);
  const auto said = [&](const std::string& members) {
    http::Request request;
    request.body = R"({"messages": [{"role": "assistant", )" + members + "}]}";
    return Json::parse(router.find("POST", "/apply-template").route->handler(request).body)["prompt"];
  };
  const auto chat = [&](const std::string& part) {
    return said(R"("content": [{"type": "text", "text": "Oh"}, )" + part + "]");
  };
  EXPECT_EQ(said(R"("content": null, "refusal": "I will not")"), "assistant: I will not\n");
  EXPECT_EQ(said(R"("refusal": "I will not")"), "assistant: I will not\n");
  EXPECT_EQ(said(R"("content": "Yes", "refusal": null)"), "assistant: Yes\n");
  EXPECT_EQ(http::status_thrown([&] { said(R"("content": null, "refusal": 5)"); }), 400);
  EXPECT_EQ(chat(R"({"type": "text", "text": "no"})"), "assistant: Oh\nno\n");
  EXPECT_EQ(chat(R"({"type": "refusal", "refusal": "no"})"), "assistant: Oh\nno\n");
  for (const auto& [part, member] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type": "refusal", "text": "no"})", "refusal"}, {R"({"type": "image_url"})", "type"}}) {
    http::HttpError error(200, "");
    EXPECT_EQ(http::status_thrown([&, &part = part] { chat(part); }, &error), 400);
    EXPECT_EQ(error.param, "messages[0].content[1]." + std::string(member));
  }
}

TEST(Endpoints, MoreSequencesThanMayWaitAreRefusedForGood) {
  Service service;
  service.add(with_template("a"), {.max_queue = 2});
  const http::Router router = make_router(service);
  for (const auto& [path, input, field] :
       {std::tuple("/v1/completions", R"("prompt": [1])", "prompt"),
        std::tuple("/v1/chat/completions", R"("messages": [{"role": "user", "content": "a"}])", "n")}) {
    http::Request request;
    request.client_gone = [] { return false; };
    request.body = std::string("{") + input + R"(, "n": 100, "max_tokens": 2})";
    http::HttpError error(200, "");
    const http::Route* route = router.find("POST", path).route;
    EXPECT_EQ(http::status_thrown([&] { route->handler(request); }, &error), 400);
    EXPECT_EQ(error.param, field);
  }
}

// A model all of whose words are calls, of "f" with a number: of each `$` in `call`.
ServedModel of_calls(
    const char* source,
    const std::string& call = R"(<tool_call>{"name": "f", "arguments": {"x": $}}</tool_call>)") {
  ServedModel model = with_template(source);
  auto text = std::make_shared<text::ModelText>();
  Json words = Json::object();
  const auto word = [&](int i) {
    const std::size_t at = call.find('$');
    return call.substr(0, at) + std::to_string(i) + call.substr(at + 1);
  };
  for (int i = 0; i < test::small_limits().vocabulary; ++i) words[word(i)] = i;
  text->tokenizer.emplace(
      Json{{"model", {{"type", "WordLevel"}, {"vocab", std::move(words)}, {"unk_token", word(0)}}}});
  text->chat_template = text::ChatTemplate::parse(source);
  text->call_form = text::call_form_of(*text->chat_template, {});
  model.text = std::move(text);
  return model;
}

// Without a mark at their end they are read when the answer is over.
TEST(Endpoints, CallsOfToolsAreReadInTheTemplatesOwnForm) {
  const std::string before = "{{ tools }}{% for m in messages %}",
                    after = "{{ m.content or '' }}{% endfor %}";
  for (
      const auto& [printed, call] : std::vector<std::pair<std::string, std::string>>{
          {R"({% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %})",
           R"({"name": "f", "parameters": {"x": $}})"},
          {R"({% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %})",
           R"([TOOL_CALLS]f[ARGS]{"x": $})"},
          {R"({% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + '<arguments>' + c.function.arguments + '</call>' }}{% endfor %})",
           R"(<call>f<arguments>{"x": $}</call>)"},
          {R"({% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}<key>{{ k }}</key><value>{{ v }}</value>{% endfor %}</tool_call>{% endfor %})",
           "<tool_call>f<key>x</key><value>$</value></tool_call>"}}) {
    Service service;
    service.add(of_calls((before + printed + after).c_str(), call), {});
    const http::Router router = make_router(service);
    for (const std::size_t most : {3, 1}) {
      http::Request request;
      request.client_gone = [] { return false; };
      request.body =
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
          "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "user", "content": "b"}], "max_tokens": 3,
          "temperature": 0, "tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": )" +
          std::string(most == 1 ? "false}" : "true}");
      const http::Response answer = router.find("POST", "/v1/chat/completions").route->handler(request);
      const Json message = Json::parse(answer.body)["choices"][0]["message"];
      EXPECT_TRUE(message["content"].is_null()) << answer.body;
      ASSERT_EQ(message["tool_calls"].size(), most) << answer.body;
      for (const Json& one : message["tool_calls"]) {
        EXPECT_EQ(one["function"]["name"], "f");
        EXPECT_TRUE(Json::parse(one["function"]["arguments"].get<std::string>())["x"].is_number()) << one;
      }
    }
  }
}

// Templates that walk through arguments have them as values, whose numbers are of 64 bits.
TEST(Endpoints, ArgumentsOfEarlierCallsStayTheClientsTextWhereTheTemplatePrintsOne) {
  Service service;
  service.add(
      of_calls(
          R"({{ tools or '' }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + '<arguments>' + c.function.arguments + '</call>' }}{% endfor %}{{ m.content or '' }}{% endfor %})"),
      {});
  const http::Router router = make_router(service);
  for (const auto& [arguments, printed] : std::vector<std::pair<Json, std::string>>{
           {R"({ "id": 98765432109876543210 })", R"({ "id": 98765432109876543210 })"},
           {"", "{}"},
           {{{"x", 1}}, R"({"x":1})"}}) {
    const Json call = {{"id", "1"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    http::Request request;
    request.body = to_text(
        {{"messages", {{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}}}}});
    const http::Response answer = router.find("POST", "/apply-template").route->handler(request);
    EXPECT_EQ(Json::parse(answer.body)["prompt"], "<call>f<arguments>" + printed + "</call>");
  }
}

// As DeepSeek's first templates. Whoever goes on with such a message begins its text.
TEST(Endpoints, EmptyTextsBesideCallsAreNullWhereTheTemplatePrintsCallsOnlyThen) {
  Service service;
  service.add(
      of_calls(
          R"({{ tools or '' }}{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}{{ '<call>' + c.function.name + '<arguments>' + c.function.arguments + '</call>' }}{% endfor %}{% else %}{{ '(' + m.content + ')' }}{% endif %}{% endfor %})"),
      {});
  const http::Router router = make_router(service);
  const auto prompt = [&](const std::string& more) {
    http::Request request;
    request.body = R"({"messages": [{"role": "user", "content": ""}, {"role": "assistant", )" + more + "}]}";
    return Json::parse(router.find("POST", "/apply-template").route->handler(request).body)["prompt"];
  };
  const std::string calls = R"("tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}])";
  for (const char* empty : {"", R"("content": null, )", R"("content": "", )", R"("content": [], )"})
    EXPECT_EQ(prompt(empty + calls), "()<call>f<arguments>{}</call>") << empty;
  EXPECT_EQ(prompt(R"("content": null, "tool_calls": [])"), "()()");
  EXPECT_EQ(prompt(R"("content": null, "prefix": true)"), "()(");
  http::HttpError error(200, "");
  for (const std::string& lost : {R"("content": "text", )" + calls, calls + R"(, "prefix": true)"})
    EXPECT_EQ(http::status_thrown([&] { prompt(lost); }, &error), 400) << lost;
  EXPECT_EQ(error.param, "messages[1].tool_calls");
}

TEST(Endpoints, CallsOfToolsAreReadWhereTheTemplateAsksForThem) {
  Service service;
  service.add(of_calls(R"({{ tools }}<tool_call>{"arguments": {}}{{ messages[0].content }})"), {});
  const http::Router router = make_router(service);
  const auto chat = [&](const std::string& more) {
    http::Request request;
    request.client_gone = [] { return false; };
    request.body = R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0, )" +
                   more + "}";
    return router.find("POST", "/v1/chat/completions").route->handler(request);
  };
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  for (const auto& [field, calls, reason] : std::vector<std::tuple<std::string, std::size_t, std::string>>{
           {R"("parallel_tool_calls": true, )", 3, "length"},
           {R"("parallel_tool_calls": false, )", 1, "tool_calls"}}) {
    const Json choice = Json::parse(chat(field + tools).body)["choices"][0];
    ASSERT_EQ(choice["message"]["tool_calls"].size(), calls);
    EXPECT_TRUE(choice["message"]["content"].is_null());
    EXPECT_EQ(choice["finish_reason"], reason);
    std::string events;
    chat(field + R"("stream": true, )" + tools).stream([&](std::string_view piece) {
      events += piece;
      return true;
    });
    Json streamed = Json::array(), last;
    for (std::size_t at = 0; (at = events.find("data: {", at)) != events.npos; ++at) {
      last = Json::parse(events.substr(at + 6, events.find('\n', at) - at - 6))["choices"][0];
      const Json& delta = last["delta"];
      EXPECT_TRUE(!delta.contains("content") || delta["content"] == "") << delta;
      if (delta.contains("tool_calls"))
        for (const Json& call : delta["tool_calls"]) {
          EXPECT_EQ(call["index"], streamed.size());
          streamed.push_back(call["function"]);
        }
    }
    EXPECT_EQ(last["finish_reason"], reason);
    ASSERT_EQ(streamed.size(), calls);
    for (std::size_t i = 0; i < calls; ++i) {
      const Json& call = choice["message"]["tool_calls"][i];
      EXPECT_EQ(streamed[i], call["function"]);
      EXPECT_LE(call["id"].get<std::string>().size(), 40u);  // OpenAI's limit
    }
  }
  const Json plain = Json::parse(chat(R"("tool_choice": "none", )" + tools).body)["choices"][0]["message"];
  EXPECT_FALSE(plain.contains("tool_calls"));
  EXPECT_EQ(plain["content"].get<std::string>().find(R"(<tool_call>{"name")"), 0u);
  http::HttpError error(200, "");
  const auto named = [&](const std::string& name) {
    return R"("tool_choice": {"type": "function", "function": {"name": ")" + name + R"("}}, )" + tools;
  };
  EXPECT_EQ(http::status_thrown([&] { chat(named("g")); }, &error), 400);
  EXPECT_EQ(error.param, "tool_choice");
  EXPECT_EQ(http::status_thrown([&] { chat(R"("tool_choice": "required")"); }, &error), 400);
  EXPECT_EQ(error.param, "tool_choice");
  const Json one = Json::parse(chat(named("f")).body)["choices"][0];
  EXPECT_EQ(one["message"]["tool_calls"].size(), 1u) << "the named function is called once";
  EXPECT_EQ(one["finish_reason"], "tool_calls");
}

// The model calls nothing but f.
TEST(Endpoints, ToolsCanBeNarrowedForOneAnswer) {
  Service service;
  service.add(
      of_calls(
          R"({{ tools | map(attribute='function.name') | join }}<tool_call>{"arguments": {}}{{ messages[0].content }})"),
      {});
  const http::Router router = make_router(service);
  const auto tool = [](const char* name) {
    return Json{{"type", "function"}, {"function", {{"name", name}}}};
  };
  const auto post = [&](const char* path, const char* mode, Json allowed) {
    http::Request request;
    request.client_gone = [] { return false; };
    const Json choice = {{"type", "allowed_tools"},
                         {"allowed_tools", {{"mode", mode}, {"tools", std::move(allowed)}}}};
    request.body = to_text({{"messages", {{{"role", "user"}, {"content", "a"}}}},
                            {"max_tokens", 3},
                            {"temperature", 0},
                            {"tools", {tool("f"), tool("g"), tool("h")}},
                            {"tool_choice", choice}});
    return Json::parse(router.find("POST", path).route->handler(request).body);
  };
  const auto message = [&](const char* mode, Json allowed) {
    return post("/v1/chat/completions", mode, std::move(allowed))["choices"][0]["message"];
  };
  EXPECT_EQ(post("/apply-template", "auto", {tool("h"), tool("f")})["prompt"].get<std::string>().find("fh<"),
            0u);
  EXPECT_EQ(message("auto", {tool("f"), tool("g")})["tool_calls"].size(), 3u);
  const Json others = message("auto", {tool("g"), tool("h")});
  EXPECT_FALSE(others.contains("tool_calls"));
  EXPECT_EQ(others["content"].get<std::string>().find("<tool_call>"), 0u) << "what may not be called is text";
  const Json forced = message("required", {tool("f"), tool("g")})["tool_calls"];
  ASSERT_EQ(forced.size(), 3u) << "of several there may be several";
  EXPECT_EQ(forced[0]["function"]["name"], "f");

  http::HttpError error(200, "");
  for (const auto& [mode, allowed, param] : std::vector<std::tuple<const char*, Json, const char*>>{
           {"auto", {tool("f"), tool("x"), tool("y")}, "tool_choice"},
           {"none", {tool("f")}, "tool_choice.allowed_tools.mode"},
           {"auto", Json::array(), "tool_choice.allowed_tools.tools"},
           {"auto", Json::array({tool("f"), 1}), "tool_choice.allowed_tools.tools[1]"},
           {"auto", {tool("f"), {{"type", "function"}}}, "tool_choice.allowed_tools.tools[1].function"}}) {
    EXPECT_EQ(http::status_thrown([&, &m = mode, &a = allowed] { message(m, a); }, &error), 400);
    EXPECT_EQ(error.param, param) << error.message;
    if (allowed.size() == 3) {
      EXPECT_NE(error.message.find("names x, y, which are no functions"), error.message.npos)
          << error.message;
    }
  }
}

TEST(Endpoints, CallsCanBeForcedWhateverTheTemplateAsksFor) {
  Service service;
  service.add(of_calls("{{ tools }}{{ messages[0].content }}"), {});
  const http::Router router = make_router(service);
  const auto chat = [&](const std::string& choice) {
    http::Request request;
    request.client_gone = [] { return false; };
    request.body =
        R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "tool_choice": ")" + choice +
        R"(", "tools": [{"type": "function", "function": {"name": "f", "parameters": )"
        R"({"properties": {"x": {"type": "integer", "minimum": 7, "maximum": 8}}, "required": ["x"]}}}]})";
    return router.find("POST", "/v1/chat/completions").route->handler(request);
  };
  http::HttpError error(200, "");
  EXPECT_EQ(http::status_thrown([&] { chat("auto"); }, &error), 400);
  EXPECT_EQ(error.param, "tools");
  const Json calls = Json::parse(chat("required").body)["choices"][0]["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 3u);
  for (const Json& call : calls) {
    const Json x = Json::parse(call["function"]["arguments"].get<std::string>())["x"];
    EXPECT_TRUE(x == 7 || x == 8) << x;
  }
}

// A render takes some third of what a request may, and each role that not every template prints one more.
TEST(Endpoints, ARequestRendersWithinOneBudget) {
  std::string slow = "{% for i in range(80000) %}";
  for (int i = 0; i < 40; ++i) slow += "{% if i %}{% endif %}";
  slow += "{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  EXPECT_EQ(
      lost_field(slow.c_str(), R"([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])"),
      "");
  EXPECT_EQ(
      lost_field(slow.c_str(), R"([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
                                {"role": "tool", "content": "c"}, {"role": "user", "content": "d"}])"),
      "messages");
}

TEST(Endpoints, AClientThatLeavesIsNoBadRequestAndWhatWasComputedIsTold) {
  ServedModel model = of_calls("");
  static_cast<test::FakeRunner&>(*model.runner).allow(2);  // so it is not done before anybody asks
  Service service;
  service.add(std::move(model), {});
  const http::Router router = make_router(service);
  http::Request request;
  request.body = R"({"prompt": [1, 2, 3], "max_tokens": 40})";
  request.client_gone = [] { return true; };
  EXPECT_EQ(http::status_thrown([&] { router.find("POST", "/v1/completions").route->handler(request); }),
            http::kClientClosedRequest);
  EXPECT_NE(
      std::ranges::find(*request.log, std::pair<std::string_view, LogValue>("prompt_tokens", int64_t{3})),
      request.log->end());
}

}  // namespace
}  // namespace ark::api
