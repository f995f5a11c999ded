// Grammars that are kept, shared, and refused where they take too much.
#include "server/session/grammars.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "server/json.h"
#include "server/text/grammar/grammar.h"
#include "server/text/tokenizer.h"
#include "tests/fixtures.h"

namespace ark::session {
namespace {

text::Tokenizer letters() {
  return text::Tokenizer(parse_json(
      R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"}, "decoder": {"type": "Fuse"}})"));
}

// As many of the letter as `most`.
std::string pattern_of(char letter, int most) {
  return std::string(1, letter) + "{1," + std::to_string(most) + "}";
}

TEST(Grammars, EqualKeysShareOneAndTextsGoTheirOwnWays) {
  const text::Tokenizer tokenizer = letters();
  Grammars grammars(&tokenizer);
  int compiled = 0;
  const auto compile = [&] { return ++compiled, text::Grammar::of_regex("ab|ac"); };
  const auto start = grammars.start("key", compile);
  const auto one = start(), two = grammars.start("key", compile)();
  EXPECT_EQ(compiled, 1);
  std::array<uint32_t, 1> mask{};
  one->allowed(mask);
  EXPECT_EQ(mask[0], 0b001u);
  one->accept(0);
  one->allowed(mask);
  EXPECT_EQ(mask[0], 0b110u);
  EXPECT_FALSE(one->may_end());
  one->accept(2);
  EXPECT_TRUE(one->may_end());
  two->allowed(mask);
  EXPECT_EQ(mask[0], 0b001u) << "the other one has not begun";
  EXPECT_THROW(two->accept(1), Error);
}

TEST(Grammars, WithoutATokenizerThereAreNone) {
  Grammars grammars(nullptr);
  EXPECT_THROW(grammars.start("key", [] { return text::Grammar::of_regex("a"); }), Error);
}

TEST(Grammars, ThoseInUseAreBoundedAndOthersMakeRoom) {
  const text::Tokenizer tokenizer = letters();
  const std::size_t each = text::Grammar::of_regex(pattern_of('a', 100))->bytes();
  Grammars grammars(&tokenizer, 3 * each + each / 2);
  const auto start = [&](char letter) {
    return grammars.start(std::string(1, letter),
                          [&] { return text::Grammar::of_regex(pattern_of(letter, 100)); });
  };
  std::vector<schedule::StartConstraint> in_use;
  for (const char letter : {'a', 'b', 'c'}) in_use.push_back(start(letter));
  try {
    start('d');
    ADD_FAILURE() << "there is no room for a fourth";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kExhausted) << error.what();
  }
  EXPECT_NO_THROW(start('b')) << "it is there";
  in_use.pop_back();
  EXPECT_NO_THROW(start('d')) << "what nobody uses is forgotten";
}

// As long as anything behind it is in use, the allocator keeps what was freed; sanitizers keep all of it.
TEST(Grammars, WhatCompilingTookIsGivenBack) {
  if (test::is_sanitized()) GTEST_SKIP() << "sanitizers keep what is freed; the release build runs it";
  const text::Tokenizer tokenizer = letters();
  std::vector<std::unique_ptr<char[]>> in_use;
  const auto take = [&] {
    std::vector<std::unique_ptr<char[]>> pieces(40'000);
    for (auto& piece : pieces) {
      piece = std::make_unique_for_overwrite<char[]>(4000);
      std::memset(piece.get(), 1, 4000);
    }
    in_use.push_back(std::move(pieces.back()));
  };
  const std::size_t before = resident_bytes();
  take();
  ASSERT_GT(resident_bytes(), before + (std::size_t{100} << 20)) << "nothing would be left to give back";
  Grammars grammars(&tokenizer);
  for (const bool fits : {true, false}) {
    try {
      grammars.start(fits ? "a" : "b", [&] {
        take();
        return text::Grammar::of_regex(fits ? "a" : "(");
      });
      EXPECT_TRUE(fits);
    } catch (const Error&) {
      EXPECT_FALSE(fits);
    }
    EXPECT_LT(resident_bytes(), before + FreedMemory::kMostGrown) << fits;
  }
}

}  // namespace
}  // namespace ark::session
