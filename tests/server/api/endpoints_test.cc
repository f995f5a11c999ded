// Endpoints behind the router, without HTTP.
#include "server/api/endpoints.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ark::api
