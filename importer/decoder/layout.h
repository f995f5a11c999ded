// What the axes of a padded value mean: each is a row-major product of atoms.
//
// A *row* is one (batch, sequence) pair of the padded graph, one token of the ragged one. The token form of a
// value with layout [a0, a1, ...] has shape [tokens, f...] with one f for each *kept* axis: the product of
// its feature atoms. Axes made of row atoms only are dropped (their extent is the token axis); an empty axis
// (size 1) is kept. So [batch, heads, sequence, dim] and [batch, sequence, heads, dim] have the same token
// form [tokens, heads, dim].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/expr.h"
#include "base/tensor.h"

namespace ark::decoder {

enum class AtomKind : uint8_t { kFeature, kBatch, kSequence, kPast, kContext };

struct Atom {
  AtomKind kind = AtomKind::kFeature;
  Expr size;
  bool operator==(const Atom& other) const { return kind == other.kind && size == other.size; }
};
using Axis = std::vector<Atom>;  // empty: an axis of size 1
using Layout = std::vector<Axis>;

// The sizes of a step of the padded graph: symbols, or constants where the file fixes them.
struct StepSizes {
  Expr batch, sequence, past;
  Expr total() const { return past + sequence; }
};

inline bool is_row(const Atom& atom) { return atom.kind != AtomKind::kFeature; }
bool has_rows(const Axis& axis);
bool has_rows(const Layout& layout);
bool has_kind(const Axis& axis, AtomKind kind);
bool has_kind(const Layout& layout, AtomKind kind);
Axis feature_axis(int64_t size);     // empty for 1
int64_t features(const Axis& axis);  // product of the feature atoms
int64_t features(const Layout& layout);
Expr size(const Axis& axis);
bool is_kept(const Axis& axis);  // appears in the token form
int token_axis(const Layout& layout,
               std::size_t axis);       // 1 + place among the kept axes; the axis must be kept
Dims token_dims(const Layout& layout);  // features of the kept axes, in order
std::vector<Atom> flatten(const Layout& layout);
void append(Axis& axis, const Atom& atom);  // merges neighbouring features, drops features of size 1

// The layout of a value of `shape` that is read off its sizes; nullopt where they do not tell.
std::optional<Axis> axis_of(const Expr& dim, const StepSizes& sizes);
std::optional<Layout> layout_of(const Shape& shape, const StepSizes& sizes);

// The layout after Reshape to `shape`; nullopt if an axis would cut a row axis or a row and a feature.
std::optional<Layout> reshaped(const Layout& layout, const Shape& shape);
Layout renamed(Layout layout, AtomKind from, AtomKind to, const Expr& size);
Shape shape_of(const Layout& layout);

// Equal as polynomials, or at every one of a dozen steps (clamps such as min(total, max(0, past)) differ in
// form).
bool same_size(const Expr& a, const Expr& b, const StepSizes& sizes);

std::string str(const Layout& layout);  // "[batch, 8, sequence, 64]"

}  // namespace ark::decoder
