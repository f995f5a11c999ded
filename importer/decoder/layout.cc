#include "importer/decoder/layout.h"

#include <algorithm>

#include "base/error.h"

namespace ark::decoder {
namespace {

// a / b where it divides exactly.
std::optional<Expr> quotient(const Expr& a, const Expr& b) {
  if (b.is_constant(0)) return std::nullopt;
  const Expr q = floordiv(a, b);
  if (q * b == a) return q;
  return std::nullopt;
}

bool is_one(const Expr& e) { return e.is_constant(1); }

// Takes atoms from the front of `rest` until their product is `dim`; splits a feature atom if it must.
std::optional<Axis> take(std::vector<Atom>& rest, const Expr& dim) {
  Axis axis;
  if (is_one(dim)) {  // an atom of size 1 (a fixed batch) keeps its place if it can
    if (!rest.empty() && is_row(rest.back()) && is_one(rest.back().size)) {
      axis.push_back(rest.back());
      rest.pop_back();
    }
    return axis;
  }
  Expr left = dim;
  while (!is_one(left)) {
    if (rest.empty()) return std::nullopt;
    Atom atom = rest.back();
    rest.pop_back();
    if (const auto q = quotient(left, atom.size)) {
      append(axis, atom);
      left = *q;
      continue;
    }
    const auto n = atom.size.constant(), r = left.constant();
    if (is_row(atom) || !n || !r || *r == 0 || *n % *r != 0) return std::nullopt;
    append(axis, {AtomKind::kFeature, *r});
    rest.push_back({AtomKind::kFeature, *n / *r});
    left = 1;
  }
  return axis;
}

}  // namespace

bool has_rows(const Axis& axis) { return std::any_of(axis.begin(), axis.end(), is_row); }
bool has_rows(const Layout& layout) {
  return std::any_of(layout.begin(), layout.end(), [](const Axis& a) { return has_rows(a); });
}
bool has_kind(const Axis& axis, AtomKind kind) {
  return std::any_of(axis.begin(), axis.end(), [&](const Atom& a) { return a.kind == kind; });
}
bool has_kind(const Layout& layout, AtomKind kind) {
  return std::any_of(layout.begin(), layout.end(), [&](const Axis& a) { return has_kind(a, kind); });
}

Axis feature_axis(int64_t size) { return size == 1 ? Axis{} : Axis{{AtomKind::kFeature, size}}; }
int64_t features(const Axis& axis) {
  int64_t n = 1;
  for (const Atom& a : axis)
    if (!is_row(a)) n *= a.size.constant().value();
  return n;
}
int64_t features(const Layout& layout) {
  int64_t n = 1;
  for (const Axis& a : layout) n *= features(a);
  return n;
}
Expr size(const Axis& axis) {
  Expr n = 1;
  for (const Atom& a : axis) n = n * a.size;
  return n;
}
bool is_kept(const Axis& axis) {
  return axis.empty() || std::any_of(axis.begin(), axis.end(), [](const Atom& a) { return !is_row(a); });
}
int token_axis(const Layout& layout, std::size_t axis) {
  ARK_CHECK(is_kept(layout[axis]), "a dropped axis has no place in the token form");
  return 1 + static_cast<int>(
                 std::count_if(layout.begin(), layout.begin() + static_cast<std::ptrdiff_t>(axis), is_kept));
}
Dims token_dims(const Layout& layout) {
  Dims dims;
  for (const Axis& a : layout)
    if (is_kept(a)) dims.push_back(features(a));
  return dims;
}
std::vector<Atom> flatten(const Layout& layout) {
  std::vector<Atom> atoms;
  for (const Axis& a : layout) atoms.insert(atoms.end(), a.begin(), a.end());
  return atoms;
}

void append(Axis& axis, const Atom& atom) {
  if (!is_row(atom) && is_one(atom.size)) return;
  if (!axis.empty() && !is_row(atom) && !is_row(axis.back()))
    axis.back().size = axis.back().size * atom.size;
  else
    axis.push_back(atom);
}

std::optional<Axis> axis_of(const Expr& dim, const StepSizes& sizes) {
  if (const auto n = dim.constant()) {
    // A fixed size is a row axis only if it is the file's fixed batch or sequence, which 1 never needs to be.
    return feature_axis(*n);
  }
  const Atom batch{AtomKind::kBatch, sizes.batch}, sequence{AtomKind::kSequence, sizes.sequence},
      past{AtomKind::kPast, sizes.past}, context{AtomKind::kContext, sizes.total()};
  for (const Atom& a : {batch, sequence, past, context})
    if (dim == a.size) return Axis{a};
  for (const Atom& a : {sequence, context})
    if (dim == sizes.batch * a.size) return Axis{batch, a};
  return std::nullopt;
}

std::optional<Layout> layout_of(const Shape& shape, const StepSizes& sizes) {
  Layout layout;
  for (const Expr& dim : shape) {
    auto axis = axis_of(dim, sizes);
    if (!axis) return std::nullopt;
    layout.push_back(std::move(*axis));
  }
  return layout;
}

std::optional<Layout> reshaped(const Layout& layout, const Shape& shape) {
  std::vector<Atom> rest;
  for (const Atom& a : flatten(layout))
    if (is_row(a) || !is_one(a.size)) rest.push_back(a);
  std::reverse(rest.begin(), rest.end());
  Layout result;
  for (const Expr& dim : shape) {
    auto axis = take(rest, dim);
    if (!axis) return std::nullopt;
    result.push_back(std::move(*axis));
  }
  for (const Atom& a : rest)
    if (!is_one(a.size)) return std::nullopt;
  return result;
}

Layout renamed(Layout layout, AtomKind from, AtomKind to, const Expr& size) {
  for (Axis& axis : layout)
    for (Atom& atom : axis)
      if (atom.kind == from) atom = {to, size};
  return layout;
}

Shape shape_of(const Layout& layout) {
  Shape shape;
  for (const Axis& a : layout) shape.push_back(size(a));
  return shape;
}

bool same_size(const Expr& a, const Expr& b, const StepSizes& sizes) {
  if (a == b) return true;
  std::set<std::string> names;
  a.collect_symbols(names);
  b.collect_symbols(names);
  for (const Expr& e : {sizes.batch, sizes.sequence, sizes.past})
    for (const auto& name : e.symbols()) names.erase(name);
  if (!names.empty()) return false;  // a size that is none of ours
  for (int64_t i = 0; i < 12; ++i) {
    SymbolValues values;
    const int64_t sample[3] = {1 + i % 3, 1 + (i * 5) % 7, (i * 11) % 13};
    const Expr* of[3] = {&sizes.batch, &sizes.sequence, &sizes.past};
    for (int k = 0; k < 3; ++k)
      for (const auto& name : of[k]->symbols()) values[name] = sample[k];
    if (a.evaluate(values) != b.evaluate(values)) return false;
  }
  return true;
}

std::string str(const Layout& layout) {
  static constexpr const char* kNames[] = {"", "batch", "sequence", "past", "context"};
  std::string out = "[";
  for (std::size_t i = 0; i < layout.size(); ++i) {
    out += i ? ", " : "";
    if (layout[i].empty()) out += "1";
    for (std::size_t k = 0; k < layout[i].size(); ++k) {
      const Atom& atom = layout[i][k];
      out += (k ? "*" : "") + (is_row(atom) ? kNames[static_cast<int>(atom.kind)] : atom.size.str());
    }
  }
  return out + "]";
}

}  // namespace ark::decoder
