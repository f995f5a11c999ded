// The headers that kernels include, as this binary carries them (CMakeLists.txt makes device_headers.cc of
// them): no file is read when a kernel is compiled.
#pragma once

#include <string>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

// A translation unit of `text` with dma/device.h, engine/program/device_contract.h, engine/cuda/loop.h,
// engine/cuda/bodies/* and what they include, named as #include names them.
KernelSource source_of(std::string text);

}  // namespace ark::cuda
