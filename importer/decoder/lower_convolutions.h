// Convolutions that look at one place at a time, as products.
#pragma once

#include "base/ir/graph.h"

namespace ark::decoder {

// Every Conv of kernels of one place becomes Transpose, MatMul, Add and Transpose: linear layers as files for
// phones and NPUs write them. Others mix tokens, or features in groups, and stay.
bool lower_convolutions(Graph& graph);

}  // namespace ark::decoder
