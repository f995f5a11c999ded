#include "server/text/split.h"

#include <algorithm>

#include "base/error.h"

namespace ark::text {
namespace {

// What a behaviour keeps: consecutive segments joined, removed ones gone.
std::vector<Span> kept(const std::vector<Segment>& segments, SplitBehavior behavior) {
  std::vector<Span> spans;
  bool previous = false;  // whether the segment before was a match
  const auto visit = [&](const Segment& segment, bool join) {
    if (join && !spans.empty()) {
      spans.back().begin = std::min(spans.back().begin, segment.begin);
      spans.back().end = std::max(spans.back().end, segment.end);
    } else {
      spans.push_back({segment.begin, segment.end});
    }
    previous = segment.match;
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Segment& segment : segments)
        if (!segment.match) visit(segment, false);
      break;
    case SplitBehavior::kIsolated:
      for (const Segment& segment : segments) visit(segment, false);
      break;
    case SplitBehavior::kContiguous:
      for (const Segment& segment : segments) visit(segment, segment.match == previous);
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Segment& segment : segments) visit(segment, segment.match && !previous);
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto it = segments.rbegin(); it != segments.rend(); ++it) visit(*it, it->match && !previous);
      std::reverse(spans.begin(), spans.end());
      break;
  }
  return spans;
}

}  // namespace

SplitBehavior parse_split_behavior(const JsonView& json) {
  if (json.is_null()) return SplitBehavior::kIsolated;
  const std::string& name = json.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.fail("unknown behavior " + escaped(name, 60));
}

std::vector<Segment> segments_of(std::string_view text, const std::vector<Span>& matches, bool invert) {
  std::vector<Segment> segments;
  segments.reserve(matches.size() + 1);
  std::size_t from = 0;
  for (const Span& match : matches) {
    if (from != match.begin) segments.push_back({from, match.begin, invert});
    segments.push_back({match.begin, match.end, !invert});
    from = match.end;
  }
  if (from != text.size()) segments.push_back({from, text.size(), invert});
  return segments;
}

void split(const Piece& piece, const std::vector<Segment>& segments, SplitBehavior behavior,
           std::vector<Piece>& out) {
  for (const Span& span : kept(segments, behavior))
    if (span.begin != span.end)
      out.push_back(
          {piece.text.substr(span.begin, span.end - span.begin), piece.at_start && span.begin == 0});
}

}  // namespace ark::text
