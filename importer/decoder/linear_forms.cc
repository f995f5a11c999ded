#include "importer/decoder/linear_forms.h"

#include <algorithm>

#include "base/ir/keys.h"

namespace ark::decoder {
namespace {

// For each element of `to`, the element of `from` that broadcasts to it; nullopt if they do not broadcast.
std::optional<std::vector<int64_t>> broadcast(const Dims& from, const Dims& to) {
  if (from.size() != to.size()) return std::nullopt;
  std::vector<int64_t> index(static_cast<std::size_t>(element_count(to)), 0);
  int64_t inner = 1, stride = 1;
  for (std::size_t i = to.size(); i-- > 0;) {
    if (from[i] != to[i] && from[i] != 1) return std::nullopt;
    for (std::size_t e = 0; e < index.size() && from[i] != 1; ++e)
      index[e] += static_cast<int64_t>(e) / inner % to[i] * stride;
    inner *= to[i];
    stride *= from[i];
  }
  return index;
}

}  // namespace

const Forms& LinearForms::of(ValueId id) {
  const auto it = known_.find(id);
  if (it != known_.end()) return it->second;
  Forms forms = compute(id);
  return known_[id] = std::move(forms);
}

Forms LinearForms::itself(ValueId id) const {
  Forms forms(static_cast<std::size_t>(element_count(out_.dims(id))));
  for (std::size_t i = 0; i < forms.size(); ++i) {
    forms[i].count = 1;
    forms[i].terms[0].base = {id, static_cast<int64_t>(i)};
  }
  return forms;
}

Forms LinearForms::compute(ValueId id) {
  const Node* node = out_.graph.producer(id);
  std::optional<Forms> forms;
  if (node && is_movement(node->op)) {
    forms = moved_row<Forms>(out_.graph, *node, id, [&](ValueId in) -> const Forms& { return of(in); });
  } else if (node && node->op == Op::kNeg) {
    forms = of(node->inputs[0]);
    for (Form& f : *forms)
      for (Term& t : f.terms) t.factor = -t.factor;
  } else if (node && (node->op == Op::kAdd || node->op == Op::kSub)) {
    forms = sum(id, *node);
  } else if (node && (node->op == Op::kMul || node->op == Op::kDiv)) {
    forms = product(id, *node);
  }
  return forms ? std::move(*forms) : itself(id);
}

// Only sums in which tables take part: others (residuals, biases) are bases.
std::optional<Forms> LinearForms::sum(ValueId id, const Node& node) {
  const ValueId a = node.inputs[0], b = node.inputs[1];
  if (out_.is_constant(a) || out_.is_constant(b)) return std::nullopt;
  const Dims to = out_.dims(id);
  const auto ia = broadcast(out_.dims(a), to), ib = broadcast(out_.dims(b), to);
  if (!ia || !ib) return std::nullopt;
  const Forms fa = of(a), fb = of(b);
  const auto tabled = [](const Form& f) { return f.has_table(); };
  if (std::none_of(fa.begin(), fa.end(), tabled) || std::none_of(fb.begin(), fb.end(), tabled))
    return std::nullopt;
  Forms forms;
  for (std::size_t e = 0; e < ia->size(); ++e) {
    const Form &x = fa[(*ia)[e]], &y = fb[(*ib)[e]];
    if (x.count != 1 || y.count != 1) return std::nullopt;
    Form f{{x.terms[0], y.terms[0]}, 2};
    if (node.op == Op::kSub) f.terms[1].factor = -f.terms[1].factor;
    forms.push_back(f);
  }
  return forms;
}

std::optional<double> LinearForms::scalar(ValueId id) const {
  const ConstantPtr& c = out_.graph.value(id).constant;
  if (!c || c->size() != 1 || !is_floating(c->dtype)) return std::nullopt;
  return materialise(*c).real(0);
}

std::optional<std::vector<std::pair<ValueId, int64_t>>> LinearForms::columns(ValueId id) {
  if (out_.is_constant(id)) return std::nullopt;
  std::vector<std::pair<ValueId, int64_t>> columns;
  for (const Origin& o : origins_.of(id)) {
    const Node* gather = out_.graph.producer(o.value);
    const bool table = gather && gather->op == Op::kGather && gather->inputs[1] == out_.positions &&
                       out_.is_constant(gather->inputs[0]) && gather->attributes.get(key::kAxis) == 0;
    if (!table) return std::nullopt;
    columns.emplace_back(o.value, o.index);
  }
  return columns;
}

std::optional<Forms> LinearForms::product(ValueId id, const Node& node) {
  for (const std::size_t other : {std::size_t{1}, std::size_t{0}}) {
    if (node.op == Op::kDiv && other == 0) continue;
    const ValueId x = node.inputs[1 - other], y = node.inputs[other];
    if (out_.is_constant(x)) continue;
    const auto index = broadcast(out_.dims(x), out_.dims(id));
    if (!index) continue;
    if (const auto c = scalar(y); c && *c != 0) {
      Forms forms = of(x);
      for (Form& f : forms)
        for (Term& t : f.terms) t.factor = node.op == Op::kDiv ? t.factor / *c : t.factor * *c;
      return forms;
    }
    const auto table = node.op == Op::kMul ? columns(y) : std::nullopt;
    const auto at = table ? broadcast(out_.dims(y), out_.dims(id)) : std::nullopt;
    if (!at) continue;
    const Forms fx = of(x);
    Forms forms;
    bool fits = true;
    for (std::size_t e = 0; e < at->size() && fits; ++e) {
      Form f = fx[(*index)[e]];
      fits = f.count == 1 && !f.has_table();
      std::tie(f.terms[0].table, f.terms[0].column) = (*table)[(*at)[e]];
      forms.push_back(f);
    }
    if (fits) return forms;
  }
  return std::nullopt;
}

std::optional<Scaled> as_scaled(const Forms& forms) {
  Scaled scaled;
  for (const Form& f : forms) {
    if (f.count != 1 || f.has_table() || f.terms[0].factor != forms[0].terms[0].factor) return std::nullopt;
    scaled.elements.push_back(f.terms[0].base);
  }
  scaled.factor = forms.empty() ? 1 : forms[0].terms[0].factor;
  return scaled;
}

}  // namespace ark::decoder
