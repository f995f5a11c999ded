// If, Loop, Scan: types from the subgraphs' outputs, sizes where both sides (or all trips) agree.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

// Symbols of a subgraph's own data mean nothing outside; so only constant sizes and those of values from
// outside are kept, and others become fresh.
bool known_outside(Context& c, const Expr& e) {
  for (const std::string& s : e.symbols())
    if (!c.is_outer_symbol(s)) return false;
  return true;
}

// The shape of an output; at axis `inserted`, if any, stands what is collected along.
std::optional<Shape> lifted(Context& c, std::size_t output, const std::optional<Shape>& inner,
                            std::optional<std::size_t> inserted = std::nullopt) {
  if (!inner) return std::nullopt;
  Shape y = *inner;
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!known_outside(c, y[i]))
      y[i] = c.fresh(output, i + (inserted && i >= *inserted),
                     "d" + std::to_string(output) + "_" + std::to_string(i));
  return y;
}

const Value& result(Context& c, std::size_t subgraph, std::size_t i) {
  const Graph& g = *c.node().subgraphs.at(subgraph);
  if (i >= g.outputs.size()) c.fail("a subgraph has fewer outputs than needed");
  return g.value(g.outputs[i]);
}

void if_(Context& c) {
  if (c.node().subgraphs.size() != 2) c.fail("If needs two branches");
  if (c.count(0).value_or(1) != 1) c.fail("its condition must be one element, not " + str(*c.shape(0)));
  for (std::size_t i = 0; i < c.outputs(); ++i) {
    const Value &a = result(c, 0, i), &b = result(c, 1, i);
    if (a.dtype != b.dtype)
      c.fail("branches give types " + std::string(name_of(a.dtype)) + " and " +
             std::string(name_of(b.dtype)));
    std::optional<Shape> y;
    if (a.shape && b.shape && a.shape->size() == b.shape->size()) {
      y = lifted(c, i, a.shape);
      for (std::size_t d = 0; d < y->size(); ++d)
        if (!((*a.shape)[d] == (*b.shape)[d]))
          (*y)[d] = c.fresh(i, d, "d" + std::to_string(i) + "_" + std::to_string(d));
    }
    c.out(i, a.dtype, y);
  }
}

// Carried state may change its size from trip to trip: what differs from the first value is not known.
void loop(Context& c) {
  const std::size_t carried = c.inputs() >= 2 ? c.inputs() - 2 : 0;
  for (std::size_t i = 0; i < c.outputs(); ++i) {
    const Value& v = result(c, 0, i + 1);
    if (i < carried) {
      std::optional<Shape> y = c.shape(i + 2);
      if (!v.shape || !y || v.shape->size() != y->size()) y = std::nullopt;
      for (std::size_t d = 0; y && d < y->size(); ++d)
        if (!((*v.shape)[d] == (*y)[d]))
          (*y)[d] = c.fresh(i, d, "s" + std::to_string(i) + "_" + std::to_string(d));
      c.out(i, v.dtype, y);
      continue;
    }
    std::optional<Shape> y = lifted(c, i, v.shape, 0);
    if (y) y->insert(y->begin(), c.fresh(i, 0, "trips"));
    c.out(i, v.dtype, y);
  }
}

void scan(Context& c) {
  const auto scans = static_cast<std::size_t>(c.attributes().get(key::kNumScanInputs));
  if (scans == 0 || scans > c.inputs()) c.fail("num_scan_inputs is out of range");
  const std::size_t state = c.inputs() - scans;
  const auto& length_of = c.shape(state);
  const auto axes = c.attributes().get_or(key::kScanInputAxes, std::vector<int64_t>(scans, 0));
  const auto length = [&](std::size_t i) {
    const Shape& x = *c.shape(state + i);
    return x[static_cast<std::size_t>(c.axis(axes.at(i), static_cast<int64_t>(x.size())))];
  };
  for (std::size_t i = 1; i < scans; ++i)
    if (length_of && c.shape(state + i)) c.same(length(0), length(i), "lengths of what Scan goes along");
  for (std::size_t i = 0; i < c.outputs(); ++i) {
    const Value& v = result(c, 0, i);
    if (i < state) {
      c.out(i, v.dtype, c.shape(i));
      continue;
    }
    std::optional<Shape> y;
    if (v.shape && length_of) {
      const auto out_axes =
          c.attributes().get_or(key::kScanOutputAxes, std::vector<int64_t>(c.outputs() - state, 0));
      const int64_t at = c.axis(out_axes.at(i - state), static_cast<int64_t>(v.shape->size()) + 1);
      y = lifted(c, i, v.shape, static_cast<std::size_t>(at));
      y->insert(y->begin() + at, length(0));
    }
    c.out(i, v.dtype, y);
  }
}

}  // namespace

std::span<const Entry> control_rules() {
  static constexpr Entry kRules[] = {{Op::kIf, if_}, {Op::kLoop, loop}, {Op::kScan, scan}};
  return kRules;
}

}  // namespace ark::shape_rules
