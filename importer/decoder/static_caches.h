// Caches of a fixed size that a step writes its tokens into, at positions that it is told (transformers' StaticCache;
// TensorScatter) or behind as many tokens as it is told (GroupQueryAttention's buffers): the same decoder with caches
// that grow.
#pragma once

#include <optional>
#include <vector>

#include "importer/decoder.h"

namespace ark::decoder {

// What to do about a cache of a fixed size that is not understood.
inline constexpr const char* kExportGrowing = "export the model with caches whose length is open";

// What was as long as the cache and is cut to the tokens that there are: it must hide all behind them.
struct CutMask {
  ValueId mask = kNoValue;      // before the cut, along its last axis
  bool shows_by_false = false;  // of bools
};

struct GrownCaches {
  Graph graph;  // inputs and outputs as in the file
  std::vector<CutMask> masks;
  std::vector<std::size_t> positions;  // inputs that say where each new token is written
  std::vector<std::size_t> firsts;     // inputs that say where the first one is
  int64_t length = 0;                  // tokens that the file's caches hold
};

// nullopt if the graph has no such caches, or does with one what only one of fixed size allows.
std::optional<GrownCaches> grow_static_caches(const Graph& graph);

// Throws Refusal where inputs have other roles than these caches need, or a mask shows more than there is.
void check_grown_caches(const GrownCaches& grown, const DecoderSignature& signature);

}  // namespace ark::decoder
