// Endpoints behind the router, without HTTP.
#include "server/api/endpoints.h"

#include <gtest/gtest.h>

#include "server/json.h"
#include "server/text/model_text.h"
#include "tests/server/http/status_thrown.h"
#include "tests/server/schedule/requests.h"

namespace ark::api {
namespace {

// A model whose chat template does not end before its budget does.
ServedModel endless() {
  auto text = std::make_shared<text::ModelText>();
  text->tokenizer.emplace(
      Json::parse(R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})"));
  text->chat_template = text::ChatTemplate::parse(
      "{% for i in range(90000) %}{% for k in range(90000) %}{{ i * k }}{% endfor %}{% endfor %}");
  return {.name = "fake",
          .runner = std::make_shared<test::FakeRunner>(test::small_limits()),
          .text = std::move(text)};
}

TEST(Endpoints, WorkOnTextEndsWhenItsClientIsGone) {
  Service service;
  service.add(endless(), {});
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

}  // namespace
}  // namespace ark::api
