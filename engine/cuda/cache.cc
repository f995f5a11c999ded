#include "engine/cuda/cache.h"

#include <cstring>
#include <optional>
#include <span>

#include "base/sha256.h"

namespace ark::cuda {
namespace {

struct Facts {
  int32_t registers = 0, spilled_bytes = 0, stack_bytes = 0, static_shared = 0;
};

std::optional<CompiledCode> find(const DiskCache& cache, const std::string& key) {
  const std::optional<std::string> payload = cache.read(key);
  if (!payload || payload->size() <= sizeof(Facts)) return std::nullopt;
  Facts facts;
  std::memcpy(&facts, payload->data(), sizeof facts);
  CompiledCode code;
  code.facts = {facts.registers, facts.spilled_bytes, facts.stack_bytes, facts.static_shared, 0};
  const std::span cubin = std::as_bytes(std::span(*payload)).subspan(sizeof facts);
  code.cubin.assign(cubin.begin(), cubin.end());
  return code;
}

void keep(const DiskCache& cache, const std::string& key, const CompiledCode& code) {
  const Facts facts{code.facts.registers, code.facts.spilled_bytes, code.facts.stack_bytes,
                    code.facts.static_shared};
  std::string payload(reinterpret_cast<const char*>(&facts), sizeof facts);
  payload.append(reinterpret_cast<const char*>(code.cubin.data()), code.cubin.size());
  cache.write(key, std::as_bytes(std::span(payload)));
}

// So that it can be launched.
CompiledCode compile_fitting(Compiler& compiler, const KernelSource& source, const std::string& arch) {
  CompiledCode code = compiler.compile(source, arch);
  const int32_t registers = code.facts.registers;
  if (registers == 0 || registers >= source.launch_registers || !arch.ends_with('a')) return code;
  KernelSource keeping = source;
  keeping.flags.push_back(source.keeping_flag);
  return compiler.compile(keeping, arch);
}

}  // namespace

std::string cache_key(const KernelSource& source, const std::string& arch, const Compiler& compiler,
                      const std::string& driver_version) {
  Sha256 hash;
  for (const std::string* part : {&source.text, &source.entry, &arch, &compiler.version(), &driver_version})
    hash.add_field(*part);
  for (const std::vector<std::string>* list : {&compiler.options(), &source.flags}) {
    hash.add_field(std::to_string(list->size()));
    for (const std::string& flag : *list) hash.add_field(flag);
  }
  for (const SourceFile& header : source.headers) {
    hash.add_field(header.name);
    hash.add_field(header.text);
  }
  return hash.hex() + ".kernel";
}

CompiledCode compile_cached(Compiler& compiler, const DiskCache& cache, const KernelSource& source,
                            const std::string& arch, const std::string& driver_version) {
  const std::string key = cache_key(source, arch, compiler, driver_version);
  if (std::optional<CompiledCode> found = find(cache, key)) return *std::move(found);
  CompiledCode code = compile_fitting(compiler, source, arch);
  keep(cache, key, code);
  return code;
}

}  // namespace ark::cuda
