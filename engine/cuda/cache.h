// Compiled code on disk: $ARK_CACHE_DIR, or ark/cuda in $XDG_CACHE_HOME or ~/.cache. One file per key,
// written beside and renamed, so that processes may share the folder; an entry that does not match its own
// digest is dropped and compiled again. A cache that cannot be written costs time and nothing else.
//
// Entry: "ARKCODE2", the SHA-256 of all that follows in 64 hexadecimal digits, registers, spilled, stack
// and static shared bytes (i32 each), the cubin.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/cuda/nvrtc.h"

namespace ark::cuda {

class CodeCache {
 public:
  // Empty: nothing is found and nothing kept.
  explicit CodeCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  // Empty if the environment names no home.
  static std::filesystem::path default_folder();

  std::optional<CompiledCode> find(const std::string& key) const;
  // Whether it could be kept.
  bool store(const std::string& key, const CompiledCode& code) const;
  std::filesystem::path path_of(const std::string& key) const { return folder_ / (key + ".ark"); }

 private:
  std::filesystem::path folder_;
};

// Of everything that the code depends on: source, headers, flags, entry, architecture, driver and compiler.
std::string cache_key(const KernelSource& source, const std::string& arch, const Compiler& compiler,
                      const std::string& driver_version);

// From the cache, or compiled and kept.
CompiledCode compile_cached(Compiler& compiler, const CodeCache& cache, const KernelSource& source,
                            const std::string& arch, const std::string& driver_version);

}  // namespace ark::cuda
