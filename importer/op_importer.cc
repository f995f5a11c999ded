#include "importer/op_importer.h"

#include "base/error.h"
#include "base/ir/shape_rules/rules.h"

namespace ark {
namespace {

using onnx::AttributeType;

// The attribute if present, of type `type` (or untyped, as IR version 1 wrote it).
const onnx::Attribute* typed(const OpContext& ctx, std::string_view name, AttributeType type,
                             const char* expected) {
  const onnx::Attribute* a = ctx.node.attribute(name);
  if (a && a->type != type) ctx.fail("attribute '" + std::string(name) + "' is not " + expected);
  return a;
}

}  // namespace

ValueId OpContext::input(std::size_t i) const {
  if (!has_input(i)) fail("input " + std::to_string(i) + " is missing");
  return inputs[i];
}

int OpContext::rank(std::size_t i) const {
  const Value& v = graph.value(input(i));
  if (!v.shape)
    unsupported("the rank of input " + std::to_string(i) + " '" + escaped(v.name) + "' is not known");
  return static_cast<int>(v.shape->size());
}

int64_t OpContext::axis(int64_t axis, int rank) const {
  const int64_t wrapped = axis < 0 ? axis + rank : axis;
  if (wrapped < 0 || wrapped >= rank)
    fail("axis " + std::to_string(axis) + " is out of range for rank " + std::to_string(rank));
  return wrapped;
}

int64_t OpContext::attr_int(std::string_view name, int64_t fallback) const {
  const onnx::Attribute* a = typed(*this, name, AttributeType::kInt, "an integer");
  return a ? a->i : fallback;
}

double OpContext::attr_float(std::string_view name, double fallback) const {
  const onnx::Attribute* a = typed(*this, name, AttributeType::kFloat, "a float");
  return a ? a->f : fallback;
}

std::string OpContext::attr_string(std::string_view name, std::string fallback) const {
  const onnx::Attribute* a = typed(*this, name, AttributeType::kString, "a string");
  return a ? a->s : fallback;
}

bool OpContext::attr_flag(std::string_view name) const {
  const int64_t value = attr_int(name, 0);
  if (value < 0 || value > 1)
    fail("attribute '" + std::string(name) + "' is " + std::to_string(value) + ", neither 0 nor 1");
  return value != 0;
}

std::string OpContext::attr_word(std::string_view name, std::initializer_list<std::string_view> words,
                                 std::string_view fallback) const {
  const std::string word = attr_string(name, std::string(fallback.empty() ? *words.begin() : fallback));
  std::string known;
  for (const std::string_view w : words) {
    if (w == word) return word;
    known += (known.empty() ? "" : ", ") + std::string(w.empty() ? "nothing" : w);
  }
  fail("attribute '" + std::string(name) + "' is '" + escaped(word, 40) + "', none of " + known);
}

std::vector<int64_t> OpContext::attr_ints(std::string_view name, std::vector<int64_t> fallback) const {
  const onnx::Attribute* a = typed(*this, name, AttributeType::kInts, "a list of integers");
  return a ? a->ints : fallback;
}

std::vector<double> OpContext::attr_floats(std::string_view name, std::vector<double> fallback) const {
  const onnx::Attribute* a = typed(*this, name, AttributeType::kFloats, "a list of floats");
  return a ? a->floats : fallback;
}

ValueId OpContext::constant_float(float value, DType dtype) {
  if (!is_floating(dtype)) unsupported("a floating constant of type " + std::string(name_of(dtype)));
  Tensor t = Tensor::empty(dtype, {});
  store_f32(dtype, t.data.get(), 0, 1, &value);
  return graph.add_constant(make_constant(std::move(t)));
}

ValueId OpContext::constant_ints(std::vector<int64_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, {n}, values)));
}

std::optional<std::vector<Expr>> OpContext::elements(std::size_t i) const {
  return shape_rules::elements_of(graph, input(i));
}

void OpContext::require_equal(const Expr& size, const Expr& wanted, const std::string& what) {
  if (size == wanted) return;
  if (size.constant() && wanted.constant()) fail(what + " is " + size.str() + ", not " + wanted.str());
  graph.assumptions.emplace_back(size, wanted);
}

void OpContext::fail(const std::string& why) const {
  throw Error(Code::kBadModel, "node " + label + ": " + why);
}
void OpContext::unsupported(const std::string& why) const {
  throw Error(Code::kUnsupported, "node " + label + ": " + why);
}

}  // namespace ark
