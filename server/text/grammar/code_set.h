// Sets of code points, and how UTF-8 writes them.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace ark::text::grammar {

struct CodeRange {
  char32_t first, last;  // both included
  auto operator<=>(const CodeRange&) const = default;
};

// Sorted ranges that neither overlap nor touch. Surrogates are never in it: UTF-8 does not write them.
class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges) : CodeSet(std::vector<CodeRange>(ranges)) {}
  explicit CodeSet(std::vector<CodeRange> ranges);  // in any order
  static CodeSet of(std::string_view text);         // its characters

  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool is_ascii() const { return ranges_.empty() || ranges_.back().last < 0x80; }

  CodeSet operator|(const CodeSet& other) const;
  CodeSet operator&(const CodeSet& other) const;
  CodeSet operator-(const CodeSet& other) const { return *this & ~other; }
  CodeSet operator~() const;
  auto operator<=>(const CodeSet&) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

// All code points of which `is` is true, by asking for each: to be kept.
CodeSet code_points_where(bool (*is)(char32_t));

struct ByteRange {
  std::uint8_t first, last;
  bool operator==(const ByteRange&) const = default;
};
struct ByteSequence {
  int length;
  std::array<ByteRange, 4> bytes;
};
// In ascending order. Two of them begin with one range or with disjoint ones, and so on behind equal ones: read as a
// tree they are deterministic.
std::vector<ByteSequence> utf8_sequences(const CodeSet& set);

}  // namespace ark::text::grammar
