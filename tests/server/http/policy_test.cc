#include "server/http/policy.h"

#include <gtest/gtest.h>

#include "tests/server/http/status_thrown.h"

namespace ark::http {
namespace {

int status_by(const std::string& host, const std::string& origin = "",
              const Policy& policy = {.check_names = true}) {
  Head head;
  head.host = host;
  head.origin = origin;
  return status_thrown([&] { check_names(policy, head); });
}

TEST(Policy, OnlyTheLoopbacksNamesReachIt) {
  for (const char* host :
       {"localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80", "localhost:"})
    EXPECT_EQ(status_by(host), 200) << host;
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]",
                           "::1", "[::1", "0.0.0.0", "xlocalhost", "127.0.0.2", "localhost:abc",
                           "localhost:80:80", "[::1]80", "localhost:1234567"})
    EXPECT_EQ(status_by(host), 403) << host;
  EXPECT_EQ(status_by("evil.example", "", {}), 200);
  EXPECT_EQ(status_by("Ark.example:1", "", {.check_names = true, .hosts = {"ark.example"}}), 200);
}

TEST(Policy, PagesOfOthersMayNotUseIt) {
  for (const char* origin : {"http://localhost:3000", "https://127.0.0.1", "http://[::1]:5"})
    EXPECT_EQ(status_by("localhost", origin), 200) << origin;
  for (const char* origin :
       {"http://evil.example", "null", "localhost", "http://localhost.evil.example", "file://"})
    EXPECT_EQ(status_by("localhost", origin), 403) << origin;
  const Policy named = {.check_names = true, .hosts = {}, .origins = {"https://app.example"}};
  EXPECT_EQ(status_by("localhost", "https://app.example", named), 200);
  EXPECT_EQ(status_by("localhost", "https://app.example:8", named), 403);
}

TEST(Policy, OriginsAreWhatBrowsersSend) {
  for (const char* origin :
       {"https://app.example", "http://localhost:3000", "http://[::1]:5", "https://a.example:80",
        "http://[::80]", "app://obsidian.md", "chrome-extension://abcdefgh", "tauri://localhost"})
    EXPECT_TRUE(is_origin(origin)) << origin;
  for (const char* origin :
       {"", "app.example", "https://", "://app.example", "https://app.example/", "https://app.example/chat",
        "https://App.example", "HTTPS://app.example", "https://app.example:443", "http://app.example:80",
        "https://*.example", "https://me@app.example", "https://app.example ", "null",
        "https://b\u00FCro.example"})
    EXPECT_FALSE(is_origin(origin)) << origin;
}

TEST(Policy, OnlyNamedPagesMayReadAnswers) {
  Head head;
  head.origin = "https://app.example";
  EXPECT_TRUE(cors_headers({}, head).empty());
  const HeaderList headers = cors_headers({.origins = {"https://app.example"}}, head);
  ASSERT_FALSE(headers.empty());
  EXPECT_EQ(headers[0].second, "https://app.example");
  EXPECT_FALSE(cors_headers({.origins = {"*"}}, head).empty());
  head.origin = "https://app.example.evil";
  EXPECT_TRUE(cors_headers({.origins = {"https://app.example"}}, head).empty());
}

}  // namespace
}  // namespace ark::http
