// Oniguruma -> PCRE2. Where they agree the pattern is copied; an atom's start is remembered so that
// X{n,m}+ (a repeated interval in Oniguruma, possessive in PCRE2) can be grouped.
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/text/regex.h"
#include "server/text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ark::text {
namespace {

// Members of sets, as they are written between brackets.
constexpr std::string_view kSpace = R"(\t-\r\x20\x{85}\p{Z})";
constexpr std::string_view kNoSpace = R"(\S\x{180E})";  // PCRE2's \s has one character more
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside a class Oniguruma looks characters below U+0100 up in a table of its own.
constexpr std::string_view kLoneWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kHex = "0-9a-fA-F";
constexpr std::string_view kNoHex = R"(\x00-/:-@G-`g-\x{10FFFF})";

// Names of properties and of [:brackets:], in lower case and without blanks, '_' and '-', that PCRE2 does not know or
// reads differently; behind each its members, of categories the letters.
constexpr std::string_view kCategories =
    " letter=L uppercaseletter=Lu lowercaseletter=Ll titlecaseletter=Lt modifierletter=Lm otherletter=Lo"
    " mark=M combiningmark=M nonspacingmark=Mn spacingmark=Mc enclosingmark=Me"
    " number=N decimalnumber=Nd digit=Nd letternumber=Nl othernumber=No"
    " punctuation=P punct=P connectorpunctuation=Pc dashpunctuation=Pd openpunctuation=Ps closepunctuation=Pe"
    " initialpunctuation=Pi finalpunctuation=Pf otherpunctuation=Po"
    " symbol=S mathsymbol=Sm currencysymbol=Sc modifiersymbol=Sk othersymbol=So"
    " separator=Z spaceseparator=Zs lineseparator=Zl paragraphseparator=Zp"
    " other=C control=Cc cntrl=Cc format=Cf surrogate=Cs privateuse=Co unassigned=Cn"
    " alpha=Alphabetic upper=Uppercase lower=Lowercase ";
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"alnum", "\\p{Alphabetic}\\p{Nd}"},
    {"word", kWord},
    {"space", kSpace},
    {"blank", "\\t\\p{Zs}"},
    {"xdigit", kHex},
    {"ascii", "\\x00-\\x7F"},
};

// PCRE2 reads \p{Han} as "has the script extension Han"; Oniguruma as "is of the script Han".
bool is_script(const std::string& name) {
  const std::string pattern = "\\p{sc:" + name + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// The members of the set that \p{name} or [:name:] stands for.
std::string members_of(std::string_view name) {
  std::string plain;
  for (char c : name)
    if (c != ' ' && c != '_' && c != '-')
      plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const auto& [known, members] : kNames)
    if (plain == known) return std::string(members);
  if (const std::size_t at = kCategories.find(" " + plain + "="); at != kCategories.npos && !plain.empty()) {
    const std::size_t begin = at + plain.size() + 2;
    return "\\p{" + std::string(kCategories.substr(begin, kCategories.find(' ', begin) - begin)) + "}";
  }
  if (plain.size() > 2 && is_script(plain)) return "\\p{sc:" + plain + "}";
  return "\\p{" + std::string(name) + "}";
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return out_;
  }

 private:
  void step() {
    switch (in_[at_]) {
      case '\\':
        begin_atom(), escape(false);
        break;
      case '[':
        begin_atom(), character_class();
        break;
      case '(':
        open_group();
        break;
      case ')':
        close_group();
        break;
      case '{':
        interval();
        break;
      case '*':
      case '+':
      case '?':
      case '|':
        out_ += in_[at_++];
        break;
      default:
        begin_atom(), copy_character();
    }
  }

  void begin_atom() { atom_ = out_.size(); }

  void copy_character() {
    do out_ += in_[at_++];
    while (at_ < in_.size() && is_continuation(in_[at_]));
  }

  void open_group() {
    groups_.push_back(out_.size());
    out_ += in_[at_++];
    if (at_ >= in_.size() || in_[at_] != '?') return;
    out_ += in_[at_++];
    // Options: Oniguruma's m is PCRE2's s. Other group kinds hold no lower-case m before their text.
    while (at_ < in_.size() && std::string_view("imx-").find(in_[at_]) != std::string_view::npos) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      ++at_;
    }
    if (at_ < in_.size() && (in_[at_] == ':' || in_[at_] == '=' || in_[at_] == '!')) out_ += in_[at_++];
  }

  void close_group() {
    atom_ = groups_.empty() ? out_.size() : groups_.back();
    if (!groups_.empty()) groups_.pop_back();
    out_ += in_[at_++];
  }

  void interval() {
    const std::size_t end = in_.find('}', at_);
    const bool repeat = end != std::string_view::npos && end > at_ + 1 &&
                        in_.find_first_not_of("0123456789,", at_ + 1) == end && atom_ < out_.size();
    if (!repeat) {
      begin_atom();
      out_ += '\\';
      return copy_character();
    }
    std::string text(in_.substr(at_, end + 1 - at_));
    if (text[1] == ',') text.insert(1, "0");
    out_ += text;
    at_ = end + 1;
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  // Writes a set of members: inside a class as some of its members, outside as a class of its own.
  void set(std::string_view members, bool negated, bool in_class) {
    const bool lone = members.starts_with("\\p{") && members.find('}') == members.size() - 1;
    if (lone && negated)
      out_.append("\\P").append(members.substr(2));
    else if ((lone || in_class) && !negated)
      out_ += members;
    else if (in_class)
      others_.push_back("[^" + std::string(members) + "]");
    else
      out_.append(negated ? "[^" : "[").append(members) += ']';
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) throw Error(Code::kBadModel, "pattern: ends with a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
      case 'S':
        at_ += 2;
        return c == 'S' && in_class ? set(kNoSpace, false, true) : set(kSpace, c == 'S', in_class);
      case 'w':
      case 'W':
        at_ += 2;
        return set(in_class ? kWord : kLoneWord, c == 'W', in_class);
      case 'h':
      case 'H':
        at_ += 2;
        return c == 'H' && in_class ? set(kNoHex, false, true) : set(kHex, c == 'H', in_class);
      case 'v':
        at_ += 2;
        out_ += "\\x0b";
        return;
      case 'u':
        return unicode_escape();
      case 'p':
      case 'P':
        return property(in_class);
      case 'b':
      case 'B':
        if (!in_class) return word_boundary(c == 'B');
        [[fallthrough]];
      default:
        out_ += '\\', ++at_;
        return copy_character();
    }
  }

  void unicode_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      throw Error(Code::kBadModel, "pattern: \\u needs four hexadecimal digits");
    out_ += "\\x{" + std::string(digits) + "}";
    at_ += 6;
  }

  void word_boundary(bool negated) {
    const std::string word = "[" + std::string(kLoneWord) + "]";
    const auto at = [&](const char* behind, const char* ahead) {
      return "(?<" + (behind + word) + ")(?" + ahead + word + ")";
    };
    at_ += 2;
    out_ += negated ? "(?:" + at("=", "=") + "|" + at("!", "!") + ")"
                    : "(?:" + at("=", "!") + "|" + at("!", "=") + ")";
  }

  void property(bool in_class) {
    const std::size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == std::string_view::npos)
      throw Error(Code::kBadModel, "pattern: \\p needs a name in braces");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    const bool caret = name.starts_with('^');
    if (caret) name.remove_prefix(1);
    const bool negated = caret != (in_[at_ + 1] == 'P');
    at_ = end + 1;
    const std::string members = members_of(name);
    set(members == kWord && !in_class ? kLoneWord : members, negated, in_class);
  }

  // [:name:] or [:^name:] where the class has one at at_.
  bool posix_bracket() {
    const std::string_view rest = in_.substr(at_);
    const std::size_t end = rest.find(":]");
    if (!rest.starts_with("[:") || end == std::string_view::npos || end < 2) return false;
    std::string_view name = rest.substr(2, end - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != std::string_view::npos)
      return false;
    at_ += end + 2;
    if (name == "graph" || name == "print")
      set(name == "graph" ? R"(\t-\r\x20\x{85}\p{Z}\p{Cc}\p{Cn}\p{Cs})" : R"(\p{Cc}\p{Cn}\p{Cs}\p{Zl}\p{Zp})",
          !negated, true);
    else
      set(name == "punct" ? R"(\p{P}\p{S})" : members_of(name), negated, true);
    return true;
  }

  // One character of `members` or of one of the other classes.
  static std::string one_of(const std::string& members, const std::vector<std::string>& others) {
    if (others.empty()) return "[" + members + "]";
    if (others.size() == 1 && members.empty()) return others[0];
    std::string text = members.empty() ? "(?:" : "(?:[" + members + "]";
    for (const std::string& other : others) text.append(text.size() > 3 ? "|" : "").append(other);
    return text + ")";
  }

  static std::string none_of(const std::string& members, const std::vector<std::string>& others) {
    if (others.empty()) return "[^" + members + "]";
    if (others.size() == 1 && others[0].starts_with("[^"))
      return (members.empty() ? "[" : "(?:(?![" + members + "])[") + others[0].substr(2) +
             (members.empty() ? "" : ")");
    return "(?:(?!" + one_of(members, others) + ")(?s:.))";
  }

  // PCRE2 has no classes within classes. Their members become the outer one's where they are not negated;
  // else a class is an alternation of flat ones, each of which takes one character.
  void character_class() {
    if (++depth_ > kMaxDepth)
      throw Error(Code::kBadModel, "pattern: character classes are nested too deeply");
    std::string outer_out;
    std::vector<std::string> outer_others;
    std::swap(outer_out, out_), std::swap(outer_others, others_);
    const bool negated = in_.substr(at_).starts_with("[^");
    at_ += negated ? 2 : 1;
    std::string both;  // what stands before the last &&
    if (at_ < in_.size() && in_[at_] == ']') out_ += "\\]", ++at_;
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_.substr(at_).starts_with("&&")) {
        both += "(?=" + operand() + ")";
        at_ += 2;
      } else {
        member();
      }
    }
    if (at_ >= in_.size()) throw Error(Code::kBadModel, "pattern: a character class is not closed");
    ++at_, --depth_;
    if (!both.empty()) {
      both = "(?:" + both + operand() + ")";
      others_.assign(1, std::move(both));
    }
    std::swap(outer_out, out_), std::swap(outer_others, others_);
    if (depth_ > 0 && !negated) {
      out_ += outer_out;
      others_.insert(others_.end(), outer_others.begin(), outer_others.end());
    } else {
      std::string text = negated ? none_of(outer_out, outer_others) : one_of(outer_out, outer_others);
      if (depth_ > 0)
        others_.push_back(std::move(text));
      else
        out_ += text;
    }
  }

  // One side of &&, taken out of out_ and others_.
  std::string operand() {
    if (out_.empty() && others_.empty()) throw Error(Code::kUnsupported, "pattern: an empty side of &&");
    std::string text = one_of(out_, others_);
    out_.clear(), others_.clear();
    return text;
  }

  void member() {
    const std::string_view rest = in_.substr(at_);
    const auto ends = [](std::string_view text) {
      return text.empty() || text[0] == '[' || text[0] == ']' || text.starts_with("&&");
    };
    const bool behind_set = std::exchange(behind_set_, false);
    if (rest[0] == '[') {
      if (!posix_bracket()) character_class();
      behind_set_ = true;
    } else if (rest[0] == '\\') {
      behind_set_ = rest.size() > 1 && std::string_view("sSwWdDhHpP").find(rest[1]) != std::string_view::npos;
      escape(true);
    } else if (rest.starts_with("-[") && !out_.empty() && !behind_set) {
      throw Error(Code::kUnsupported, "pattern: a range that ends with a character class");
    } else if (rest[0] == '-' && (out_.empty() || behind_set || ends(rest.substr(1)))) {
      out_ += "\\-", ++at_;  // not a range, also among the members of an outer class
    } else {
      copy_character();
    }
  }

  static constexpr int kMaxDepth = 32;

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<std::string> others_;  // in a class: one-character patterns that are no members of a flat one
  int depth_ = 0;                    // of classes
  bool behind_set_ = false;          // in a class: what comes stands behind a set, not a character
  std::size_t atom_ = 0;             // where in out_ the last atom starts
  std::vector<std::size_t> groups_;  // where in out_ the open groups start
};

}  // namespace

std::string to_pcre2(std::string_view oniguruma) { return Translator(oniguruma).run(); }

}  // namespace ark::text
