#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "importer/builder.h"

namespace ark {
namespace {

bool is_operator(char c) { return std::string_view(" +-*/(),").find(c) != std::string_view::npos; }
bool is_bare(const std::string& name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), is_operator);
}

// A name that Expr can print and parse back.
std::string sanitised(std::string_view name) {
  std::string out;
  for (const unsigned char c : name.substr(0, 64))
    out += std::isalnum(c) || c == '_' || c == '.' ? static_cast<char>(c) : '_';
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out[0]))) out.insert(0, "n");
  return out;
}

}  // namespace

InputSizes::InputSizes(const onnx::Graph& graph, const std::map<std::string, int64_t>& fixed,
                       input_reach::InputAxes misnamed)
    : misnamed_(std::move(misnamed)) {
  for (const auto& [name, size] : fixed) by_parameter_.emplace(name, Named{Expr(size), ""});
  is_shared_ = std::ranges::any_of(graph.inputs, [](const onnx::ValueInfo& input) {
    return !input.type.dims.empty() && is_integer(dtype_numbered(input.type.element_type));
  });
  for (const onnx::ValueInfo& input : graph.inputs)
    for (const onnx::Dimension& d : input.type.dims)
      if (is_bare(d.parameter)) symbol(input.name, d.parameter);
}

std::string InputSizes::unique(std::string wanted) {
  std::string name = wanted;
  for (int n = 2; taken_.contains(name); ++n) name = wanted + "_" + std::to_string(n);
  taken_[name] = true;
  return name;
}

Expr InputSizes::symbol(const std::string& input, const std::string& parameter) {
  const auto fresh = [&] { return Expr::symbol(unique(sanitised(parameter))); };
  const auto it = by_parameter_.find(parameter);
  if (it == by_parameter_.end())
    return by_parameter_.emplace(parameter, Named{fresh(), is_shared_ ? "" : input}).first->second.size;
  if (it->second.owner.empty() || it->second.owner == input) return it->second.size;
  const auto other = others_.find({input, parameter});
  return other != others_.end() ? other->second
                                : others_.emplace(std::pair(input, parameter), fresh()).first->second;
}

// "past + sequence" of an attention mask: exporters state such sums, and the engine checks them at every
// call.
std::optional<Expr> InputSizes::sum_of_known(const std::string& parameter) {
  try {
    const Expr parsed = Expr::parse(parameter);
    const std::set<std::string> symbols = parsed.symbols();
    if (symbols.empty()) return std::nullopt;
    std::map<std::string, Expr> replacements;
    for (const std::string& s : symbols) {
      const auto it = by_parameter_.find(s);
      if (it == by_parameter_.end()) return std::nullopt;
      replacements.emplace(s, it->second.size);
    }
    const Expr size = parsed.substitute(replacements);
    const auto least = size.lower_bound();
    return least && *least >= 0 ? std::optional(size) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // no expression of ours: a name like any other
  }
}

Expr InputSizes::size(const onnx::ValueInfo& input, std::size_t axis) {
  const onnx::Dimension& d = input.type.dims[axis];
  if (d.value >= 0) return d.value;
  if (d.parameter.empty() || misnamed_.contains({input.name, axis}))
    return Expr::symbol(unique(sanitised(input.name) + "." + std::to_string(axis)));
  if (!by_parameter_.contains(d.parameter))
    if (const auto sum = sum_of_known(d.parameter)) by_parameter_.emplace(d.parameter, Named{*sum, ""});
  return symbol(input.name, d.parameter);
}

}  // namespace ark
