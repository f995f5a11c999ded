#include "server/http/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/server/http/status_thrown.h"

namespace ark::http {
namespace {

std::filesystem::path file_with(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "ark-keys";
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeys, NoneMeansOpen) { EXPECT_TRUE(ApiKeys().empty()); }

TEST(ApiKeys, OnlyWholeKeysOpen) {
  const ApiKeys keys =
      ApiKeys::load(file_with("abc\n \t\n# none\n  ann long-key \r\nbob:sk-1:2 rpm=5 tpm=7\n"));
  for (const auto& [good, name] : {std::pair("Bearer abc", "line-1"),
                                   {"bearer abc", "line-1"},
                                   {"BEARER long-key", "ann"},
                                   {"Bearer   abc", "line-1"},
                                   {"Bearer sk-1:2", "bob"}}) {
    ASSERT_NE(keys.find(good), nullptr) << good;
    EXPECT_EQ(keys.find(good)->name, name);
  }
  EXPECT_EQ(keys.find("Bearer sk-1:2")->limits.requests, 5);
  EXPECT_EQ(keys.find("Bearer sk-1:2")->limits.tokens, 7);
  for (const char* bad :
       {"", "abc", "Bearer", "Bearer ", "Bearer a", "Bearer abcabc", "Bearer abd", "Basic abc", "Bearer   ",
        "Bearer ABC", "Bearer ann", "Bearer bob:sk-1:2", "Bearer #", "Bearer none"})
    EXPECT_EQ(keys.find(bad), nullptr) << bad;
  EXPECT_EQ(keys.find(std::string_view("Bearer abc\0", 11)), nullptr);
}

TEST(ApiKeys, AMarkOfUtf8AtTheFilesBeginningIsNoPartOfIt) {
  const ApiKeys keys =
      ApiKeys::load(file_with("\xEF\xBB\xBF"
                              "abc\nann def\n"));
  EXPECT_NE(keys.find("Bearer abc"), nullptr);
  EXPECT_NO_THROW(ApiKeys::load(file_with("\xEF\xBB\xBF# keys of ours\nann def\n")));
}

int status_of(KeyUsage& usage, const KeyLimits& limits, KeyUsage::Clock::time_point now,
              std::string* wait = nullptr) {
  HttpError error(200, "");
  const int status = status_thrown([&] { usage.begin("k", limits, now); }, &error);
  if (wait) *wait = error.headers.at(0).second;
  return status;
}

TEST(ApiKeys, LimitsComeBackOverAMinute) {
  using std::chrono::seconds;
  const KeyUsage::Clock::time_point start = KeyUsage::Clock::now();
  std::string wait;
  KeyUsage usage;
  const KeyLimits two = {.requests = 2};
  EXPECT_EQ(status_of(usage, two, start), 200);
  EXPECT_EQ(status_of(usage, two, start), 200);
  EXPECT_EQ(status_of(usage, two, start, &wait), 429);
  EXPECT_EQ(wait, "30");
  EXPECT_EQ(status_of(usage, two, start + seconds(29)), 429);
  EXPECT_EQ(status_of(usage, two, start + seconds(31)), 200);
  KeyUsage spent;
  const KeyLimits tokens = {.tokens = 60};
  EXPECT_EQ(status_of(spent, tokens, start), 200);
  spent.end(90);  // only the answer tells: what is too much is paid for later
  EXPECT_EQ(status_of(spent, tokens, start + seconds(1), &wait), 429);
  EXPECT_EQ(wait, "30");
  EXPECT_EQ(status_of(spent, tokens, start + seconds(32)), 200);
  KeyUsage one;
  EXPECT_EQ(status_of(one, {.concurrency = 1}, start), 200);
  EXPECT_EQ(status_of(one, {.concurrency = 1}, start), 429);
  one.end(0);
  EXPECT_EQ(status_of(one, {.concurrency = 1}, start), 200);
}

TEST(ApiKeys, AReloadForgetsNothing) {
  const ApiKeys before = ApiKeys::load(file_with("a:x rpm=1\n"));
  ApiKeys after = ApiKeys::load(file_with("b:x rpm=1\nnew\n"));
  after.take_usage_from(before);
  EXPECT_EQ(after.find("Bearer x")->usage, before.find("Bearer x")->usage);
}

TEST(ApiKeys, FilesWithoutAKeyAreRefused) {
  EXPECT_THROW(ApiKeys::load(file_with("\n \n")), Error);
  EXPECT_THROW(ApiKeys::load("/nowhere/keys"), Error);
  EXPECT_THROW(ApiKeys::load(testing::TempDir()), Error);
  EXPECT_THROW(ApiKeys::load("/dev/zero"), Error);  // was read without end
  EXPECT_THROW(ApiKeys::load(file_with(std::string(5 << 20, '\n') + "key")), Error);
  EXPECT_THROW(ApiKeys::load(file_with(std::string(5000, 'k'))), Error);
  for (const char* line : {"a:", "a b c", "a rpm=x", "k rpm=0", "k rpm=-1", "k rpm=5 rps=1", "a k rpm="})
    EXPECT_THROW(ApiKeys::load(file_with(line)), Error) << line;
}

}  // namespace
}  // namespace ark::http
