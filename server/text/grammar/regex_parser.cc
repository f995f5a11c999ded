#include "server/text/grammar/regex_parser.h"

#include <string>

#include "base/error.h"
#include "server/text/grammar/regex_classes.h"
#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

constexpr std::size_t kMaxInBraces = 64;  // bytes that are looked at

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

int hex_value(char32_t c) {
  return is_digit(c)                              ? static_cast<int>(c - '0')
         : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? static_cast<int>((c | 0x20) - 'a' + 10)
                                                  : -1;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, std::string_view what, RegexDialect dialect, Budget& budget)
      : pattern_(pattern), what_(what), dialect_(dialect), budget_(budget) {}

  ParsedRegex parse() {
    ParsedRegex out{alternatives(0)};
    if (!at_end()) fail(at_, "\")\" without \"(\"");
    return out;
  }

 private:
  struct Atom {
    std::size_t index;
    ExpressionPtr expression;
    std::vector<Alternative> anchored;  // a group with anchors in it
  };

  std::vector<Alternative> alternatives(int depth) {
    if (depth > kMaxDepth) fail(at_, "groups nest deeper than " + std::to_string(kMaxDepth) + " levels");
    std::vector<Alternative> out;
    do {
      const std::vector<Alternative> one = alternative(depth);
      out.insert(out.end(), one.begin(), one.end());
    } while (take('|'));
    return out;
  }

  // More than one where it is but a group of them, with anchors.
  std::vector<Alternative> alternative(int depth) {
    Alternative out;
    while (take('^')) out.begins = true;
    std::vector<ExpressionPtr> parts;
    std::vector<Atom> anchored;
    while (!at_end() && peek() != '|' && peek() != ')') {
      budget_.charge();
      if (out.ends) fail(at_, "\"$\" is supported at the end only");
      if (take('$')) {
        out.ends = true;
        while (take('$')) continue;
        continue;
      }
      Atom atom = this->atom(depth);
      ExpressionPtr part = quantified(atom);
      if (!atom.anchored.empty()) anchored.push_back(std::move(atom));
      parts.push_back(std::move(part));
    }
    if (anchored.empty()) {
      out.expression = sequence(std::move(parts));
      return {out};
    }
    if (parts.size() > 1)
      fail(anchored[0].index, "\"^\" and \"$\" in a group with something beside it are not supported");
    for (Alternative& inner : anchored[0].anchored) {
      inner.begins |= out.begins;
      inner.ends |= out.ends;
    }
    return std::move(anchored[0].anchored);
  }

  Atom atom(int depth) {
    const std::size_t index = at_;
    const char32_t c = next();
    switch (c) {
      case '(':
        return group(index, depth);
      case '[':
        return {index, character(bracket(index)), {}};
      case '.':
        return {index, character(~line_ends()), {}};
      case '\\':
        return {index, character(escape(index, false, false)), {}};
      case '^':
        fail(index, "\"^\" is supported at the beginning only");
      case '*':
      case '+':
      case '?':
        fail(index, "nothing to repeat; write \\ before a character that stands for itself");
      default:
        break;
    }
    if (c == '{' && is_interval(index))
      fail(index, "nothing to repeat; write \\ before a character that stands for itself");
    return {index, text(std::string(pattern_.substr(index, at_ - index))), {}};
  }

  Atom group(std::size_t index, int depth) {
    if (take('?')) group_kind(index);
    std::vector<Alternative> inner = alternatives(depth + 1);
    if (!take(')')) fail(index, "\"(\" without \")\"");
    bool has_anchors = false;
    std::vector<ExpressionPtr> choices;
    for (const Alternative& one : inner) {
      has_anchors |= one.begins || one.ends;
      choices.push_back(one.expression);
    }
    if (!has_anchors) inner.clear();
    return {index, choice(std::move(choices)), std::move(inner)};
  }

  // Behind "(?": a name or a colon; both mean nothing here.
  void group_kind(std::size_t index) {
    if (take(':')) return;
    if (take('=') || take('!')) fail(index, "lookahead is not supported");
    if (take('>')) fail(index, "atomic groups are not supported");
    if (take('#')) fail(index, "comments are not supported");
    const bool has_p = take('P');
    if (has_p && (take('=') || take('>'))) fail(index, "backreferences are not supported");
    if (!take('<')) fail(index, "inline flags are not supported");
    if (take('=') || take('!')) fail(index, "lookbehind is not supported");
    while (!at_end() && peek() != '>')
      if (const char32_t c = next(); !is_ascii_letter(c) && !is_digit(c) && c != '_')
        fail(index, "a name of a group is wrong");
    if (!take('>')) fail(index, "a name of a group has no end");
  }

  ExpressionPtr quantified(const Atom& atom) {
    const std::size_t index = at_;
    std::uint32_t min = 0, max = kUnbounded;
    if (take('?'))
      max = 1;
    else if (take('+'))
      min = 1;
    else if (!at_end() && peek() == '{' && is_interval(at_))
      interval(min, max);
    else if (!take('*'))
      return atom.expression;
    if (!atom.anchored.empty())
      fail(atom.index, "\"^\" and \"$\" in a group that is repeated are not supported");
    take('?');  // lazy: the same texts
    if (!at_end() && peek() == '+') fail(at_, "possessive quantifiers are not supported");
    if (!at_end() && (peek() == '*' || peek() == '?' || (peek() == '{' && is_interval(at_))))
      fail(at_, "a quantifier behind a quantifier; write a group around what is repeated");
    if (max < min) fail(index, "the upper bound is less than the lower one");
    return repeat(atom.expression, min, max);
  }

  // {m}, {m,}, {m,n}; any other brace stands for itself.
  bool is_interval(std::size_t index) {
    const std::string_view rest = pattern_.substr(index + 1, kMaxInBraces);
    const std::string_view inside = rest.substr(0, rest.find('}'));
    if (inside.empty() || (inside.size() == rest.size() && rest.size() < kMaxInBraces) ||
        inside.find_first_not_of("0123456789,") != inside.npos)
      return false;
    if (inside[0] == ',' && inside.find(',', 1) == inside.npos)
      fail(index, "{,n} means different things to different readers; write {0,n}");
    return inside.find(',') == inside.rfind(',');
  }

  void interval(std::uint32_t& min, std::uint32_t& max) {
    take('{');
    min = number();
    max = !take(',') ? min : peek() == '}' ? kUnbounded : number();
    take('}');
  }

  std::uint32_t number() {
    const std::size_t index = at_;
    std::uint32_t value = 0;
    while (is_digit(peek())) {
      value = value * 10 + (next() - '0');
      if (at_ - index > kMaxCountDigits)
        fail(index, "a number of repetitions has more than " + std::to_string(kMaxCountDigits) + " digits");
    }
    return value;
  }

  // A class in brackets, behind its "[".
  CodeSet bracket(std::size_t index) {
    const bool is_negated = take('^');
    if (!at_end() && peek() == ']') fail(at_, "\"]\" as the first of a class; write \\]");
    std::vector<CodeRange> ranges;
    while (!take(']')) {
      if (at_end()) fail(index, "\"[\" without \"]\"");
      budget_.charge();
      const std::size_t place = at_;
      const CodeSet first = member(is_negated);
      if (at_end() || peek() != '-' || pattern_.substr(at_).starts_with("-]")) {
        budget_.charge(first.ranges().size());
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
        continue;
      }
      next();
      if (at_end()) fail(index, "\"[\" without \"]\"");
      const CodeSet last = member(is_negated);
      if (!is_one(first) || !is_one(last)) fail(place, "a range from or to a class");
      if (first.ranges()[0].first > last.ranges()[0].first)
        fail(place, "a range whose end is before its beginning");
      ranges.push_back({first.ranges()[0].first, last.ranges()[0].first});
    }
    const CodeSet out(std::move(ranges));
    return is_negated ? ~out : out;
  }

  static bool is_one(const CodeSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
  }

  CodeSet member(bool is_negated) {
    const std::size_t index = at_;
    const char32_t c = next();
    if (c == '\\') return escape(index, true, is_negated);
    if (c == '[' && !at_end() && (peek() == ':' || peek() == '.' || peek() == '='))
      fail(index, "POSIX classes are not supported; write their characters");
    return {{c, c}};
  }

  // Behind a backslash. `is_negated`: stands in [^...], where what \w leaves out becomes what is meant.
  CodeSet escape(std::size_t index, bool in_class, bool is_negated) {
    if (at_end()) fail(index, "nothing behind \\");
    const char32_t c = next();
    switch (c) {
      case 'n':
        return CodeSet{{'\n', '\n'}};
      case 't':
        return CodeSet{{'\t', '\t'}};
      case 'r':
        return CodeSet{{'\r', '\r'}};
      case 'f':
        return CodeSet{{'\f', '\f'}};
      case 'v':
        return CodeSet{{'\v', '\v'}};
      case 'd':
      case 'w':
      case 's':
        return escaped_class(static_cast<char>(c), is_negated);
      case 'D':
      case 'W':
      case 'S':
        return ~escaped_class(static_cast<char>(c | 0x20), !is_negated);
      case 'x':
        return one(hexadecimal(index, 2));
      case 'u':
        return one(unicode_escape(index));
      case 'p':
      case 'P':
        return property(index, c == 'P');
      case 'b':
        if (in_class) return CodeSet{{'\b', '\b'}};
        [[fallthrough]];
      case 'B':
        fail(index, "word boundaries are not supported");
      default:
        break;
    }
    if (is_digit(c)) fail(index, "backreferences and octal escapes are not supported");
    if (is_ascii_letter(c) || c >= 0x80) fail(index, "\\" + to_utf8({&c, 1}) + " is not supported");
    return one(c);
  }

  static CodeSet one(char32_t c) { return {{c, c}}; }

  CodeSet property(std::size_t index, bool is_complement) {
    const std::string_view rest = pattern_.substr(at_, kMaxInBraces);
    const std::size_t end = rest.find('}');
    if (!rest.starts_with('{') || end == rest.npos) fail(index, "\\p without a name in braces");
    const std::string_view name = rest.substr(1, end - 1);
    const CodeSet* const set = property_class(name);
    if (!set)
      fail(index, "\\p{" + escaped(name, 40) + "} is not supported; L, Lu, Ll, Lt, N, Nd, P and M are");
    at_ += end + 1;
    return is_complement ? ~*set : *set;
  }

  char32_t hexadecimal(std::size_t index, int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = at_end() ? -1 : hex_value(next());
      if (digit < 0) fail(index, "expected " + std::to_string(digits) + " hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  // Two surrogates are one character.
  char32_t unicode_escape(std::size_t index) {
    char32_t value = 0;
    if (take('{')) {
      while (!at_end() && peek() != '}') {
        const int digit = hex_value(next());
        if (digit < 0 || value > 0x10FFFF) fail(index, "expected a code point in braces");
        value = value * 16 + static_cast<char32_t>(digit);
      }
      if (!take('}')) fail(index, "expected a code point in braces");
    } else {
      value = hexadecimal(index, 4);
      if (value >= 0xD800 && value < 0xDC00 && pattern_.substr(at_).starts_with("\\u")) {
        at_ += 2;
        const char32_t low = hexadecimal(index, 4);
        value = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00) : 0xD800;
      }
    }
    if ((value >= 0xD800 && value < 0xE000) || value > 0x10FFFF) fail(index, "not a character");
    return value;
  }

  CodeSet line_ends() const {
    return dialect_ == RegexDialect::kPython ? CodeSet{{'\n', '\n'}}
                                             : CodeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  }

  bool at_end() const { return at_ == pattern_.size(); }
  char32_t peek() const {
    std::size_t at = at_;
    return at_end() ? 0 : next_char(pattern_, at);
  }
  char32_t next() { return next_char(pattern_, at_); }
  bool take(char c) {
    if (at_end() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void fail(std::size_t index, const std::string& message) const {
    throw Error(Code::kInvalidArgument,
                std::string(what_) + ": index " + std::to_string(index) + ": " + message);
  }

  const std::string_view pattern_, what_;
  const RegexDialect dialect_;
  Budget& budget_;
  std::size_t at_ = 0;
};

}  // namespace

ExpressionPtr ParsedRegex::whole() const {
  std::vector<ExpressionPtr> parts;
  for (const Alternative& one : alternatives) parts.push_back(one.expression);
  return choice(std::move(parts));
}

ExpressionPtr ParsedRegex::search() const {
  const ExpressionPtr any = repeat(character(~CodeSet()), 0, kUnbounded);
  std::vector<ExpressionPtr> parts;
  for (const Alternative& one : alternatives) {
    std::vector<ExpressionPtr> around{one.expression};
    if (!one.begins) around.insert(around.begin(), any);
    if (!one.ends) around.push_back(any);
    parts.push_back(sequence(std::move(around)));
  }
  return choice(std::move(parts));
}

ParsedRegex parse_regex(std::string_view pattern, std::string_view what, RegexDialect dialect,
                        Budget& budget) {
  if (!is_valid_utf8(pattern)) throw Error(Code::kInvalidArgument, std::string(what) + ": not valid UTF-8");
  budget.charge_bytes(pattern.size() * sizeof(Expression));
  return RegexParser(pattern, what, dialect, budget).parse();
}

}  // namespace ark::text::grammar
