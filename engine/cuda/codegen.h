// The source of a loop kernel: includes, the fused expressions, and one switch over the cases of its programs.
#pragma once

#include "engine/cuda/gpu.h"
#include "engine/cuda/variants.h"

namespace ark::cuda {

struct SourceOptions {
  bool trace = false;  // with the timeline (LoopParameters::trace)
  TileShape tiles = kLargestTiles;
};

// The same text for programs with the same set of variants, however deep or wide they are.
KernelSource make_source(const VariantSet& variants, const SourceOptions& options = {});

}  // namespace ark::cuda
