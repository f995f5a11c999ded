#include "engine/cuda/cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/sha256.h"

namespace ark::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "ARKCODE2";
constexpr std::size_t kDigest = 64;
struct Facts {
  int32_t registers = 0, spilled_bytes = 0, stack_bytes = 0, static_shared = 0;
};
constexpr std::size_t kHead = kMagic.size() + kDigest;

}  // namespace

fs::path CodeCache::default_folder() {
  if (const char* own = std::getenv("ARK_CACHE_DIR")) return own;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return fs::path(cache) / "ark/cuda";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache/ark/cuda";
  return {};
}

std::optional<CompiledCode> CodeCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::string bytes;
  {
    std::ifstream in(path_of(key), std::ios::binary);
    if (!in) return std::nullopt;
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string_view all = bytes;
  if (all.size() <= kHead + sizeof(Facts) || all.substr(0, kMagic.size()) != kMagic ||
      sha256_hex(all.substr(kHead)) != all.substr(kMagic.size(), kDigest)) {
    std::error_code ignored;
    fs::remove(path_of(key), ignored);
    return std::nullopt;
  }
  Facts facts;
  std::memcpy(&facts, all.data() + kHead, sizeof facts);
  CompiledCode code;
  code.facts = {facts.registers, facts.spilled_bytes, facts.stack_bytes, facts.static_shared, 0};
  const auto* cubin = reinterpret_cast<const std::byte*>(all.data() + kHead + sizeof facts);
  code.cubin.assign(cubin, cubin + all.size() - kHead - sizeof facts);
  return code;
}

bool CodeCache::store(const std::string& key, const CompiledCode& code) const {
  if (folder_.empty()) return false;
  std::error_code error;
  fs::create_directories(folder_, error);
  const Facts facts{code.facts.registers, code.facts.spilled_bytes, code.facts.stack_bytes,
                    code.facts.static_shared};
  std::string body(reinterpret_cast<const char*>(&facts), sizeof facts);
  body.append(reinterpret_cast<const char*>(code.cubin.data()), code.cubin.size());
  // A name of this writer's own; readers see nothing or the whole entry.
  static std::atomic<uint64_t> number{0};
  const fs::path part = folder_ / (key + "." + std::to_string(::getpid()) + "." + std::to_string(number++));
  {
    std::ofstream out(part, std::ios::binary);
    out << kMagic << sha256_hex(body) << body;
    if (!out.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(part, path_of(key), error);
  if (!error) return true;
  std::error_code ignored;
  fs::remove(part, ignored);
  return false;
}

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
  return hash.hex();
}

CompiledCode compile_cached(Compiler& compiler, const CodeCache& cache, const KernelSource& source,
                            const std::string& arch, const std::string& driver_version) {
  const std::string key = cache_key(source, arch, compiler, driver_version);
  if (std::optional<CompiledCode> found = cache.find(key)) return *std::move(found);
  CompiledCode code = compiler.compile(source, arch);
  cache.store(key, code);
  return code;
}

}  // namespace ark::cuda
