#include "server/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return is_digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Line breaks become \n, and one at the end of the source goes.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// Python's escapes in a string literal; unknown ones stay as they are.
std::string decode_string(std::string_view text, int line) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at++];
    if (c != '\\' || at >= text.size()) {
      out += c;
      continue;
    }
    const char kind = text[at++];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv\n", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t simple = kFrom.find(kind); simple != std::string_view::npos) {
      if (kind != '\n') out += kTo[simple];
      continue;
    }
    const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) {
      out += {'\\', kind};
      continue;
    }
    const std::string_view number = text.substr(at, digits);
    std::uint32_t value = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), value, 16);
    if (number.size() != digits || result.ec != std::errc() || result.ptr != number.data() + digits ||
        value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      syntax_error(line, "bad escape in a string");
    append_utf8(out, static_cast<char32_t>(value));
    at += digits;
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      if (tag == std::string::npos) {
        add(TokenKind::kText, source_.substr(at_));
        advance(source_.size());
        break;
      }
      read_tag(tag);
    }
    add(TokenKind::kEnd, "end of template");
    return std::move(tokens_);
  }

 private:
  std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1))
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return std::string::npos;
  }

  void add(TokenKind kind, std::string text) {
    if (kind == TokenKind::kText && text.empty()) return;
    tokens_.push_back({kind, std::move(text), line_});
  }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void read_tag(std::size_t tag) {
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_text(tag, kind, sign);
    const auto raw = kind == '%' ? word_tag(tag + 2, "raw") : std::nullopt;
    advance(tag + 2);
    if (sign == '-' || sign == '+') advance(at_ + 1);
    if (kind == '#') return skip_comment();
    if (raw) {
      advance(raw->end);
      finish_tag(raw->sign, false);
      return read_raw();
    }
    add(kind == '%' ? TokenKind::kStatementBegin : TokenKind::kExpressionBegin, kind == '%' ? "{%" : "{{");
    read_code(kind == '%' ? "%}" : "}}");
  }

  // The text before a tag, without the blanks that the tag takes.
  void add_text(std::size_t tag, char kind, char sign) {
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      while (!text.empty() && is_blank(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      const std::size_t line = text.rfind('\n') + 1;
      const bool blank = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), is_blank);
      if (blank && (line > 0 || line_starts_)) text.resize(line);
    }
    add(TokenKind::kText, std::move(text));
  }

  // Behind a tag's end: "-" takes all blanks, else a statement or comment takes one line break, unless "+".
  void finish_tag(char sign, bool trim) {
    const std::size_t begin = at_;
    std::size_t end = at_;
    if (sign == '-')
      while (end < source_.size() && is_blank(source_[end])) ++end;
    else if (trim && sign != '+' && end < source_.size() && source_[end] == '\n')
      ++end;
    line_starts_ = end > begin && source_[end - 1] == '\n';
    advance(end);
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) syntax_error(line_, "missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2);
    finish_tag(sign, true);
  }

  // Where a tag that holds nothing but `word` ends, the code at `at` being behind its "{%"; and its sign.
  struct WordTag {
    std::size_t end;
    char sign;
  };
  std::optional<WordTag> word_tag(std::size_t at, std::string_view word) const {
    const auto skip_blanks = [&] {
      while (at < source_.size() && is_blank(source_[at])) ++at;
    };
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    skip_blanks();
    const std::string_view source = source_;
    if (source.substr(std::min(at, source.size()), word.size()) != word) return std::nullopt;
    at += word.size();
    skip_blanks();
    const char sign = at < source.size() ? source[at] : '\0';
    if (sign == '-' || sign == '+') ++at;
    if (source.substr(std::min(at, source.size()), 2) != "%}") return std::nullopt;
    return WordTag{at + 2, sign};
  }

  // The text between the tags raw and endraw, the former of which has been read.
  void read_raw() {
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      const auto end = word_tag(tag + 2, "endraw");
      if (!end) continue;
      add_text(tag, '%', tag + 2 < source_.size() ? source_[tag + 2] : '\0');
      advance(end->end);
      return finish_tag(end->sign, true);
    }
    syntax_error(line_, "missing end of raw directive");
  }

  // Names, literals and operators up to the tag's end.
  void read_code(std::string_view closing) {
    std::string brackets;  // open ones: a "}}" that closes dicts ends no tag
    while (true) {
      while (at_ < source_.size() && is_blank(source_[at_])) advance(at_ + 1);
      if (at_ >= source_.size()) syntax_error(line_, "missing " + std::string(closing));
      const char c = source_[at_];
      if (brackets.empty()) {
        const bool sign =
            (c == '-' || (c == '+' && closing == "%}")) && rest().substr(1).starts_with(closing);
        if (sign || rest().starts_with(closing)) {
          add(closing == "%}" ? TokenKind::kStatementEnd : TokenKind::kExpressionEnd, std::string(closing));
          advance(at_ + (sign ? 3 : 2));
          return finish_tag(sign ? c : '\0', closing == "%}");
        }
      }
      if (is_digit(c))
        read_number();
      else if (is_name_char(c))
        read_name();
      else if (c == '\'' || c == '"')
        read_string(c);
      else
        read_operator(brackets);
    }
  }

  void read_name() {
    std::size_t end = at_;
    while (end < source_.size() && is_name_char(source_[end])) ++end;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    advance(end);
  }

  void read_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) syntax_error(line_, "missing end of string");
    add(TokenKind::kString, decode_string(std::string_view(source_).substr(at_ + 1, end - at_ - 1), line_));
    advance(end + 1);
  }

  std::size_t skip_digits(std::size_t at) const {
    while (at < source_.size() && is_digit(source_[at])) ++at;
    return at;
  }

  void read_number() {
    std::size_t end = skip_digits(at_);
    bool is_float = false;
    // After a "." (an attribute by number) a number has no fraction.
    const bool attribute =
        !tokens_.empty() && tokens_.back().text == "." && tokens_.back().kind == TokenKind::kOperator;
    if (!attribute && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = skip_digits(end + 1);
      is_float = true;
    }
    if (!attribute && end < source_.size() && (source_[end] | 0x20) == 'e') {
      const std::size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (end + 1 + sign < source_.size() && is_digit(source_[end + 1 + sign])) {
        end = skip_digits(end + 1 + sign);
        is_float = true;
      }
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, source_.substr(at_, end - at_));
    advance(end);
  }

  void read_operator(std::string& brackets) {
    static constexpr std::array<std::string_view, 27> kOperators{
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [this](std::string_view text) { return rest().starts_with(text); });
    if (found == kOperators.end() || *found == "!")
      syntax_error(
          line_, "unexpected character " +
                     escaped(rest().substr(0, utf8_sequence_length(static_cast<unsigned char>(rest()[0])))));
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c)
        syntax_error(line_, std::string("unexpected '") + c + "'");
      brackets.pop_back();
    }
    add(TokenKind::kOperator, std::string(*found));
    advance(at_ + found->size());
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // the next character is the first of its line
  std::vector<Token> tokens_;
};

}  // namespace

void syntax_error(int line, const std::string& message) {
  throw Error(Code::kBadModel, "chat template, line " + std::to_string(line) + ": " + message);
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace ark::text::jinja
