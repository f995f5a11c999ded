// What a model is, for the card and for who asks to serve what cannot be served.
#pragma once

#include <string>

#include "base/ir/graph.h"

namespace ark {

struct ModelKind {
  // "decoder", "decoder of embeddings", "decoder with an encoder's states", "encoder" or "other"
  std::string name;
  std::string why_not;  // why it is not served, as the rest of a sentence; "" where it can be
};
ModelKind kind_of(const Graph& graph);
// Of what find_signature() has no way to drive. `refusal`: what recognise_decoder() says, which knows of more decoders.
std::string why_not_served(const Graph& graph, const std::string& refusal);

}  // namespace ark
