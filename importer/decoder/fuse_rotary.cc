#include <map>

#include "base/ir/keys.h"
#include "importer/decoder/cleanup.h"
#include "importer/decoder/linear_forms.h"

namespace ark::decoder {
namespace {

using Column = std::pair<ValueId, int64_t>;  // rows gathered from a table, and a column of them

// Columns with equal contents get equal numbers, so that cos(x, x) reads as two halves of the same.
class ColumnContents {
 public:
  explicit ColumnContents(const TokenBuilder& out) : out_(out) {}
  int number(const Column& column) {
    const auto it = numbers_.find(column);
    if (it != numbers_.end()) return it->second;
    const std::vector<float> values = read(column);
    const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return numbers_[column] = contents_.emplace(bytes, static_cast<int>(contents_.size())).first->second;
  }
  std::vector<float> read(const Column& column) {
    const Tensor& t = table(column.first);
    const int64_t width = t.size() / t.dims[0];
    std::vector<float> values;
    for (int64_t i = 0; i < t.dims[0]; ++i)
      values.push_back(static_cast<float>(t.real(i * width + column.second)));
    return values;
  }

 private:
  const Tensor& table(ValueId rows) {
    Tensor& t = tables_[rows];
    if (t.dtype == DType::kUndefined)
      t = materialise(*out_.graph.value(out_.graph.producer(rows)->inputs[0]).constant);
    return t;
  }
  const TokenBuilder& out_;
  std::map<ValueId, Tensor> tables_;
  std::map<Column, int> numbers_;
  std::map<std::string, int> contents_;
};

struct Rotation {
  double factor = 1;
  ValueId base = kNoValue;
  std::vector<int64_t> index;  // of base, for [heads, dim]
  bool interleaved = false, negative = false;
  std::vector<Column> cos, sin;  // half tables; empty: no rotation, only the factor
};

// y_a = c (x_a cos - x_b sin), y_b = c (x_b cos + x_a sin), or the same with the other sign of sin.
struct PairMatch {
  Term own_a, own_b, cross_a;
  bool negative;
};
std::optional<PairMatch> match_pair(const Form& a, const Form& b, ColumnContents& contents) {
  if (a.count != 2 || b.count != 2) return std::nullopt;
  for (const int i : {0, 1})
    for (const int j : {0, 1}) {
      const Term &own_a = a.terms[i], &cross_a = a.terms[1 - i];
      const Term &own_b = b.terms[j], &cross_b = b.terms[1 - j];
      if (!(own_a.base == cross_b.base) || !(own_b.base == cross_a.base) || own_a.base == own_b.base)
        continue;
      if (own_a.factor != own_b.factor || cross_a.factor != -cross_b.factor ||
          std::abs(cross_a.factor) != std::abs(own_a.factor))
        continue;
      const auto same = [&](const Term& x, const Term& y) {
        return x.table != kNoValue && y.table != kNoValue &&
               contents.number({x.table, x.column}) == contents.number({y.table, y.column});
      };
      if (!same(own_a, own_b) || !same(cross_a, cross_b)) continue;
      return PairMatch{own_a, own_b, cross_a, cross_a.factor * own_a.factor > 0};
    }
  return std::nullopt;
}

class Matcher {
 public:
  Matcher(const Forms& forms, int64_t heads, int64_t dim, ColumnContents& contents)
      : forms_(forms), heads_(heads), dim_(dim), contents_(contents) {}

  std::optional<Rotation> match(bool interleaved) {
    rotation_ = {};
    rotation_.interleaved = interleaved;
    rotation_.index.assign(forms_.size(), -1);
    int64_t rotated = 0;
    while (rotated < dim_ && forms_[rotated].has_table()) ++rotated;
    if (rotated % 2 != 0) return std::nullopt;
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t i = 0; i < rotated / 2; ++i)
        if (!take_pair(h, i, interleaved ? 2 * i : i, interleaved ? 2 * i + 1 : i + rotated / 2))
          return std::nullopt;
      for (int64_t d = rotated; d < dim_; ++d) {
        const Form& f = at(h, d);
        if (f.count != 1 || f.has_table() || !take(h, d, f.terms[0])) return std::nullopt;
      }
    }
    return rotation_;
  }

 private:
  const Form& at(int64_t h, int64_t d) const { return forms_[h * dim_ + d]; }
  bool take(int64_t h, int64_t d, const Term& t) {
    if (rotation_.base == kNoValue) rotation_.base = t.base.value, rotation_.factor = t.factor;
    rotation_.index[h * dim_ + d] = t.base.index;
    return rotation_.base == t.base.value && rotation_.factor == t.factor;
  }
  bool take_pair(int64_t h, int64_t i, int64_t a, int64_t b) {
    const auto pair = match_pair(at(h, a), at(h, b), contents_);
    if (!pair || !take(h, a, pair->own_a) || !take(h, b, pair->own_b)) return false;
    const Column cos{pair->own_a.table, pair->own_a.column}, sin{pair->cross_a.table, pair->cross_a.column};
    const auto at = static_cast<std::size_t>(i);
    if (at == rotation_.cos.size()) {
      if (i == 0) rotation_.negative = pair->negative;
      rotation_.cos.push_back(cos);
      rotation_.sin.push_back(sin);
    }
    return rotation_.negative == pair->negative &&
           contents_.number(rotation_.cos[at]) == contents_.number(cos) &&
           contents_.number(rotation_.sin[at]) == contents_.number(sin);
  }

  const Forms& forms_;
  const int64_t heads_, dim_;
  ColumnContents& contents_;
  Rotation rotation_;
};

class Fuser {
 public:
  explicit Fuser(TokenBuilder& out) : out_(out), contents_(out) {}

  // The query or key input `i` of an attention node, its factor taken out. Returns whether it is rotated now.
  bool fuse(NodeId attention, std::size_t i, double& scale) {
    const ValueId value = out_.graph.node(attention).inputs[i];
    const Dims dims = out_.dims(value);
    LinearForms forms(out_);
    const Forms row = forms.of(value);
    std::optional<Rotation> rotation = Matcher(row, dims[0], dims[1], contents_).match(false);
    if (!rotation) rotation = Matcher(row, dims[0], dims[1], contents_).match(true);
    if (!rotation || (rotation->cos.empty() && rotation->factor == 1)) return false;
    out_.label = out_.graph.node(attention).name;
    ValueId x = out_.pick(rotation->base, rotation->index, dims);
    if (!rotation->cos.empty())
      x = out_.emit(
          Op::kRotary,
          {x, table(rotation->cos, false), table(rotation->sin, rotation->negative), out_.positions},
          {{key::kInterleaved, static_cast<int64_t>(rotation->interleaved)},
           {key::kRotaryDim, static_cast<int64_t>(2 * rotation->cos.size())},
           {key::kHeadAxis, 1}});
    out_.graph.node(attention).inputs[i] = x;
    scale *= rotation->factor;
    return !rotation->cos.empty();
  }

 private:
  ValueId table(const std::vector<Column>& columns, bool negative) {
    std::vector<int> key{negative};
    for (const Column& c : columns) key.push_back(contents_.number(c));
    if (const auto it = tables_.find(key); it != tables_.end()) return it->second;
    const auto width = static_cast<int64_t>(columns.size());
    Tensor t;
    for (int64_t j = 0; j < width; ++j) {
      const auto values = contents_.read(columns[j]);
      if (j == 0) t = Tensor::empty(DType::kF32, {static_cast<int64_t>(values.size()), width});
      for (std::size_t i = 0; i < values.size(); ++i)
        t.as<float>()[static_cast<int64_t>(i) * width + j] = negative ? -values[i] : values[i];
    }
    return tables_[key] = out_.constant(t, "rotary_by_position");
  }

  TokenBuilder& out_;
  ColumnContents contents_;
  std::map<std::vector<int>, ValueId> tables_;
};

}  // namespace

int fuse_rotary(TokenBuilder& out) {
  Fuser fuser(out);
  int fused = 0;
  const auto count = out.graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<NodeId>(i);
    if (out.graph.node(id).removed || out.graph.node(id).op != Op::kPagedAttention) continue;
    double scale = out.graph.node(id).attributes.get(key::kScale);
    fused += fuser.fuse(id, 0, scale);
    fused += fuser.fuse(id, 1, scale);
    out.graph.node(id).attributes.set(key::kScale, scale);
  }
  out.graph.sort();
  out.graph.remove_dead();
  return fused;
}

}  // namespace ark::decoder
