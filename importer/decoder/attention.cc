// One proven attention block of the token graph.
#include <algorithm>
#include <deque>
#include <set>

#include "base/ir/keys.h"
#include "importer/decoder/linear_forms.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

// How the steps read, for proving the same mask once.
std::string fingerprint(const std::vector<ScoreStep>& steps, int64_t heads) {
  std::string text = std::to_string(heads);
  for (const ScoreStep& s : steps) {
    char factor[32];
    std::snprintf(factor, sizeof factor, "%a", s.factor);
    text += ";" + std::string(name_of(s.op)) + str(s.layout) + std::to_string(s.other) + "," +
            std::to_string(s.third) + "," + std::to_string(s.scores_first) + "," + factor + "," +
            std::to_string(s.window);
  }
  return text;
}

// Keys or values as the heads of queries see them, and how they are stored.
struct Side {
  ValueId value = kNoValue;
  std::vector<int64_t> head;  // of each query head
  int64_t dim = 0;
  double factor = 1;             // value = factor * elements, if those are known
  std::vector<Origin> elements;  // of [heads, dim], or empty
  Forms forms;                   // of value
};

Side make_side(Rewrite& r, ValueId value, std::vector<int64_t> head) {
  Side side{value, std::move(head), r.out.dims(value)[1], 1, {}, LinearForms(r.out).of(value)};
  if (auto scaled = as_scaled(side.forms)) {
    side.factor = scaled->factor;
    side.elements = std::move(scaled->elements);
  }
  return side;
}

// Whether neighbouring query heads, `group` at a time, see the same keys.
bool shared(const Side& side, int64_t group) {
  for (std::size_t h = 0; h < side.head.size(); ++h) {
    const int64_t mine = side.head[h], first = side.head[h - h % static_cast<std::size_t>(group)];
    const auto at = [&](int64_t head) { return side.forms.begin() + head * side.dim; };
    if (mine != first && !std::equal(at(mine), at(mine + 1), at(first))) return false;
  }
  return true;
}

// Heads 0, group, 2 * group, ... stored once: [heads / group, dim], taken from before any repetition and
// scaling.
ValueId without_repeats(Rewrite& r, Side& side, int64_t group) {
  std::vector<int64_t> own, index;
  ValueId base = kNoValue;
  bool one_base = true;
  for (std::size_t h = 0; h < side.head.size(); h += static_cast<std::size_t>(group))
    for (int64_t d = 0; d < side.dim; ++d) {
      const int64_t at = side.head[h] * side.dim + d;
      own.push_back(at);
      if (side.elements.empty()) continue;
      const Origin& o = side.elements[at];
      index.push_back(o.index);
      one_base = one_base && (base == kNoValue || base == o.value);
      base = o.value;
    }
  const Dims dims{static_cast<int64_t>(side.head.size()) / group, side.dim};
  if (base != kNoValue && one_base && !r.out.is_constant(base)) return r.out.pick(base, index, dims);
  side.factor = 1;
  return r.out.pick(side.value, own, dims);
}

// The cache of the file that the value is written to: the nearest link found on the way back.
std::size_t cache_input(Rewrite& r, ValueId value) {
  for (; r.links_written < r.links.size(); ++r.links_written) {
    const PastLink& link = r.links[r.links_written];
    for (const Origin& o : r.origins.of(link.fresh))
      r.written.emplace(std::pair(o.value, o.index), link.input);
  }
  std::deque<ValueId> queue{value};
  std::set<ValueId> seen{value};
  while (!queue.empty()) {
    const ValueId id = queue.front();
    queue.pop_front();
    if (r.out.is_constant(id)) continue;
    if (const Origins::Row& row = r.origins.of(id); !row.empty())
      if (const auto it = r.written.find({row[0].value, row[0].index}); it != r.written.end())
        return it->second;
    if (const Node* node = r.out.graph.producer(id))
      for (const ValueId in : node->inputs)
        if (in != kNoValue && seen.insert(in).second) queue.push_back(in);
  }
  return SIZE_MAX;
}

}  // namespace

ValueId emit_attention(Rewrite& r, const Node& node, const Scores& s, ValueId values,
                       const std::vector<int64_t>& value_head) {
  const auto heads = static_cast<int64_t>(s.key_head.size());
  Side keys = make_side(r, s.k, s.key_head), vals = make_side(r, values, value_head);
  int64_t group = heads;
  while (heads % group != 0 || !shared(keys, group) || !shared(vals, group)) --group;
  Block block;
  block.heads = heads;
  block.kv_heads = heads / group;
  block.key_dim = keys.dim;
  block.value_dim = vals.dim;
  const std::string print = fingerprint(s.steps, heads);
  if (const auto known = r.masks.find(print); known != r.masks.end())
    block.mask = known->second;
  else
    block.mask = r.masks[print] = prove_mask(r.plain, r.roles, r.probe, s.steps, heads, r.length,
                                             s.steps.empty() ? node : *s.steps.back().node);
  if (r.roles.has_past) {
    block.key_input = cache_input(r, s.k);
    block.value_input = cache_input(r, values);
    if (block.key_input == SIZE_MAX || block.value_input == SIZE_MAX)
      refuse(node, "attends to keys or values that are not cached");
  }
  ValueId q = s.q;
  if (const Side queries = make_side(r, s.q, {}); queries.factor != 1) {
    std::vector<int64_t> index;
    bool one_base = true;
    for (const Origin& o : queries.elements) {
      index.push_back(o.index);
      one_base = one_base && o.value == queries.elements[0].value;
    }
    if (one_base) {
      q = r.out.pick(queries.elements[0].value, index, r.out.dims(q));
      block.mask.scale *= queries.factor;
    }
  }
  std::vector<ValueId> inputs{q, without_repeats(r, keys, group), without_repeats(r, vals, group)};
  block.mask.scale *= keys.factor;
  if (!block.mask.slopes.empty())
    inputs.push_back(r.out.constant(Tensor::of<float>(DType::kF32, {heads}, block.mask.slopes), "slopes"));
  if (!s.sinks.empty()) {
    inputs.resize(4, kNoValue);
    inputs.push_back(r.out.constant(Tensor::of<float>(DType::kF32, {heads}, s.sinks), "sinks"));
  }
  ValueId y = r.out.emit(Op::kPagedAttention, inputs,
                         {{key::kCache, static_cast<int64_t>(r.blocks.size())},
                          {key::kScale, block.mask.scale},
                          {key::kWindow, block.mask.window},
                          {key::kSoftcap, block.mask.softcap}});
  if (vals.factor != 1) y = r.out.emit(Op::kMul, {y, r.out.scalar(static_cast<float>(vals.factor))});
  r.blocks.push_back(std::move(block));
  return y;
}

}  // namespace ark::decoder
