// What caches that grow were taken for, against the roles that were found and the masks that were cut.
#include <algorithm>

#include "base/error.h"
#include "importer/decoder/mask.h"
#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"
#include "importer/decoder/static_caches.h"

namespace ark::decoder {

void check_grown_caches(const GrownCaches& grown, const DecoderSignature& signature) {
  const auto has = [](const std::vector<std::size_t>& list, std::size_t i) {
    return std::find(list.begin(), list.end(), i) != list.end();
  };
  const auto name = [&](std::size_t i) { return escaped(grown.graph.value(grown.graph.inputs[i]).name); };
  for (const std::size_t i : grown.positions)
    if (!has(signature.positions, i) && !has(signature.ignored, i))
      throw Refusal("", "input " + name(i) + " says where tokens are written, and something else");
  for (const std::size_t i : grown.firsts)
    if (!has(signature.ignored, i))
      throw Refusal("", "input " + name(i) + " says where tokens are written, and is read elsewhere");
  Graph graph = grown.graph;
  const Roles roles = unify_sizes(graph, signature);
  Probe probe(graph, roles);
  for (const Step& asked : {Step{1, 1, 0}, Step{1, 3, 0}, Step{2, 3, 5}, Step{1, 2, grown.length / 2},
                            Step{1, 1, grown.length - 1}}) {
    const Step step = probe.possible(asked);
    if (step.total() > grown.length || step.past < 0) continue;
    for (const CutMask& cut : grown.masks) {
      const Tensor mask = probe.value(cut.mask, step);
      for (int64_t i = 0; i < mask.size(); ++i) {
        const double value = mask.real(i);
        const bool is_hidden =
            mask.dtype != DType::kBool ? value <= kMasked : (value != 0) == cut.shows_by_false;
        if (i % mask.dims.back() >= step.total() && !is_hidden)
          throw Refusal("", "the mask shows places of a cache of fixed size that nothing was written to");
      }
    }
  }
}

}  // namespace ark::decoder
