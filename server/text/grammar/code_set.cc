#include "server/text/grammar/code_set.h"

#include <algorithm>
#include <string>

#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF, kBeforeSurrogates = 0xD7FF, kBehindSurrogates = 0xE000;

void add_without_surrogates(CodeRange range, std::vector<CodeRange>& out) {
  range.last = std::min(range.last, kLast);
  if (range.first <= std::min(range.last, kBeforeSurrogates))
    out.push_back({range.first, std::min(range.last, kBeforeSurrogates)});
  if (range.last >= std::max(range.first, kBehindSurrogates))
    out.push_back({std::max(range.first, kBehindSurrogates), range.last});
}

ByteSequence encoded(CodeRange range) {
  std::string first, last;
  append_utf8(first, range.first);
  append_utf8(last, range.last);
  ByteSequence out{static_cast<int>(first.size()), {}};
  for (std::size_t i = 0; i < first.size(); ++i)
    out.bytes[i] = {static_cast<std::uint8_t>(first[i]), static_cast<std::uint8_t>(last[i])};
  return out;
}

// Splits until all lower bytes of a range go through all of their values wherever a higher one changes.
void split(CodeRange range, std::vector<ByteSequence>& out) {
  for (const char32_t end : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (range.first <= end && range.last > end) {
      split({range.first, end}, out);
      return split({end + 1, range.last}, out);
    }
  for (int bits = 6; bits <= 18 && range.last > 0x7F; bits += 6) {
    const char32_t low = (char32_t{1} << bits) - 1;
    if ((range.first & ~low) == (range.last & ~low)) break;
    if (range.first & low) {
      split({range.first, range.first | low}, out);
      return split({(range.first | low) + 1, range.last}, out);
    }
    if ((range.last & low) != low) {
      split({range.first, (range.last & ~low) - 1}, out);
      return split({range.last & ~low, range.last}, out);
    }
  }
  out.push_back(encoded(range));
}

}  // namespace

CodeSet::CodeSet(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<CodeRange> merged;
  for (const CodeRange& range : ranges) {
    if (range.first > range.last) continue;
    if (!merged.empty() && range.first <= merged.back().last + 1)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  for (const CodeRange& range : merged) add_without_surrogates(range, ranges_);
}

CodeSet CodeSet::of(std::string_view text) {
  std::vector<CodeRange> ranges;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    ranges.push_back({c, c});
  }
  return CodeSet(std::move(ranges));
}

CodeSet CodeSet::operator|(const CodeSet& other) const {
  std::vector<CodeRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodeSet(std::move(both));
}

CodeSet CodeSet::operator&(const CodeSet& other) const { return ~(~*this | ~other); }

CodeSet CodeSet::operator~() const {
  std::vector<CodeRange> rest;
  char32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) rest.push_back({next, kLast});
  return CodeSet(std::move(rest));
}

CodeSet code_points_where(bool (*is)(char32_t)) {
  std::vector<CodeRange> ranges;
  for (char32_t c = 0; c <= kLast; ++c) {
    if (!is(c)) continue;
    if (!ranges.empty() && ranges.back().last + 1 == c)
      ranges.back().last = c;
    else
      ranges.push_back({c, c});
  }
  return CodeSet(std::move(ranges));
}

std::vector<ByteSequence> utf8_sequences(const CodeSet& set) {
  std::vector<ByteSequence> out;
  for (const CodeRange& range : set.ranges()) split(range, out);
  return out;
}

}  // namespace ark::text::grammar
