// The kernel files and what each adds to the library; gathered by registry.cc.
#pragma once

#include "base/ir/kernels/common.h"

namespace ark::kernels {

void register_pointwise(std::vector<Kernel>& into);
void register_create(std::vector<Kernel>& into);
void register_movement(std::vector<Kernel>& into);
void register_index(std::vector<Kernel>& into);
void register_scatter(std::vector<Kernel>& into);
void register_select(std::vector<Kernel>& into);
void register_reduce(std::vector<Kernel>& into);
void register_scan(std::vector<Kernel>& into);
void register_norm(std::vector<Kernel>& into);
void register_matmul(std::vector<Kernel>& into);
void register_conv(std::vector<Kernel>& into);
void register_pool(std::vector<Kernel>& into);
void register_attention(std::vector<Kernel>& into);
void register_quantized(std::vector<Kernel>& into);
void register_resize(std::vector<Kernel>& into);

}  // namespace ark::kernels
