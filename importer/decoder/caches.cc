#include "importer/decoder/caches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/decoder/linear_forms.h"

namespace ark::decoder {
namespace {

std::string quoted(const Rewrite& r, ValueId id) { return escaped(r.plain.value(id).name); }

void check_link(Rewrite& r, const PastLink& link, ValueId written, ValueId output) {
  const Origins::Row stored = r.origins.of(written), fresh = r.origins.of(link.fresh),
                     past = r.origins.of(link.past);
  if (fresh.size() != past.size()) refuse(*link.node, "joins a cache with new tokens of another size");
  for (std::size_t f = 0; f < fresh.size(); ++f) {
    if (past[f].value != r.placeholders[link.input])
      refuse(*link.node, "changes a cache's rows before it joins them with new tokens");
    const auto at = static_cast<std::size_t>(past[f].index);
    if (at >= stored.size() || !(stored[at] == fresh[f]))
      refuse(*link.node, "reads another feature from its cache than output " + quoted(r, output) + " stores");
  }
}

// What an element is, up to a common factor of all: its terms' signs, bases and tables.
using FormKey = std::vector<std::tuple<bool, ValueId, int64_t, ValueId, int64_t>>;

FormKey key_of(const Form& form) {
  FormKey key;
  for (int t = 0; t < form.count; ++t) {
    const Term& term = form.terms[t];
    key.emplace_back(term.factor < 0, term.base.value, term.base.index, term.table, term.column);
  }
  return key;
}

bool is_unscaled(const Form& form) {
  for (int t = 0; t < form.count; ++t)
    if (std::abs(form.terms[t].factor) != 1) return false;
  return form.count > 0;
}

// Of each element of the rows that input `input` caches, its place in the row of `paged`, -1 if it has none.
// `place_of` gives the places of a row's elements in that of `paged`.
template <typename F>
std::vector<int64_t> places_in(Rewrite& r, std::size_t input, F&& place_of) {
  std::vector<int64_t> result(r.origins.of(r.placeholders[input]).size(), -1);
  for (const PastLink& link : r.links) {
    if (link.input != input) continue;
    const Origins::Row past = r.origins.of(link.past);
    const std::vector<int64_t> places = place_of(link.fresh);
    for (std::size_t f = 0; f < places.size(); ++f)
      if (places[f] >= 0) result.at(static_cast<std::size_t>(past[f].index)) = places[f];
  }
  return result;
}

template <typename Key, typename Row, typename F>
std::vector<int64_t> look_up(const std::map<Key, int64_t>& places, const Row& row, F&& key) {
  std::vector<int64_t> result;
  for (const auto& element : row) {
    const auto it = places.find(key(element));
    result.push_back(it == places.end() ? -1 : it->second);
  }
  return result;
}

std::vector<int64_t> moved_places(Rewrite& r, std::size_t input, ValueId paged) {
  const auto key = [](const Origin& o) { return std::make_pair(o.value, o.index); };
  std::map<std::pair<ValueId, int64_t>, int64_t> places;
  int64_t place = 0;
  for (const Origin& o : r.origins.of(paged)) places.emplace(key(o), place++);
  return places_in(r, input, [&](ValueId fresh) { return look_up(places, r.origins.of(fresh), key); });
}

// The same where attention reads keys by a factor that rotation will pass on to the scores (fuse_rotary).
std::vector<int64_t> scaled_places(Rewrite& r, std::size_t input, ValueId paged) {
  LinearForms forms(r.out);
  std::map<FormKey, int64_t> places;
  int64_t place = 0;
  for (const Form& form : forms.of(paged)) places.emplace(key_of(form), place++);
  return places_in(r, input, [&](ValueId fresh) {
    std::vector<int64_t> result = look_up(places, forms.of(fresh), key_of);
    for (std::size_t f = 0; f < result.size(); ++f)
      if (!is_unscaled(forms.of(fresh)[f])) result[f] = -1;
    return result;
  });
}

bool is_nowhere(const std::vector<int64_t>& places) {
  return std::all_of(places.begin(), places.end(), [](int64_t p) { return p < 0; });
}

// The node that makes the value, seen through movement.
const Node* maker_of(const Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  while (node && is_movement(node->op) && node->op != Op::kConcat) node = graph.producer(node->inputs[0]);
  return node;
}

std::vector<const Node*> attention_of(const Graph& graph, std::size_t blocks) {
  std::vector<const Node*> attention(blocks);
  for (const Node& node : graph.nodes)
    if (!node.removed && node.op == Op::kPagedAttention)
      attention.at(static_cast<std::size_t>(node.attributes.get(key::kCache))) = &node;
  return attention;
}

}  // namespace

std::vector<CacheSpec> cache_specs(Rewrite& r, std::vector<bool>& by_factor) {
  const auto attention = attention_of(r.out.graph, r.blocks.size());
  std::vector<CacheSpec> specs;
  by_factor.assign(r.blocks.size(), false);
  for (std::size_t i = 0; i < r.blocks.size(); ++i) {
    const Block& b = r.blocks[i];
    const auto name = [&](std::size_t input) {
      return input == SIZE_MAX ? std::string() : r.plain.value(r.plain.inputs[input]).name;
    };
    CacheSpec spec{name(b.key_input), name(b.value_input), b.kv_heads, b.key_dim,
                   b.value_dim,       b.mask.window,       {},         {}};
    if (attention[i] && b.key_input != SIZE_MAX) {
      const ValueId keys = attention[i]->inputs[1];
      spec.key_elements = moved_places(r, b.key_input, keys);
      by_factor[i] = is_nowhere(spec.key_elements);
      if (by_factor[i]) spec.key_elements = scaled_places(r, b.key_input, keys);
      spec.value_elements = moved_places(r, b.value_input, attention[i]->inputs[2]);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

void settle_factors(std::vector<CacheSpec>& specs, const std::vector<bool>& by_factor, const Graph& tokens) {
  const auto attention = attention_of(tokens, specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!by_factor[i]) continue;
    const Node* maker = attention[i] ? maker_of(tokens, attention[i]->inputs[1]) : nullptr;
    if (!maker || maker->op != Op::kRotary)
      std::fill(specs[i].key_elements.begin(), specs[i].key_elements.end(), -1);
  }
}

void check_caches(Rewrite& r) {
  for (const auto& cache : r.roles.signature.caches) {
    const ValueId in = r.plain.inputs[cache.input], out = r.plain.outputs[cache.output];
    const Rows *past = r.rows(in), *stored = r.rows(out);
    const Node* writer = r.plain.producer(out);
    const std::string node = writer ? writer->name : "";
    if (!stored) throw Refusal(node, "output " + quoted(r, out) + " holds no rows of tokens");
    const Layout want = renamed(past->layout, AtomKind::kPast, AtomKind::kContext, r.roles.sizes.total());
    if (!(stored->layout == want))
      throw Refusal(node, "output " + quoted(r, out) + " is laid out " + str(stored->layout) +
                              ", but its cache reads " + str(want));
    bool linked = false;
    for (const PastLink& link : r.links)
      if (link.input == cache.input) {
        check_link(r, link, stored->tokens, out);
        linked = true;
      }
    if (!linked) throw Refusal(node, "input " + quoted(r, in) + " is never joined with new tokens");
  }
}

}  // namespace ark::decoder
