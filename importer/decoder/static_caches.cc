// A scatter of new rows into a cache becomes a Concat behind `past` rows. From there on one axis of what follows is
// followed, whose size was the cache's and is past + new: through movement, score products and softmax to where it is
// summed over, or into kAttention. So is that of masks that are inputs; others that meet scores are cut to it.
#include "importer/decoder/static_caches.h"

#include <algorithm>

#include "base/error.h"
#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "base/ir/slice_bounds.h"
#include "importer/decoder/cache_writes.h"
#include "importer/infer.h"
#include "importer/op_importer.h"

namespace ark::decoder {
namespace {

constexpr int kNotFollowed = -1;

class Growth {
 public:
  explicit Growth(const Graph& graph)
      : axis_(graph.values.size(), kNotFollowed), is_score_(graph.values.size(), false) {
    result_.graph = graph;
  }

  std::optional<GrownCaches> run() {
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) {
      if (node(n).removed) continue;
      if (is_one_of(node(n).op, {Op::kScatterElements, Op::kScatterND})) grow(n);
      if (node(n).op == Op::kAttention) grow_buffers(n);
    }
    if (result_.length == 0) return std::nullopt;
    for (const ValueId id : graph().inputs) shorten_mask(id);
    const std::size_t count = graph().nodes.size();
    for (std::size_t n = 0; n < count; ++n)
      if (!node(n).removed) follow(n);
    graph().remove_dead();
    graph().sort();
    infer_all(graph());
    return std::move(result_);
  }

 private:
  Graph& graph() { return result_.graph; }
  Node& node(std::size_t n) { return graph().nodes[n]; }
  const Shape& shape(ValueId id) { return known_shape(graph(), id); }
  int axis(ValueId id) const {
    return id == kNoValue || static_cast<std::size_t>(id) >= axis_.size() ? kNotFollowed : axis_[at(id)];
  }
  bool are_scores(ValueId id) const { return axis(id) != kNotFollowed && is_score_[at(id)]; }
  static Expr past() { return Expr::symbol("PAST"); }  // as roles.cc has it
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }
  void set_axis(ValueId id, int axis) {
    if (id == kNoValue) return;
    axis_[at(id)] = axis;
    graph().value(id).shape.reset();
    graph().value(id).elements.reset();
  }
  // A scatter into a cache, of as many rows as there are new tokens.
  void grow(std::size_t n) {
    const Node scatter = node(n);
    if (scatter.attributes.get_or(key::kReduction, "none") != "none") return;
    const bool by_slices = scatter.op == Op::kScatterND;
    const std::size_t along = by_slices ? 0 : static_cast<std::size_t>(scatter.attributes.get(key::kAxis));
    const ValueId data = scatter.inputs[0], indices = scatter.inputs[1], rows = scatter.inputs[2];
    const auto cache = cache_behind(graph(), data, along);
    if (!cache || !graph().value(rows).shape || !graph().value(indices).shape) return;
    const auto length = shape(data)[along].constant();
    const Expr count = shape(rows)[along];
    Shape left = shape(data), right = shape(rows);
    left[along] = right[along] = 1;
    if (!length || count.constant() || !(left == right)) return;
    if (by_slices && (shape(indices).size() != 2 || !shape(indices)[1].is_constant(1))) return;
    const auto places = written_places(graph(), indices, along, count);
    if (!places) return;
    (places->is_first ? result_.firsts : result_.positions).push_back(places->input);
    set_sizes(*length, count);
    Node& joined = node(n);
    joined.op = Op::kConcat;
    joined.inputs = {data, rows};
    joined.attributes = {{key::kAxis, static_cast<int64_t>(along)}};
    shorten(graph().inputs[cache->first], cache->second);
    set_axis(joined.outputs[0], static_cast<int>(along));
  }

  // kAttention whose past are buffers, written behind as many tokens as its lengths say: such a past, as long as those
  // tokens, is any kAttention's. That lengths say so shows where the mask is proven causal.
  void grow_buffers(std::size_t n) {
    using namespace attention;
    const Node& reader = node(n);
    if (reader.attributes.get_or(key::kEvicts, 0)) return;
    for (const std::size_t i : {kPastK, kPastV, kLengths, kTotal})
      if (reader.input(i) == kNoValue) return;
    for (const std::size_t i : {kPresentK, kPresentV})
      if (reader.output(i) == kNoValue) return;
    std::vector<std::pair<std::size_t, std::size_t>> buffers;
    for (const std::size_t i : {kPastK, kPastV}) {
      const ValueId past = reader.inputs[i];
      const auto cache = cache_behind(graph(), past, 2);
      if (!cache || !shape(past)[2].constant()) return;
      buffers.push_back(*cache);
    }
    set_sizes(*shape(reader.inputs[kPastK])[2].constant(), shape(reader.inputs[kK]).at(2));
    node(n).inputs[kTotal] = kNoValue;  // the room in present
    for (const auto& [input, axis] : buffers) shorten(graph().inputs[input], axis);
    for (const std::size_t i : {kPresentK, kPresentV}) set_axis(reader.outputs[i], 2);
  }

  void set_sizes(int64_t length, const Expr& count) {
    const bool is_first = result_.length == 0;
    if (!is_first && (result_.length != length || !(total_ == past() + count))) throw GivenUp{};
    if (count.is_constant(length)) throw GivenUp{};  // nothing tells which of the two a size is
    result_.length = length;
    total_ = past() + count;
  }

  // What lies in the file's cache is as long as the past; so is what is turned of it before new rows come.
  void shorten(ValueId cache, std::size_t axis) {
    (*graph().value(cache).shape)[axis] = past();
    std::vector<ValueId> work{cache};
    const auto readers = graph().consumers();
    while (!work.empty()) {
      const ValueId id = work.back();
      work.pop_back();
      for (const NodeId reader : readers[at(id)]) {
        const Node& r = graph().node(reader);
        if (r.op == Op::kConcat || r.op == Op::kAttention) continue;
        if (!is_one_of(r.op, {Op::kTranspose, Op::kIdentity})) throw GivenUp{};
        graph().value(r.outputs[0]).shape.reset();
        work.push_back(r.outputs[0]);
      }
    }
  }

  // A mask over the places of the caches becomes one over the tokens that there are.
  void shorten_mask(ValueId id) {
    auto& s = graph().value(id).shape;
    if (!s || s->size() < 2 || s->size() > 4 || !s->back().is_constant(result_.length)) return;
    s->back() = total_;
    axis_[at(id)] = static_cast<int>(s->size()) - 1;
  }

  void follow(std::size_t n) {
    if (is_cache(n)) {
      if (node(n).op == Op::kAttention) cut_bias(n);
      return infer_now(n);
    }
    const std::vector<ValueId> inputs = node(n).inputs;
    if (std::none_of(inputs.begin(), inputs.end(), [&](ValueId id) { return axis(id) != kNotFollowed; })) {
      if (std::any_of(inputs.begin(), inputs.end(),
                      [&](ValueId id) { return id != kNoValue && !graph().value(id).shape; }))
        throw GivenUp{};
      if (is_one_of(node(n).op, {Op::kTranspose, Op::kIdentity})) infer_now(n);  // of caches before they grow
      return;
    }
    if (!node(n).subgraphs.empty()) throw GivenUp{};
    const int result = transferred(n);
    const bool scores = node(n).op == Op::kMatMul ||
                        std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) { return are_scores(id); });
    for (const ValueId id : node(n).outputs)
      if (result != kNotFollowed) set_axis(id, result), is_score_[at(id)] = scores;
    infer_now(n);
  }
  // Lengths hide what was not written, whatever the bias has there.
  void cut_bias(std::size_t n) {
    using attention::kBias;
    for (std::size_t i = 0; i < node(n).inputs.size(); ++i) {
      const ValueId id = node(n).inputs[i];
      if (axis(id) == kNotFollowed) continue;
      if (i != kBias || axis(id) + 1 != static_cast<int>(shape(id).size())) throw GivenUp{};
    }
    const ValueId bias = node(n).inputs[kBias];
    if (bias == kNoValue || axis(bias) != kNotFollowed || shape(bias).empty() ||
        !shape(bias).back().constant() || shape(bias).back().is_constant(1))
      return;
    const ValueId part = cut(n, bias);
    node(n).inputs[kBias] = part;
  }
  bool is_cache(std::size_t n) {
    const Op op = node(n).op;
    const std::size_t written = op == Op::kAttention ? std::size_t{attention::kPresentK} : 0;
    return (op == Op::kConcat || op == Op::kAttention) && axis(node(n).output(written)) != kNotFollowed;
  }
  void infer_now(std::size_t n) { infer_node(graph(), static_cast<NodeId>(n)); }

  // The axis that stays followed in the node's output.
  int transferred(std::size_t n) {
    const Op op = node(n).op;
    if (op == Op::kMatMul) return product(node(n));
    if (op == Op::kAttention) return attend(n), kNotFollowed;
    if (is_pointwise(op)) return pointwise(n);
    const ValueId x = node(n).inputs[0];
    const int from = axis(x);
    if (from == kNotFollowed) throw GivenUp{};
    if (op == Op::kTranspose) {
      const auto& perm = node(n).attributes.get(key::kPerm);
      return static_cast<int>(std::find(perm.begin(), perm.end(), from) - perm.begin());
    }
    if (op == Op::kReshape || op == Op::kExpand) return resized(n, from);
    if (op == Op::kSoftmax) return from;
    if (op == Op::kReduceSum) return counted(n, from);
    throw GivenUp{};
  }

  // The marks of a mask of tokens, none of which is for a place that nothing was written to.
  int counted(std::size_t n, int from) {
    const auto axes = node(n).attributes.get_or(key::kAxes, {});
    ValueId id = node(n).inputs[0];
    const auto rank = static_cast<int64_t>(shape(id).size());
    if (axes.size() != 1 || (axes[0] + rank) % rank != from) throw GivenUp{};
    while (const Node* maker = graph().producer(id)) {
      if (!is_one_of(maker->op, {Op::kCast, Op::kIdentity, Op::kReshape})) throw GivenUp{};
      id = maker->inputs[0];
    }
    if (is_floating(graph().value(id).dtype) || shape(id).size() != 2) throw GivenUp{};
    return kNotFollowed;
  }

  // The followed axis stays an axis of its own; the target has its new size.
  int resized(std::size_t n, int from) {
    if (!node(n).attributes.has(key::kShape)) throw GivenUp{};
    Shape to = node(n).attributes.get(key::kShape);
    const Shape& before = shape(node(n).inputs[0]);
    std::size_t place = to.size();
    if (node(n).op == Op::kExpand) {
      place = static_cast<std::size_t>(from) + to.size() - before.size();
    } else {
      const auto leading = [](const Shape& s, std::size_t axes) {
        return element_count(Shape(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(axes)));
      };
      const Expr front = leading(before, static_cast<std::size_t>(from));
      for (std::size_t i = 0; i < to.size() && place == to.size(); ++i)
        if (to[i].is_constant(result_.length) && leading(to, i) == front) place = i;
    }
    if (place >= to.size() || !to[place].is_constant(result_.length)) throw GivenUp{};
    to[place] = total_;
    node(n).attributes.set(key::kShape, to);
    return static_cast<int>(place);
  }

  // Scores of queries and keys, or weights times values: there the axis is summed over.
  int product(const Node& n) {
    const auto rank = [&](std::size_t i) { return static_cast<int>(shape(n.inputs[i]).size()); };
    const bool trans_a = n.attributes.get_or(key::kTransA, 0) != 0,
               trans_b = n.attributes.get_or(key::kTransB, 0) != 0;
    const int a = axis(n.inputs[0]), b = axis(n.inputs[1]), rank_a = rank(0), rank_b = rank(1),
              most = std::max(rank_a, rank_b);
    const bool sums_a = a == rank_a - (trans_a ? 2 : 1), sums_b = b == rank_b - (trans_b ? 1 : 2);
    if (a != kNotFollowed && b != kNotFollowed) {
      if (sums_a && sums_b) return kNotFollowed;
      throw GivenUp{};
    }
    if (a != kNotFollowed && a == rank_a - (trans_a ? 1 : 2)) return most - 2;
    if (b != kNotFollowed && b == rank_b - (trans_b ? 2 : 1)) return most - 1;
    throw GivenUp{};
  }

  // A mask that meets scores.
  ValueId cut_mask(std::size_t n, ValueId id, bool shows_by_false) {
    if (axis(id) != kNotFollowed || shape(id).empty() || shape(id).back().is_constant(1)) return id;
    const DType type = graph().value(id).dtype;
    if (type != DType::kBool && !is_floating(type)) throw GivenUp{};
    result_.masks.push_back({id, shows_by_false});
    return cut(n, id);
  }
  // `id` cut to the tokens that there are along its last axis, which is as long as the cache.
  ValueId cut(std::size_t n, ValueId id) {
    if (!shape(id).back().is_constant(result_.length)) throw GivenUp{};
    const DType type = graph().value(id).dtype;
    const Attributes bounds = slice_of(static_cast<int64_t>(shape(id).size()) - 1, 0, total_);
    const std::string name = node(n).name;
    const ValueId part = graph().add_value(name + ":mask", type, std::nullopt);
    axis_.resize(graph().values.size(), kNotFollowed);
    is_score_.resize(graph().values.size(), false);
    const NodeId slice = graph().add_node(Op::kSlice, name, {id}, {part}, bounds);
    infer_node(graph(), slice);
    return part;
  }

  int pointwise(std::size_t n) {
    const std::vector<ValueId> inputs = node(n).inputs;
    std::size_t most = 0;
    int back = 0;  // of the followed axis, from the right
    for (const ValueId id : inputs) {
      if (id == kNoValue) continue;
      most = std::max(most, shape(id).size());
      if (axis(id) == kNotFollowed) continue;
      const int own = static_cast<int>(shape(id).size()) - axis(id);
      if (back != 0 && own != back) throw GivenUp{};
      back = own;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueId id = inputs[i];
      if (id == kNoValue || axis(id) != kNotFollowed) continue;
      const Shape& s = shape(id);
      const auto own = static_cast<std::size_t>(back);
      if (s.size() < own || s[s.size() - own].is_constant(1)) continue;
      // Scores beside a mask: Add, or a condition. Masks beside each other: anything.
      const bool meets = std::any_of(inputs.begin(), inputs.end(), [&](ValueId x) { return are_scores(x); }),
                 chooses = node(n).op == Op::kWhere && i == 0;
      if (back != 1 || (meets && node(n).op != Op::kAdd && !chooses)) throw GivenUp{};
      const ValueId part = meets ? cut_mask(n, id, chooses && axis(inputs[1]) == kNotFollowed) : cut(n, id);
      node(n).inputs[i] = part;
    }
    return static_cast<int>(most) - back;
  }

  void attend(std::size_t n) {
    using namespace attention;
    const Node& reader = node(n);
    if (axis(reader.inputs[kQ]) != kNotFollowed || axis(reader.inputs[kK]) != 2 ||
        axis(reader.inputs[kV]) != 2)
      throw GivenUp{};
    for (const std::size_t i : {kPastK, kPastV, kTotal})
      if (reader.input(i) != kNoValue) throw GivenUp{};
    for (const std::size_t i : {kPresentK, kPresentV})
      if (reader.output(i) != kNoValue) throw GivenUp{};
    if (const ValueId bias = reader.input(kBias); bias != kNoValue) {
      const ValueId part = cut_mask(n, bias, false);
      node(n).inputs[kBias] = part;
    }
  }

  GrownCaches result_;
  Expr total_ = 0;
  std::vector<int> axis_;  // by value: the followed one
  std::vector<bool> is_score_;
};

}  // namespace

std::optional<GrownCaches> grow_static_caches(const Graph& graph) {
  try {
    return Growth(graph).run();
  } catch (const GivenUp&) {
    return std::nullopt;
  } catch (const Error&) {  // sizes that no longer fit together
    return std::nullopt;
  }
}

}  // namespace ark::decoder
