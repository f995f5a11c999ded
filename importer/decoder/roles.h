// The sizes of a step, made the same everywhere: one symbol each for batch, sequence and past, whatever the
// file calls them in each input, output and attribute.
#pragma once

#include "importer/decoder.h"
#include "importer/decoder/layout.h"

namespace ark::decoder {

struct Roles {
  DecoderSignature signature;
  StepSizes sizes;
  bool has_past = false;

  // Symbol values of a concrete step; kept for every size that is a symbol.
  SymbolValues at(int64_t batch, int64_t sequence, int64_t past) const;
};

// Copies of a graph share its subgraphs; before sizes or values of a copy are renamed, it gets its own.
void own_subgraphs(Graph& graph);

// Rewrites `graph` over the symbols BATCH, SEQUENCE and PAST (where the file leaves them open), unifies the
// sizes that the graph itself proves equal (a cache's head size named by a symbol), and infers all shapes
// again.
Roles unify_sizes(Graph& graph, const DecoderSignature& signature);

// Infers all shapes again, of steps that have a token: sizes that differ only where there is none become one.
void infer_of_tokens(Graph& graph, const StepSizes& sizes);

// Settles what sizes are in steps of no more than `length` tokens, past and new: a table of as many rows cuts nothing.
void bound_sizes(Graph& graph, const StepSizes& sizes, int64_t length);

}  // namespace ark::decoder
