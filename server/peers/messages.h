// What servers that share pages say to each other (frames: dma/bootstrap/socket.h; in prose: docs/dma.md). What does
// not fit throws Error(kUnavailable).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ark::peers {

// What both sides know of a page before anything of the other is believed.
struct PageShape {
  int64_t bytes = 0;       // StepRunner::page_bytes()
  int32_t tokens = 0;      // RunnerLimits::page_size
  int32_t max_length = 0;  // tokens of a sequence
  int32_t vocabulary = 0;
};

// Wants pages [first, tokens / page_size) of a sequence, in order.
struct Question {
  bool computes = false;        // those that are not there, too
  uint32_t first = 0;           // page
  std::vector<int32_t> scope;   // words: schedule::scope_of
  std::vector<int32_t> tokens;  // whole pages, from the sequence's beginning
};
std::string to_blob(const Question& question);
// Checked against `shape`.
Question question_of(std::string_view blob, const PageShape& shape);
uint64_t most_question_bytes(const PageShape& shape);

// A page travels as its bytes, then its number: `bytes` + kPageTail.
inline constexpr std::size_t kPageTail = 4;
// Writes the tail behind a page's bytes, the first `shape.bytes` of `message`.
void seal_page(std::string& message, uint32_t page, const PageShape& shape);
// Cuts the tail off. The message must be page `page`.
void open_page(std::string& message, uint32_t page, const PageShape& shape);

}  // namespace ark::peers
