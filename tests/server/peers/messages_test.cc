// Bytes between servers that share pages: what is written is read, and nothing else.
#include "server/peers/messages.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ark::peers {
namespace {

constexpr PageShape kShape{64, 4, 32, 50};

TEST(PeerMessages, QuestionsComeBack) {
  const Question question{true, 2, {1, -2, 3}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  const std::string blob = to_blob(question);
  EXPECT_LE(blob.size(), most_question_bytes(kShape));
  const Question got = question_of(blob, kShape);
  EXPECT_EQ(got.computes, question.computes);
  EXPECT_EQ(got.first, question.first);
  EXPECT_EQ(got.scope, question.scope);
  EXPECT_EQ(got.tokens, question.tokens);
  for (std::size_t size = 0; size < blob.size(); ++size)
    EXPECT_THROW(question_of(blob.substr(0, size), kShape), Error) << size;
  EXPECT_THROW(question_of(blob + '\0', kShape), Error);
}

TEST(PeerMessages, QuestionsThatNoSequenceHasAreRefused) {
  const auto refused = [](const Question& question) {
    EXPECT_THROW(question_of(to_blob(question), kShape), Error);
  };
  const std::vector<int32_t> tokens(8, 1);
  EXPECT_NO_THROW(question_of(to_blob({false, 1, {}, tokens}), kShape));
  refused({false, 2, {}, tokens});  // a page behind the last
  refused({false, 0xffffffff, {}, tokens});
  refused({false, 0, {}, {}});
  refused({false, 0, {}, {1, 2, 3}});                    // no whole page
  refused({false, 0, {}, std::vector<int32_t>(36, 1)});  // longer than a sequence
  refused({false, 0, {}, {1, 2, 3, 50}});
  refused({false, 0, {}, {1, 2, 3, -1}});
  refused({false, 0, std::vector<int32_t>(9, 1), tokens});
  std::string flags = to_blob({false, 1, {}, tokens});
  flags[0] = 2;
  EXPECT_THROW(question_of(flags, kShape), Error);
}

TEST(PeerMessages, APageIsItsBytesAndNoOthers) {
  std::string page;
  for (int i = 0; i < 64; ++i) page.push_back(static_cast<char>(i * i));
  std::string message = page;
  seal_page(message, 7, kShape);
  EXPECT_EQ(message.size(), 64 + kPageTail);
  std::string opened = message;
  open_page(opened, 7, kShape);
  EXPECT_EQ(opened, page);
  const auto refused = [](std::string bytes, uint32_t number = 7) {
    EXPECT_THROW(open_page(bytes, number, kShape), Error);
  };
  refused(message, 6);
  refused(message + "x");
  for (std::size_t size = 0; size < message.size(); ++size) refused(message.substr(0, size));
}

}  // namespace
}  // namespace ark::peers
