// GPUs of this machine through libcuda.so.1, opened at run time (ARK_LIBCUDA names another file).
#pragma once

#include <memory>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

// GPU `ordinal` with NVRTC and the cache on disk behind load(). Throws Error(kUnavailable) with one line that
// begins with "no CUDA here: " where libcuda, a GPU or (kUnsupported) what it must be able to do is missing.
std::unique_ptr<Gpu> open_gpu(int ordinal = 0);

// Why the GPUs of two ordinals, which may be equal, do not reach each other's memory as far as the driver says; empty if
// they do. Throws as open_gpu().
std::string why_unreachable(int a, int b);

// How many GPUs the driver shows (CUDA_VISIBLE_DEVICES chooses and orders them), at least 1. Throws as open_gpu().
int count_gpus();

}  // namespace ark::cuda
