// A literal or regular expression, as tokenizer.json writes them: {"String": "..."} or {"Regex": "..."}.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/text/json_view.h"
#include "server/text/regex.h"

namespace ark::text {

class Pattern {
 public:
  explicit Pattern(const JsonView& json);
  std::vector<Span> find_all(std::string_view text, Budget& budget) const;
  std::string replace_all(std::string_view text, std::string_view replacement, Budget& budget) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

std::vector<Span> find_literal(std::string_view text, std::string_view literal);
std::string replace_spans(std::string_view text, const std::vector<Span>& spans,
                          std::string_view replacement);

}  // namespace ark::text
