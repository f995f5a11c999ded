#include "server/peers/messages.h"

#include <algorithm>
#include <cstring>

#include "dma/blob.h"

namespace ark::peers {
namespace {

constexpr std::size_t kMostScope = 8;  // words
constexpr uint32_t kComputes = 1;

std::string_view bytes_of(const std::vector<int32_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int32_t)};
}

std::vector<int32_t> words_of(std::string_view bytes, const dma::BlobReader& blob) {
  if (bytes.size() % sizeof(int32_t)) blob.malformed("has part of a word");
  std::vector<int32_t> words(bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

std::string to_blob(const Question& question) {
  return dma::BlobWriter()
      .number(question.computes ? kComputes : 0u)
      .number(question.first)
      .text(bytes_of(question.scope))
      .text(bytes_of(question.tokens))
      .take();
}

Question question_of(std::string_view bytes, const PageShape& shape) {
  dma::BlobReader blob(bytes, "a question for pages");
  Question question;
  const auto flags = blob.number<uint32_t>();
  question.computes = flags == kComputes;
  question.first = blob.number<uint32_t>();
  question.scope = words_of(blob.text(), blob);
  question.tokens = words_of(blob.text(), blob);
  blob.end();
  const std::size_t pages = question.tokens.size() / static_cast<std::size_t>(shape.tokens);
  if (flags > kComputes) blob.malformed("has unknown flags");
  if (question.scope.size() > kMostScope) blob.malformed("has a scope too long");
  if (pages * static_cast<std::size_t>(shape.tokens) != question.tokens.size())
    blob.malformed("has part of a page");
  if (std::ssize(question.tokens) > shape.max_length || question.first >= pages)
    blob.malformed("asks for pages that no sequence has");
  for (const int32_t token : question.tokens)
    if (token < 0 || token >= shape.vocabulary) blob.malformed("has a token that is none");
  return question;
}

uint64_t most_question_bytes(const PageShape& shape) {
  return 4 * sizeof(uint32_t) + kMostScope * sizeof(int32_t) +
         static_cast<uint64_t>(shape.max_length) * sizeof(int32_t);
}

void seal_page(std::string& message, uint32_t page, const PageShape& shape) {
  message.resize(static_cast<std::size_t>(shape.bytes));
  message.append(reinterpret_cast<const char*>(&page), sizeof page);
}

void open_page(std::string& message, uint32_t page, const PageShape& shape) {
  const auto size = static_cast<std::size_t>(shape.bytes);
  dma::BlobReader tail(std::string_view(message).substr(std::min(size, message.size())), "a page");
  const auto number = tail.number<uint32_t>();
  tail.end();
  if (number != page) tail.malformed("is not the next one");
  message.resize(size);
}

}  // namespace ark::peers
