// The headers that kernels include, as this binary carries them (CMakeLists.txt makes device_headers.cc of
// them): no file is read when a kernel is compiled. For work on them, ARK_DEVICE_SOURCES names a checkout whose
// headers are read instead; the host's part of them (engine/cuda/image.h) must be the binary's.
#pragma once

#include <string>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

// A translation unit of `text` with dma/device.h, engine/program/device_contract.h, engine/cuda/loop.h,
// engine/cuda/bodies/* and what they include, named as #include names them.
KernelSource source_of(std::string text);

}  // namespace ark::cuda
