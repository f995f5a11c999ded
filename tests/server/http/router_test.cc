#include "server/http/router.h"

#include <gtest/gtest.h>

#include <utility>

namespace ark::http {
namespace {

Router small_router() {
  Router router;
  const auto nothing = [](Request&) { return Response(); };
  router.add({"GET", "/health", nothing, true});
  router.add({"GET", "/v1/models", nothing});
  router.add({"GET", "/v1/models/{model}", nothing});
  router.add({"POST", "/v1/completions", nothing});
  router.add({"POST", "/health", nothing});
  return router;
}

TEST(Router, PathsWithoutHolesMatchThemselvesOnly) {
  const Router router = small_router();
  const Router::Match found = router.find("GET", "/v1/models");
  ASSERT_NE(found.route, nullptr);
  EXPECT_EQ(found.route->path, "/v1/models");
  EXPECT_TRUE(found.captures.empty());
  for (const char* path : {"", "/", "/v1", "/v1/model", "/v1/completions/", "/V1/models", "/health2"}) {
    EXPECT_EQ(router.find("GET", path).route, nullptr) << path;
    EXPECT_EQ(router.find("GET", path).allowed, "") << path;
  }
}

TEST(Router, AnotherBaseUrlIsSeenByItsEnd) {
  Router router = small_router();
  router.add({"POST", "/v1/chat/completions", [](Request&) { return Response(); }});
  for (const auto& [asked, meant] : {std::pair("/models", "/v1/models"),
                                     {"//v1/models", "/v1/models"},
                                     {"/v1/models//", "/v1/models"},
                                     {"/v1/v1/chat/completions", "/v1/chat/completions"},
                                     {"/completions", "/v1/completions"},
                                     {"/api/health", "/health"},
                                     {"/v1", ""},
                                     {"/", ""},
                                     {"/v1/embeddings", ""},
                                     {"/xmodels", ""}})
    EXPECT_EQ(router.meant_by(asked), meant) << asked;
}

TEST(Router, HolesTakeTheRestWithItsSlashes) {
  const Router router = small_router();
  const Router::Match found = router.find("GET", "/v1/models/org/name {x}");
  ASSERT_NE(found.route, nullptr);
  EXPECT_EQ(found.captures, std::vector<std::string>{"org/name {x}"});
  EXPECT_EQ(router.find("GET", "/v1/models/").route, nullptr);
}

TEST(Router, GetAnswersHeadAndOtherMethodsAreTold) {
  const Router router = small_router();
  EXPECT_NE(router.find("HEAD", "/v1/models").route, nullptr);
  const Router::Match wrong = router.find("PUT", "/health");
  EXPECT_EQ(wrong.route, nullptr);
  EXPECT_EQ(wrong.allowed, "GET, HEAD, POST");
  EXPECT_EQ(router.find("HEAD", "/v1/completions").route, nullptr);
  EXPECT_EQ(router.find("GET", "/v1/completions").allowed, "POST");
  EXPECT_EQ(router.find("POST", "/health").route->method, "POST");
}

}  // namespace
}  // namespace ark::http
