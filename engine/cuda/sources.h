// The headers that kernels include, as this binary carries them (CMakeLists.txt makes device_headers.cc of
// them): no file is read when a kernel is compiled.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

// dma/device.h, engine/program/device_contract.h, engine/cuda/loop.h, engine/cuda/bodies/* and what they
// include, named as #include names them.
const std::vector<SourceFile>& device_headers();

// A translation unit of `text` with all of them.
KernelSource source_of(std::string text);

}  // namespace ark::cuda
