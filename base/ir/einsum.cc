#include "base/ir/einsum.h"

#include <algorithm>

#include "base/error.h"

namespace ark {
namespace {

constexpr std::string_view kDots = "...";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(Code::kInvalidArgument, "the equation " + why);
}

// `term` with `axes` labels in the place of its dots.
std::string expanded(std::string term, std::size_t axes) {
  const std::size_t at = term.find(kDots);
  if (at == std::string::npos) return term;
  std::string labels;
  for (std::size_t i = axes; i > 0; --i) labels += static_cast<char>(i);
  return term.replace(at, kDots.size(), labels);
}

}  // namespace

EinsumLabels einsum_labels(std::string_view equation, const std::vector<int64_t>& ranks) {
  std::string text(equation);
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  EinsumLabels labels;
  std::string all;
  std::size_t dots = 0, start = 0;  // axes of the widest "..."
  const std::string terms = text.substr(0, arrow) + ",";
  for (std::size_t comma; (comma = terms.find(',', start)) != std::string::npos; start = comma + 1) {
    const std::string term = terms.substr(start, comma - start);
    const bool dotted = term.find(kDots) != std::string::npos;
    const std::size_t named = term.size() - (dotted ? kDots.size() : 0), operand = labels.operands.size();
    if (operand == ranks.size()) refuse("has more operands than the node");
    const auto rank = static_cast<std::size_t>(ranks[operand]);
    if (named > rank || (!dotted && named != rank)) refuse("has an operand of another rank");
    if (dotted) dots = std::max(dots, rank - named);
    all += labels.operands.emplace_back(expanded(term, rank - named));
  }
  if (labels.operands.size() != ranks.size()) refuse("has fewer operands than the node");
  if (arrow != std::string::npos) {
    labels.result = expanded(text.substr(arrow + 2), dots);
    for (const char label : labels.result)
      if (label > 8 && all.find(label) == std::string::npos)
        refuse("has a result with an axis that no operand has");
    return labels;
  }
  labels.result = expanded(std::string(kDots), dots);
  std::sort(all.begin(), all.end());
  for (const char label : all)
    if (label > 8 && std::count(all.begin(), all.end(), label) == 1) labels.result += label;
  return labels;
}

}  // namespace ark
