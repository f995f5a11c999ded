#include "server/http/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace ark::http {
namespace {

std::filesystem::path file_with(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "ark-keys";
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeys, NoneMeansOpen) { EXPECT_TRUE(ApiKeys().allow("")); }

TEST(ApiKeys, OnlyWholeKeysOpen) {
  const ApiKeys keys = ApiKeys::load(file_with("abc\n \t\n  long key \r\n"));
  for (const char* good : {"Bearer abc", "bearer abc", "BEARER long key"})
    EXPECT_TRUE(keys.allow(good)) << good;
  for (const char* bad : {"", "abc", "Bearer", "Bearer ", "Bearer a", "Bearer abcabc", "Bearer abd",
                          "Basic abc", "Bearer  abc", "Bearer ABC"})
    EXPECT_FALSE(keys.allow(bad)) << bad;
  EXPECT_FALSE(keys.allow(std::string_view("Bearer abc\0", 11)));
}

TEST(ApiKeys, FilesWithoutAKeyAreRefused) {
  EXPECT_THROW(ApiKeys::load(file_with("\n \n")), Error);
  EXPECT_THROW(ApiKeys::load("/nowhere/keys"), Error);
  EXPECT_THROW(ApiKeys::load(testing::TempDir()), Error);
  EXPECT_THROW(ApiKeys::load(file_with(std::string(5000, 'k'))), Error);
}

}  // namespace
}  // namespace ark::http
