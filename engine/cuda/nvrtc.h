// NVRTC, CUDA's run-time compiler, opened at run time: from the loader's path, a toolkit's folder or a Python
// wheel's; ARK_NVRTC names the file or its folder. Headers are handed over by name: nothing is read from disk.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

struct CompiledCode {
  std::vector<std::byte> cubin;
  KernelFacts facts;  // of the entry
};

// Where libnvrtc may lie, best first. `variable`: the content of ARK_NVRTC. `major`: of the CUDA that the
// driver speaks; files of that version come first. 0: unknown.
std::vector<std::string> nvrtc_candidates(const std::string& variable, int major = 0);

class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual const std::string& version() const = 0;  // "13.0"
  // Compute capabilities that it compiles for: 80, 90, 103. Empty: unknown.
  virtual std::vector<int> architectures() const { return {}; }
  // The flags that every compilation of ours has, beside the source's own and the architecture.
  virtual const std::vector<std::string>& options() const = 0;
  // `arch`: "sm_90a"; "compute_90a" gives PTX's text in place of machine code. Throws Error(kInternal) with the
  // first lines of the compiler's log.
  virtual CompiledCode compile(const KernelSource& source, const std::string& arch) = 0;
};

// The best candidate whose version is not among `refused`. Null, and why in `why`, where there is none.
std::unique_ptr<Compiler> open_nvrtc(std::string* why = nullptr, int major = 0,
                                     const std::vector<std::string>& refused = {});

// What to compile for a GPU of this compute capability with a compiler of `known` ones: its own, or the
// newest before it of the same generation, whose code it runs. "": none.
std::string arch_for(int major, int minor, const std::vector<int>& known);

// Registers, spills and shared memory of `entry` as ptxas -v reports them in `log`.
KernelFacts facts_of(const std::string& log, const std::string& entry);

}  // namespace ark::cuda
