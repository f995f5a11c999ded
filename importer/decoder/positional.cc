// Free values as operands of row-wise nodes: constants, or functions of the position alone that become
// tables.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "importer/decoder/quantized_weights.h"
#include "importer/decoder/rewrite.h"
#include "importer/widening.h"

namespace ark::decoder {
namespace {

Layout without_rows(const Layout& layout) {
  Layout result;
  for (const Axis& axis : layout) result.push_back(feature_axis(features(axis)));
  return result;
}

Dims all_dims(const Layout& layout) {
  Dims dims;
  for (const Axis& axis : layout) dims.push_back(features(axis));
  return dims;
}

// Visits the elements of a value in row-major order as (position, feature).
class Elements {
 public:
  Elements(const Layout& layout, const Step& step) : step_(step) {
    for (const Atom& a : flatten(layout)) {
      const int64_t n = a.kind == AtomKind::kBatch      ? step.batch
                        : a.kind == AtomKind::kSequence ? step.sequence
                        : a.kind == AtomKind::kPast     ? step.past
                        : a.kind == AtomKind::kContext  ? step.total()
                                                        : a.size.constant().value();
      atoms_.push_back({a.kind, n});
      count_ *= n;
    }
  }
  int64_t count() const { return count_; }
  std::pair<int64_t, int64_t> at(int64_t element) const {
    int64_t position = 0, feature = 0, inner = 1;
    for (auto a = atoms_.rbegin(); a != atoms_.rend(); ++a) {
      const int64_t i = element % a->second;
      element /= a->second;
      if (a->first == AtomKind::kFeature)
        feature += i * inner, inner *= a->second;
      else if (a->first != AtomKind::kBatch)
        position = a->first == AtomKind::kSequence ? step_.past + i : i;
    }
    return {position, feature};
  }

 private:
  Step step_;
  std::vector<std::pair<AtomKind, int64_t>> atoms_;
  int64_t count_ = 1;
};

std::vector<Step> check_steps(int64_t length, bool has_past) {
  const std::vector<Step> all =
      has_past
          ? std::vector<Step>{{2, 3, 5},          {3, 1, 0}, {1, 1, length - 1}, {2, 4, 0},
                              {1, 5, length / 2}, {2, 1, 7}, {1, 2, length / 3}}
          : std::vector<Step>{{2, 3, 0}, {1, 1, 0}, {3, 7, 0}, {1, std::min<int64_t>(length / 2, 256), 0}};
  std::vector<Step> fit;
  for (const Step& s : all)
    if (s.total() <= length && s.past >= 0 && s.sequence > 0) fit.push_back(s);
  return fit;
}

// Short steps, and long ones: values may turn over at a length (Where(total > 4096, a, b)).
std::vector<Step> constant_steps(int64_t length, bool has_past) {
  std::vector<Step> steps{{1, 1, 0}, {3, 2, 9}, {1, 4, 1}};
  for (const int64_t n : {length / 4, length / 2, length})
    if (n > 1) steps.push_back(has_past ? Step{1, 1, n - 1} : Step{1, n, 0});
  return steps;
}

// The step at which every position below `length` is a row.
Step base_step(const Layout& layout, int64_t length, bool has_past) {
  if (has_kind(layout, AtomKind::kSequence) || !has_past) return {1, length, 0};
  if (has_kind(layout, AtomKind::kContext)) return {1, 1, length - 1};
  return {1, 1, length};
}

void put(Tensor& table, int64_t at, const Tensor& from, int64_t element) {
  if (is_floating(from.dtype))
    table.as<float>()[at] = static_cast<float>(from.real(element));
  else if (from.dtype == DType::kBool)
    table.as<uint8_t>()[at] = from.integer(element) != 0;
  else
    table.as<int64_t>()[at] = from.integer(element);
}
bool equal(const Tensor& table, int64_t at, const Tensor& from, int64_t element) {
  const double a = table.real(at), b = from.real(element);
  return a == static_cast<double>(is_floating(from.dtype) ? static_cast<float>(b) : b) || (a != a && b != b);
}

// f if table[p] = p + f for all p.
std::optional<int64_t> offset_of(const Tensor& table) {
  if (is_floating(table.dtype) || table.dtype == DType::kBool || table.size() != table.dims[0])
    return std::nullopt;
  for (int64_t i = 0; i < table.size(); ++i)
    if (table.integer(i) != table.integer(0) + i) return std::nullopt;
  return table.integer(0);
}

bool all_rows_equal(const Tensor& table) {
  const int64_t bytes = table.dims[0] ? table.bytes() / table.dims[0] : 0;
  for (int64_t i = 1; bytes > 0 && i < table.dims[0]; ++i)
    if (std::memcmp(table.data.get(), table.data.get() + i * bytes, static_cast<std::size_t>(bytes)) != 0)
      return false;
  return true;
}

DType table_type(DType type) {
  return is_floating(type) ? DType::kF32 : type == DType::kBool ? DType::kBool : DType::kI64;
}

const char* const kOtherSize = "a value computed from positions has another size than its shape says";

void fill_table(Tensor& table, const Tensor& values, const Layout& layout, const Step& step,
                const Node& node) {
  const Elements elements(layout, step);
  if (elements.count() != values.size()) refuse(node, kOtherSize);
  for (int64_t i = 0; i < values.size(); ++i) {
    const auto [position, feature] = elements.at(i);
    if (position < table.dims[0]) put(table, position * table.dims[1] + feature, values, i);
  }
}

// Row p is the value at position p: [length, features].
Tensor make_table(Rewrite& r, const Node& node, ValueId id, const Layout& layout) {
  const Step base = base_step(layout, r.length, r.roles.has_past), possible = r.probe.possible(base);
  Tensor table = Tensor::zeros(table_type(r.plain.value(id).dtype), {r.length, features(layout)});
  if (possible == base) {
    fill_table(table, r.probe.value(id, base), layout, base, node);
  } else if (r.roles.has_past && possible.sequence > 0 && has_kind(layout, AtomKind::kSequence)) {
    // A file with a fixed number of new tokens: position by position.
    for (Step step = possible; step.past < r.length; step.past += step.sequence) {
      fill_table(table, r.probe.value(id, step), layout, step, node);
      if (step.past % 256 == 255) r.probe.forget();
    }
  } else {
    const Step near = r.probe.possible({base.batch, base.sequence, base.past});
    if (near.total() != base.total())
      refuse(node, "depends on positions, and the file fixes the lengths of a step");
    fill_table(table, r.probe.value(id, near), layout, near, node);
  }
  for (const Step& asked : check_steps(r.length, r.roles.has_past)) {
    const Step step = r.probe.possible(asked);
    if (step.total() > r.length) continue;
    const Tensor now = r.probe.value(id, step);
    const Elements places(layout, step);
    if (places.count() != now.size()) refuse(node, kOtherSize);
    for (int64_t i = 0; i < now.size(); ++i) {
      const auto [position, feature] = places.at(i);
      if (!equal(table, position * table.dims[1] + feature, now, i))
        refuse(node, "operand " + escaped(r.plain.value(id).name) +
                         " is no function of the position alone (it differs at position " +
                         std::to_string(position) + " with batch " + std::to_string(step.batch) + ", " +
                         std::to_string(step.sequence) + " new and " + std::to_string(step.past) +
                         " cached tokens)");
    }
  }
  return table;
}

}  // namespace

ConstantPtr Rewrite::quantized(const Node& node) {
  const ConstantPtr found = quantized_weight(plain, node);
  if (!found) return nullptr;
  const Quantized& q = *found->quantized;
  auto& alike =
      quantized_[{payload_place(*q.codes), q.codes->offset, payload_place(*q.scales), q.scales->offset}];
  for (const auto& known : alike) {
    if (!same_payload(*known, q)) continue;
    auto shared = std::make_shared<Constant>(*found);
    shared->quantized = known;
    return shared;
  }
  alike.push_back(found->quantized);
  return found;
}

ConstantPtr Rewrite::stored(ValueId id) {
  return stored_constant(plain, id, [&](const Node& node) {
    return node.op == Op::kDequantizeLinear ? quantized(node) : nullptr;
  });
}

ConstantPtr Rewrite::constant(ValueId id) {
  if (ConstantPtr weights = stored(id)) return weights;
  const Tensor first = probe.value(id, probe.possible({2, 3, 5}));
  if (varies[id])
    for (const Step& step : constant_steps(length, roles.has_past))
      if (!(first == probe.value(id, probe.possible(step)))) return nullptr;
  return make_constant(first, plain.value(id).name);
}

ValueId Rewrite::table_rows(const Tensor& table) {
  for (const auto& [known, rows] : table_contents_)
    if (known == table) return rows;
  const ValueId rows =
      out.emit(Op::kGather, {out.constant(table, "by_position"), out.positions}, {{key::kAxis, 0}});
  table_contents_.emplace_back(table, rows);
  return rows;
}

Rows Rewrite::tabulated(const Node& node, ValueId id, const Layout& layout) {
  const auto key = std::make_pair(id, str(layout));
  if (const auto it = tables_.find(key); it != tables_.end()) return it->second;
  if (has_kind(layout, AtomKind::kContext) && has_kind(layout, AtomKind::kSequence))
    refuse(node, "an operand varies over new tokens and over the context at once");
  if (auto rows = lifted(node, id); rows && rows->layout == layout) return tables_[key] = *rows;
  const Tensor table = make_table(*this, node, id, layout);
  Rows rows{layout, kNoValue, false};
  if (all_rows_equal(table)) {
    Tensor one = Tensor::zeros(table.dtype, all_dims(layout));
    if (one.bytes() > 0)  // else there is no memory, not even to copy nothing from
      std::memcpy(one.data.get(), table.data.get(), static_cast<std::size_t>(one.bytes()));
    if (plain.value(id).dtype == DType::kI32 && one.dtype == DType::kI64) {
      const Tensor wide = one;
      one = Tensor::zeros(DType::kI32, wide.dims);
      for (int64_t i = 0; i < wide.size(); ++i) one.as<int32_t>()[i] = static_cast<int32_t>(wide.integer(i));
    }
    rows = {without_rows(layout), out.constant(one), false};
  } else if (const auto offset = offset_of(table)) {
    const DType type = plain.value(id).dtype;
    rows.tokens = type == DType::kI32
                      ? out.positions
                      : out.emit(Op::kCast, {out.positions}, {{key::kTo, static_cast<int64_t>(type)}});
    if (*offset != 0) {
      Tensor c = Tensor::zeros(type, {});
      if (type == DType::kI32)
        c.as<int32_t>()[0] = static_cast<int32_t>(*offset);
      else
        c.as<int64_t>()[0] = *offset;
      rows.tokens = out.emit(Op::kAdd, {rows.tokens, out.constant(c)});
    }
    rows.tokens = out.reshape(rows.tokens, token_dims(layout));
  } else {
    rows.tokens = out.reshape(table_rows(table), token_dims(layout));
  }
  return tables_[key] = rows;
}

// A table of the file read at position + c stays that table; movement and casts of its rows follow.
std::optional<Rows> Rewrite::lifted(const Node& at, ValueId id) {
  const Node* node = plain.producer(id);
  if (!node) return std::nullopt;
  if (node->op != Op::kGather) {
    const bool cast = node->op == Op::kCast && is_floating(plain.value(id).dtype) &&
                      is_floating(plain.value(node->inputs[0]).dtype);
    if (!cast && !is_movement(node->op)) return std::nullopt;
    if (node->op == Op::kConcat || node->op == Op::kSplit) return std::nullopt;
    const auto inner = lifted(at, node->inputs[0]);
    if (!inner || cast) return inner;
    auto results = moved(*this, *node, *inner);
    if (!results || results->empty()) return std::nullopt;
    return (*results)[0];
  }
  const ConstantPtr table = stored(node->inputs[0]);
  if (!table || node->attributes.get(key::kAxis) != 0 || table->dims.size() < 2 || !is_floating(table->dtype))
    return std::nullopt;
  const auto index_layout = layout_of(*plain.value(node->inputs[1]).shape, roles.sizes);
  if (!index_layout || features(*index_layout) != 1 || !has_rows(*index_layout)) return std::nullopt;
  const auto offset = offset_of(make_table(*this, at, node->inputs[1], *index_layout));
  const int64_t rows = table->dims[0];
  if (!offset || *offset < 0 || *offset >= rows) return std::nullopt;
  ConstantPtr data = *offset == 0 ? table : sliced(table, 0, *offset, rows);
  if (!data) return std::nullopt;
  Rows result{*index_layout, kNoValue, false};
  Dims dims = token_dims(*index_layout);
  for (std::size_t i = 1; i < data->dims.size(); ++i) {
    result.layout.push_back(feature_axis(data->dims[i]));
    dims.push_back(data->dims[i]);
  }
  const ValueId gathered = out.emit(Op::kGather, {out.constant(data), out.positions}, {{key::kAxis, 0}});
  result.tokens = out.reshape(out.widened(gathered), dims);
  evidence.push_back("position table of " + std::to_string(rows) + " rows, read at position" +
                     (*offset ? " + " + std::to_string(*offset) : ""));
  return result;
}

Rows Rewrite::operand(const Node& node, ValueId id, const Layout& beside) {
  if (const Rows* known = rows(id)) return *known;
  if (!is_free(id)) refuse(node, "uses attention scores outside attention");
  const Shape& dims = shape(node, id);
  Layout layout(dims.size());
  for (std::size_t back = 0; back < dims.size(); ++back) {
    const std::size_t i = dims.size() - 1 - back;
    const Axis* other = back < beside.size() ? &beside[beside.size() - 1 - back] : nullptr;
    if (dims[i].is_constant(1)) {  // a fixed batch or a fixed single token is a row axis beside one
      if (varies[id] && other && has_rows(*other) && size(*other).is_constant(1)) layout[i] = *other;
      continue;
    }
    if (other && !other->empty() && same_size(dims[i], size(*other), roles.sizes))
      layout[i] = *other;
    else if (const auto axis = axis_of(dims[i], roles.sizes))
      layout[i] = *axis;
    else
      refuse(node,
             "operand " + escaped(plain.value(id).name) + " has a size of unknown meaning: " + dims[i].str());
  }
  const bool fixed = !varies[id];
  if (fixed || !has_rows(layout)) {
    const ConstantPtr value = constant(id);
    if (!value)
      refuse(node, "operand " + escaped(plain.value(id).name) + " depends on the lengths of the step");
    Layout features_only;
    for (const int64_t d : value->dims) features_only.push_back(feature_axis(d));
    // Widened by the file: only products and look-ups read 16 bits beside f32.
    const bool widened = plain.value(id).dtype == DType::kF32 && value->dtype != DType::kF32;
    return {features_only, widened ? out.constant_f32(value) : out.constant(value), false};
  }
  return tabulated(node, id, layout);
}

ValueId Rewrite::conform(const Rows& x, const Layout& to) {
  Dims dims;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (!is_kept(to[i])) continue;
    const std::size_t back = to.size() - i;
    dims.push_back(back <= x.layout.size() ? features(x.layout[x.layout.size() - back]) : 1);
  }
  if (out.is_constant(x.tokens)) {  // leading 1s mean nothing
    std::size_t first = 0;
    while (first < dims.size() && dims[first] == 1) ++first;
    dims.erase(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return out.reshape(x.tokens, dims);
}

}  // namespace ark::decoder
