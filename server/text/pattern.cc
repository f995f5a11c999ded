#include "server/text/pattern.h"

#include "server/text/unicode.h"

namespace ark::text {

Pattern::Pattern(const JsonView& json) {
  if (json.is_string()) {
    literal_ = json.string();
  } else if (const JsonView literal = json.at("String"); !literal.is_null()) {
    literal_ = literal.string();
  } else {
    const JsonView regex = json.at("Regex");
    regex_.emplace(regex.string(), regex.place());
  }
}

std::vector<Span> Pattern::find_all(std::string_view text, Budget& budget) const {
  if (regex_) return regex_->find_all(text, budget);
  budget.charge_reading(text.size());
  return find_literal(text, literal_);
}

std::vector<Span> find_literal(std::string_view text, std::string_view literal) {
  std::vector<Span> spans;
  if (literal.empty()) return spans;
  for (std::size_t at = find_text(text, literal); at != std::string_view::npos;
       at = find_text(text, literal, at + literal.size()))
    spans.push_back({at, at + literal.size()});
  return spans;
}

std::string Pattern::replace_all(std::string_view text, std::string_view replacement, Budget& budget) const {
  if (!regex_ && !literal_.empty()) {  // without a list of the places
    budget.charge_reading(text.size());
    TextBuilder out(budget, text.size());
    std::size_t from = 0;
    for (std::size_t at = find_text(text, literal_); at != std::string_view::npos;
         at = find_text(text, literal_, from)) {
      out += text.substr(from, at - from);
      out += replacement;
      from = at + literal_.size();
    }
    return (out += text.substr(from)).take();
  }
  const std::vector<Span> spans = find_all(text, budget);
  budget.charge_bytes(text.size() + spans.size() * replacement.size());
  return replace_spans(text, spans, replacement);
}

std::string replace_spans(std::string_view text, const std::vector<Span>& spans,
                          std::string_view replacement) {
  std::string out;
  out.reserve(text.size() + spans.size() * replacement.size());
  std::size_t from = 0;
  for (const Span& span : spans) {
    out += text.substr(from, span.begin - from);
    out += replacement;
    from = span.end;
  }
  return out += text.substr(from);
}

}  // namespace ark::text
