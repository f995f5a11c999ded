// The headers of device code, put into the library at build time (scripts/embed_sources.cmake).
#pragma once

#include <vector>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

// dma/device.h, engine/cuda/loop.h, engine/cuda/bodies/* and what they include, named as #include names them.
std::vector<SourceFile> device_headers();

}  // namespace ark::cuda
