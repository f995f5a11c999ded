// Patterns of tokenizer.json. They are written for Oniguruma; PCRE2 runs them after a translation of
// the constructs on which the two differ.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/budget.h"

namespace ark::text {

struct Span {
  std::size_t begin, end;  // bytes
};

// Rewrites an Oniguruma pattern (its own syntax, UTF-8) for PCRE2 with UTF, UCP and MULTILINE: \s, \w, \b,
// \h, \v, names of properties, classes in classes, (?m), {n,m}+. Throws kBadModel or kUnsupported.
std::string to_pcre2(std::string_view oniguruma);

// Compiled once, const and safe to share between threads.
class Regex {
 public:
  // `what` names the pattern's place in messages. Throws kBadModel if it does not compile.
  Regex(std::string_view oniguruma, std::string_view what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Non-overlapping matches from left to right in valid UTF-8. Backtracking is charged for; kInvalidArgument
  // when a match needs more of it than the limits allow.
  std::vector<Span> find_all(std::string_view text, Budget& budget) const;

 private:
  struct Code;
  struct Scratch;
  int match(std::string_view text, std::size_t& from, Budget& budget, Scratch& scratch) const;
  int try_at(std::string_view text, std::size_t from, Budget& budget, const Scratch& scratch) const;

  std::unique_ptr<Code> code_;
  std::size_t starts_ = 1;  // that one call tries
  std::string what_;
};

}  // namespace ark::text
