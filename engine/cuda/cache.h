// Compiled kernels on disk (base/disk_cache.h). Payload of an entry: registers, spilled, stack and static shared bytes
// (i32 each), the cubin.
#pragma once

#include <string>

#include "base/disk_cache.h"
#include "engine/cuda/nvrtc.h"

namespace ark::cuda {

// The entry's name, of everything that the code depends on: source, headers, flags, entry, architecture, driver and
// compiler.
std::string cache_key(const KernelSource& source, const std::string& arch, const Compiler& compiler,
                      const std::string& driver_version);

// From the cache, or compiled and kept: with KernelSource::keeping_flag where the entry has fewer registers than it was
// to move.
CompiledCode compile_cached(Compiler& compiler, const DiskCache& cache, const KernelSource& source,
                            const std::string& arch, const std::string& driver_version);

}  // namespace ark::cuda
