// GPUs of this machine through libcuda.so.1, opened at run time (ARK_LIBCUDA names another file).
#pragma once

#include <memory>

#include "base/disk_cache.h"
#include "engine/cuda/gpu.h"

namespace ark::cuda {

// GPU `ordinal`; load() has NVRTC and `cache` (null: the usual folder) behind. Throws Error(kUnavailable), a line which
// begins with "no CUDA here: ", where libcuda, a GPU or (kUnsupported) what it must be able to do is missing.
std::unique_ptr<Gpu> open_gpu(int ordinal = 0, std::shared_ptr<const DiskCache> cache = nullptr);

// Why the GPUs of two ordinals, which may be equal, do not reach each other's memory as far as the driver says; empty
// if they do. Throws as open_gpu().
std::string why_unreachable(int a, int b);

// Why no NIC reads and writes a GPU's memory as far as the driver says; empty if one may. Throws as open_gpu().
std::string why_not_by_nic(int gpu);

// How many GPUs the driver shows (CUDA_VISIBLE_DEVICES chooses and orders them), at least 1. Throws as open_gpu().
int count_gpus();

}  // namespace ark::cuda
