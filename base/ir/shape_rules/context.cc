#include <algorithm>

#include "base/error.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
std::optional<Elements> elements_of(const Graph& graph, ValueId id) {
  if (id == kNoValue) return std::nullopt;
  const Value& value = graph.value(id);
  if (value.elements) return value.elements;
  const ConstantPtr& c = value.constant;
  if (!c || c->dims.size() > 1 || c->size() > kMaxElements) return std::nullopt;
  if (!is_integer(c->dtype) && c->dtype != DType::kBool) return std::nullopt;
  const Tensor tensor = materialise(*c);
  Elements elements;
  for (int64_t i = 0; i < tensor.size(); ++i) elements.emplace_back(tensor.integer(i));
  return elements;
}

std::optional<Expr> broadcast_size(const Expr& a, const Expr& b) {
  if (a == b || b.is_constant(1)) return a;
  if (a.is_constant(1)) return b;
  const auto ca = a.constant(), cb = b.constant();
  if (ca && cb) return std::nullopt;
  if (ca) return a;
  if (cb) return b;
  return max(a, b);
}

std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b) {
  Shape result = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  for (std::size_t back = 1; back <= shorter.size(); ++back) {
    const auto size = broadcast_size(result[result.size() - back], shorter[shorter.size() - back]);
    if (!size) return std::nullopt;
    result[result.size() - back] = *size;
  }
  return result;
}

void Context::fail(const std::string& why) const {
  // Kernels ask for a node without a name.
  throw Error(Code::kBadModel, node().name.empty() ? why : "node " + escaped(node().name) + ": " + why);
}

const Value& Context::in(std::size_t i) const {
  if (!has(i)) fail("input " + std::to_string(i) + " is missing");
  return graph_.value(node().inputs[i]);
}

std::optional<int64_t> Context::rank(std::size_t i) const {
  const std::optional<Shape>& s = shape(i);
  return s ? std::optional(static_cast<int64_t>(s->size())) : std::nullopt;
}

std::optional<int64_t> Context::count(std::size_t i) const {
  return has(i) && shape(i) ? element_count(*shape(i)).constant() : std::nullopt;
}

std::optional<Elements> Context::elements(std::size_t i) const {
  return has(i) ? elements_of(graph_, node().inputs[i]) : std::nullopt;
}

std::optional<Tensor> Context::constant(std::size_t i) const {
  if (!has(i) || !in(i).constant || !in(i).constant->is_small()) return std::nullopt;
  return materialise(*in(i).constant);
}

void Context::out(std::size_t i, DType dtype, std::optional<Shape> shape) {
  if (i >= outputs() || node().outputs[i] == kNoValue) return;
  if (shape) {
    check_axes(std::ssize(*shape));
    for (const Expr& dim : *shape)
      if (const auto d = dim.constant(); d && *d < 0) fail("a size would be " + std::to_string(*d));
  }
  Value& value = graph_.value(node().outputs[i]);
  value.dtype = dtype;
  // A known shape is never forgotten: the file may have declared what inference cannot see.
  if (shape || !value.shape) value.shape = std::move(shape);
}

void Context::out_elements(Elements elements) {
  if (outputs() == 0 || node().outputs[0] == kNoValue) return;
  Value& value = graph_.value(node().outputs[0]);
  if (static_cast<int64_t>(elements.size()) <= kMaxElements && value.shape && value.shape->size() <= 1)
    value.elements = std::move(elements);
}

Expr Context::fresh(std::size_t output, std::size_t axis, std::string_view suffix) const {
  if (output >= outputs() || node().outputs[output] == kNoValue)
    return Expr::symbol("unused." + std::string(suffix));
  const ValueId id = node().outputs[output];
  if (const auto& known = graph_.value(id).shape; known && axis < known->size()) return (*known)[axis];
  return Expr::symbol(std::string(name_of(node().op)) + "_" + std::to_string((*graph_.symbols)++) + "." +
                      std::string(suffix));
}

void Context::check_axes(int64_t count) const {
  if (count > Limits{}.max_rank)
    fail("would have " + std::to_string(count) + " axes; the limit is " + std::to_string(Limits{}.max_rank));
}

Shape Context::fresh_shape(std::size_t output, int64_t rank, std::string_view suffix) const {
  check_axes(rank);  // which an input's declared size may say
  Shape shape;
  for (int64_t i = 0; i < rank; ++i)
    shape.push_back(fresh(output, static_cast<std::size_t>(i), std::string(suffix) + std::to_string(i)));
  return shape;
}

bool Context::is_outer_symbol(const std::string& name) const {
  std::set<std::string> symbols;
  const auto collect = [&](ValueId id) {
    if (const auto& shape = graph_.value(id).shape)
      for (const Expr& dim : *shape) dim.collect_symbols(symbols);
  };
  for (const ValueId id : graph_.inputs) collect(id);
  for (const auto& [outer, inner] : graph_.captured) collect(inner);
  return symbols.contains(name);
}

Expr Context::same(const Expr& a, const Expr& b, std::string_view what) {
  if (a == b) return a;
  const auto ca = a.constant(), cb = b.constant();
  if (ca && cb) fail(std::string(what) + " must be equal, but are " + a.str() + " and " + b.str());
  const auto pair = std::make_pair(a, b);
  auto& known = graph_.assumptions;
  if (std::find(known.begin(), known.end(), pair) == known.end()) known.push_back(pair);
  return cb ? b : a;
}

Expr Context::broadcast(const Expr& a, const Expr& b) {
  const auto size = broadcast_size(a, b);
  if (!size) fail("sizes " + a.str() + " and " + b.str() + " do not broadcast");
  return *size;
}

Shape Context::broadcast(const Shape& a, const Shape& b) const {
  const auto shape = broadcast_shape(a, b);
  if (!shape) fail("sizes " + str(a) + " and " + str(b) + " do not broadcast");
  return *shape;
}

int64_t Context::axis(int64_t axis, int64_t rank) const {
  if (axis < -rank || axis >= std::max<int64_t>(rank, 1))
    fail("axis " + std::to_string(axis) + " is outside a tensor of rank " + std::to_string(rank));
  return axis < 0 ? axis + rank : axis;
}

void Context::check_rank(std::size_t i, int64_t least) const {
  if (const auto r = rank(i); r && *r < least)
    fail("input " + std::to_string(i) + " has rank " + std::to_string(*r) + ", needs at least " +
         std::to_string(least));
}

void same_as_first(Context& c) { c.out(0, c.dtype(0), c.shape(0)); }

}  // namespace ark::shape_rules
