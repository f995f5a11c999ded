// Oniguruma -> PCRE2. Where they agree the pattern is copied; an atom's start is remembered so that
// X{n,m}+ (a repeated interval in Oniguruma, possessive in PCRE2) can be grouped.
#include <array>
#include <optional>

#include "base/error.h"
#include "server/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ark::text {
namespace {

constexpr std::string_view kSpace = R"(\t-\r\x20\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";

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

std::string property_name(std::string name) {
  struct LongName {
    std::string_view from, to;
  };
  static constexpr std::array<LongName, 9> kLongNames{{{"Letter", "L"},
                                                       {"Mark", "M"},
                                                       {"Number", "N"},
                                                       {"Punctuation", "P"},
                                                       {"Symbol", "S"},
                                                       {"Separator", "Z"},
                                                       {"Other", "C"},
                                                       {"Alpha", "Alphabetic"},
                                                       {"Digit", "Nd"}}};
  for (const LongName& entry : kLongNames)
    if (name == entry.from) return std::string(entry.to);
  if (name.size() > 2 && is_script(name)) return "sc:" + name;
  return name;
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
    while (at_ < in_.size() && (static_cast<unsigned char>(in_[at_]) & 0xC0) == 0x80);
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

  // Writes a shorthand of the members of a set, inside or outside a class.
  void set(std::string_view members, bool negated, bool in_class) {
    if (in_class && negated)
      throw Error(Code::kUnsupported,
                  "pattern: a negated shorthand (\\S, \\W, \\H) inside a character class");
    if (in_class) {
      out_ += members;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += members;
      out_ += ']';
    }
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) throw Error(Code::kBadModel, "pattern: ends with a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
      case 'S':
        at_ += 2;
        return set(kSpace, c == 'S', in_class);
      case 'w':
      case 'W':
        at_ += 2;
        return set(kWord, c == 'W', in_class);
      case 'h':
      case 'H':
        at_ += 2;
        return set(kHex, c == 'H', in_class);
      case 'v':
        at_ += 2;
        out_ += "\\x0b";
        return;
      case 'u':
        return unicode_escape();
      case 'p':
      case 'P':
        return property();
      default:
        out_ += '\\', ++at_;
        copy_character();
    }
  }

  void unicode_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      throw Error(Code::kBadModel, "pattern: \\u needs four hexadecimal digits");
    out_ += "\\x{" + std::string(digits) + "}";
    at_ += 6;
  }

  void property() {
    out_ += '\\';
    out_ += in_[at_ + 1];
    at_ += 2;
    if (at_ >= in_.size() || in_[at_] != '{') return;
    const std::size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) return;
    std::string name(in_.substr(at_ + 1, end - at_ - 1));
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.erase(0, 1);
    out_ += (negated ? "{^" : "{") + property_name(name) + "}";
    at_ = end + 1;
  }

  void character_class() {
    out_ += in_[at_++];
    if (at_ < in_.size() && in_[at_] == '^') out_ += in_[at_++];
    if (at_ < in_.size() && in_[at_] == ']') out_ += "\\]", ++at_;
    while (at_ < in_.size() && in_[at_] != ']') {
      const std::string_view rest = in_.substr(at_);
      const std::size_t posix_end = rest.find(":]");
      if (rest.starts_with("[:") && posix_end != std::string_view::npos) {
        out_ += rest.substr(0, posix_end + 2);
        at_ += posix_end + 2;
      } else if (rest[0] == '[' || rest.starts_with("&&")) {
        throw Error(Code::kUnsupported, "pattern: nested or intersected character classes are not supported");
      } else if (rest[0] == '\\') {
        escape(true);
      } else {
        copy_character();
      }
    }
    if (at_ < in_.size()) out_ += in_[at_++];
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // where in out_ the last atom starts
  std::vector<std::size_t> groups_;  // where in out_ the open groups start
};

}  // namespace

std::string to_pcre2(std::string_view oniguruma) { return Translator(oniguruma).run(); }

}  // namespace ark::text
