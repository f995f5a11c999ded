#include "importer/decoder/caches.h"

#include "base/error.h"

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

}  // namespace

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
