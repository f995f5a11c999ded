#include "server/text/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser {
 public:
  GbnfParser(std::string_view source, std::string_view what, Rules& rules, Budget& budget)
      : source_(source), what_(what), rules_(rules), budget_(budget) {}

  RuleId parse() {
    for (skip(true); at_ < source_.size(); skip(true)) rule();
    for (const auto& [name, known] : names_)
      if (!known.is_defined) fail(known.first_use, "rule \"" + escaped(name, 80) + "\" is not defined");
    const auto root = names_.find("root");
    if (root == names_.end()) fail(source_.size(), "there is no rule \"root\"; it is where texts begin");
    return root->second.id;
  }

 private:
  struct Name {
    RuleId id;
    std::size_t first_use;
    bool is_defined = false;
  };

  void rule() {
    const std::size_t place = at_;
    Name& name = named();
    skip(false);
    if (!take("::=")) fail(at_, "expected ::=");
    if (std::exchange(name.is_defined, true)) fail(place, "the rule is defined twice");
    const RuleId id = name.id;
    skip(true);
    rules_.define(id, alternates(0));
    skip(false);
    if (at_ < source_.size() && source_[at_] != '\n') fail(at_, "expected the end of the rule");
  }

  Name& named() {
    const std::size_t place = at_;
    while (at_ < source_.size() && is_name(source_[at_])) ++at_;
    if (at_ == place) fail(place, "expected the name of a rule");
    std::string name(source_.substr(place, at_ - place));
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    budget_.charge_bytes(sizeof(Name) + sizeof(Expression) + name.size());
    const RuleId id = rules_.declare(name);
    return names_.emplace(std::move(name), Name{id, place}).first->second;
  }

  // Lines end only rules: not what is in parentheses, nor in front of "|".
  ExpressionPtr alternates(int depth) {
    if (depth > kMaxDepth) fail(at_, "parentheses nest deeper than " + std::to_string(kMaxDepth) + " levels");
    std::vector<ExpressionPtr> ways;
    do {
      skip(true);
      ways.push_back(sequence_of(depth));
      const std::size_t end = at_;
      skip(true);
      if (at_ < source_.size() && source_[at_] != '|' && depth == 0) at_ = end;
    } while (take("|"));
    return choice(std::move(ways));
  }

  ExpressionPtr sequence_of(int depth) {
    std::vector<ExpressionPtr> parts;
    for (;; skip(depth > 0)) {
      budget_.charge_bytes(sizeof(Expression));
      ExpressionPtr part = element(depth);
      if (!part) return sequence(std::move(parts));
      parts.push_back(repeated(std::move(part)));
    }
  }

  // Null where the sequence ends.
  ExpressionPtr element(int depth) {
    const std::size_t place = at_;
    if (at_ == source_.size()) return nullptr;
    if (take("\"")) return literal(place);
    if (take("[")) return character(bracket(place));
    if (take(".")) return character(~CodeSet());
    if (take("(")) {
      ExpressionPtr inside = alternates(depth + 1);
      skip(true);
      if (!take(")")) fail(place, "\"(\" without \")\"");
      return inside;
    }
    if (is_name(source_[at_])) return reference(named().id);
    if (std::string_view("*+?{").find(source_[at_]) != std::string_view::npos)
      fail(place, "nothing to repeat");
    if (source_[at_] == ')' && depth == 0) fail(place, "\")\" without \"(\"");
    if (std::string_view("|)\n#").find(source_[at_]) == std::string_view::npos)
      fail(place, "expected a literal, a class or a rule");
    return nullptr;
  }

  ExpressionPtr repeated(ExpressionPtr part) {
    skip(false);
    const std::size_t place = at_;
    std::uint32_t min = 0, max = kUnbounded;
    if (take("?")) {
      max = 1;
    } else if (take("+")) {
      min = 1;
    } else if (take("{")) {
      skip(true);
      min = count();
      skip(true);
      if (take(",")) {
        skip(true);
        if (at_ < source_.size() && source_[at_] != '}') max = count();
        skip(true);
      } else {
        max = min;
      }
      if (!take("}")) fail(place, "\"{\" without \"}\"");
      if (max < min) fail(place, "the upper bound is less than the lower one");
    } else if (!take("*")) {
      return part;
    }
    if (at_ < source_.size() && std::string_view("*+?{").find(source_[at_]) != std::string_view::npos)
      fail(at_, "a quantifier behind a quantifier; write parentheses around what is repeated");
    return repeat(std::move(part), min, max);
  }

  std::uint32_t count() {
    const std::size_t place = at_;
    std::uint32_t value = 0;
    for (; at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '9'; ++at_) {
      if (at_ - place >= kMaxCountDigits)
        fail(place, "a number of repetitions has more than " + std::to_string(kMaxCountDigits) + " digits");
      value = value * 10 + static_cast<std::uint32_t>(source_[at_] - '0');
    }
    if (at_ == place) fail(place, "expected a number of repetitions");
    return value;
  }

  ExpressionPtr literal(std::size_t place) {
    std::string value;
    while (!take("\"")) append_utf8(value, next_character(place));
    return text(std::move(value));
  }

  CodeSet bracket(std::size_t place) {
    const bool is_negated = take("^");
    std::vector<CodeRange> ranges;
    while (!take("]")) {
      budget_.charge();
      const char32_t first = next_character(place);
      char32_t last = first;
      if (at_ + 1 < source_.size() && source_[at_] == '-' && source_[at_ + 1] != ']') {
        ++at_;
        last = next_character(place);
      }
      if (first > last) fail(place, "a range whose end is before its beginning");
      ranges.push_back({first, last});
    }
    const CodeSet set(std::move(ranges));
    return is_negated ? ~set : set;
  }

  // Of what began at `place`.
  char32_t next_character(std::size_t place) {
    if (at_ == source_.size() || source_[at_] == '\n') fail(place, "it has no end on its line");
    if (!take("\\")) return next_char(source_, at_);
    const std::size_t escape = at_ - 1;
    if (at_ == source_.size()) fail(place, "it has no end on its line");
    const char c = source_[at_++];
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hexadecimal(escape, 2);
      case 'u':
        return hexadecimal(escape, 4);
      case 'U':
        return hexadecimal(escape, 8);
      default:
        break;
    }
    if (std::string_view("\\\"[]-^").find(c) == std::string_view::npos)
      fail(escape, "the escape is not known");
    return static_cast<unsigned char>(c);
  }

  char32_t hexadecimal(std::size_t escape, std::size_t digits) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < source_.size() ? static_cast<char>(source_[at_] | 0x20) : 'x';
      const int digit = at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '9'
                            ? source_[at_] - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) fail(escape, "expected " + std::to_string(digits) + " hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail(escape, "not a character");
    return value;
  }

  // Blanks and comments; lines, too, if `lines`.
  void skip(bool lines) {
    for (; at_ < source_.size(); ++at_) {
      if (source_[at_] == '#') at_ = std::min(source_.find('\n', at_), source_.size());
      if (at_ == source_.size()) return;
      const char c = source_[at_];
      if (c != ' ' && c != '\t' && c != '\r' && (c != '\n' || !lines)) return;
    }
  }
  bool take(std::string_view what) {
    if (!source_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  [[noreturn]] void fail(std::size_t place, const std::string& message) const {
    const std::string_view before = source_.substr(0, place);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t column = place - (before.rfind('\n') + 1) + 1;
    throw Error(Code::kInvalidArgument, std::string(what_) + ": " + std::to_string(line) + ":" +
                                            std::to_string(column) + ": " + message);
  }

  const std::string_view source_, what_;
  Rules& rules_;
  Budget& budget_;
  std::size_t at_ = 0;
  std::map<std::string, Name> names_;
};

}  // namespace

RuleId parse_gbnf(std::string_view text, std::string_view what, Rules& rules, Budget& budget) {
  if (!is_valid_utf8(text)) throw Error(Code::kInvalidArgument, std::string(what) + ": not valid UTF-8");
  budget.charge_reading(text.size());
  return GbnfParser(text, what, rules, budget).parse();
}

}  // namespace ark::text::grammar
