#include "base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace ark {
namespace {

TEST(Random, WordsAndBytesAreNew) {
  std::set<uint64_t> words;
  std::set<std::string> texts;
  uint64_t ones = 0, zeros = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t word = random_word();
    EXPECT_TRUE(words.insert(word).second);
    EXPECT_TRUE(texts.insert(random_bytes(16)).second);
    ones |= word, zeros |= ~word;
  }
  EXPECT_EQ(ones & zeros, ~uint64_t{0});  // every bit is used
  EXPECT_EQ(random_bytes(256).size(), 256u);
  EXPECT_EQ(random_bytes(0), "");
}

}  // namespace
}  // namespace ark
