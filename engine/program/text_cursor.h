// Reads the text form of programs: one line, left to right.
#pragma once

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/expr.h"

namespace ark {

class TextCursor {
 public:
  TextCursor(std::string_view line, int number) : rest_(line), number_(number) { skip(); }

  bool done() const { return rest_.empty(); }
  bool peek(std::string_view token) const { return rest_.starts_with(token); }
  // Takes `token` if it stands here.
  bool accept(std::string_view token) {
    if (!peek(token)) return false;
    rest_.remove_prefix(token.size());
    skip();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("expected '" + std::string(token) + "'");
  }
  int64_t integer() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) fail("expected an integer");
    drop_to(end);
    return value;
  }
  int32_t index() {
    const int64_t value = integer();
    if (value < -1 || value > INT32_MAX) fail("index out of range");
    return static_cast<int32_t>(value);
  }
  double real() {
    const std::string text(rest_.substr(0, rest_.find_first_of(",;]})\" ")));
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') fail("expected a number");
    drop_to(rest_.data() + text.size());
    return value;
  }
  // Letters, digits, '_' and '|'.
  std::string word() {
    std::size_t n = 0;
    while (n < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[n])) || rest_[n] == '_' || rest_[n] == '|'))
      ++n;
    if (n == 0) fail("expected a word");
    std::string result(rest_.substr(0, n));
    drop_to(rest_.data() + n);
    return result;
  }
  // Everything before `end`, which is left standing.
  std::string until(std::string_view end) {
    const std::size_t n = std::min(rest_.find_first_of(end), rest_.size());
    std::string result(rest_.substr(0, n));
    drop_to(rest_.data() + n);
    return result;
  }
  // A size expression, which ends before one of `end`.
  Expr expression(std::string_view end);
  std::string quoted();
  // `[` items separated by `separator` `]`.
  template <typename F>
  void list(F&& item, std::string_view separator = ",") {
    expect("[");
    while (!accept("]")) {
      item();
      if (!accept(separator) && !peek("]")) fail("expected '" + std::string(separator) + "' or ']'");
    }
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(Code::kInvalidArgument, "plan, line " + std::to_string(number_) + ": " + why + " at '" +
                                            escaped(rest_.substr(0, 40)) + "'");
  }

 private:
  void drop_to(const char* end) {
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    skip();
  }
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_;
  int number_;
};

// "..." with \n, \", \\ and \xNN.
std::string quote(std::string_view text);

}  // namespace ark
