// Fused expressions as source: one struct per expression, which the Pointwise body evaluates per element.
#pragma once

#include <cstddef>

#include "engine/cuda/variants.h"

namespace ark::cuda {

// Throws Error(kUnsupported) naming an operator without device code.
DeviceVariant pointwise_source(const Variant& variant, std::size_t inputs);

}  // namespace ark::cuda
