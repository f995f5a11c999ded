// Cutting a piece of text at matches: the behaviours that tokenizer.json names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/text/json_view.h"
#include "server/text/regex.h"
#include "server/text/unicode.h"

namespace ark::text {

// A piece of the text between two borders of added tokens.
struct Piece {
  std::string text;
  bool at_start;  // begins where the whole text begins (Metaspace's "first")
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior parse_split_behavior(const JsonView& json);  // null: isolated

// A stretch of a piece; together they cover it.
struct Segment {
  std::size_t begin, end;
  bool match;
};

// Segments of a piece from the matches in it; `invert` swaps matches and what lies between them.
std::vector<Segment> segments_of(std::string_view text, const std::vector<Span>& matches, bool invert);

// One match per character for which the predicate holds.
template <typename Predicate>
std::vector<Span> match_characters(std::string_view text, const Predicate& predicate) {
  std::vector<Span> spans;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (predicate(next_char(text, at))) spans.push_back({begin, at});
  }
  return spans;
}

// Appends the non-empty pieces that the segments make of `piece`.
void split(const Piece& piece, const std::vector<Segment>& segments, SplitBehavior behavior,
           std::vector<Piece>& out);

}  // namespace ark::text
