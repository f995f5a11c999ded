// Generated source -> shared object, by the compiler that is at hand.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/descriptor.h"
#include "base/error.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/fixtures.h"

namespace ark::emulator {
namespace {

namespace fs = std::filesystem;

// -Og: half of the time that -O1 takes to compile, for kernels that run as fast; so they do without what looks at all
// functions at once.
constexpr const char* kFlags =
    "-std=c++20 -Og -g1 -fno-exceptions -fno-ipa-modref -fno-ipa-pure-const -fPIC -fvisibility=hidden "
    "-fno-gnu-unique -fno-strict-aliasing -ffp-contract=off -w";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// FNV-1a, 64 bits: names files, defends against nobody.
struct Hash {
  uint64_t value = 14695981039346656037u;
  void add(const std::string& text) {
    for (unsigned char c : text) value = (value ^ c) * 1099511628211u;
    value = (value ^ 0x100) * 1099511628211u;
  }
};

fs::path cache_folder() {
  if (const char* folder = std::getenv("ARK_EMULATOR_CACHE")) return folder;
  return ARK_EMULATOR_CACHE;
}

void run_compiler(const std::string& command, const fs::path& log) {
  if (std::system((command + " 2>'" + log.string() + "'").c_str()) == 0) return;
  const std::string text = read(log);
  throw Error(Code::kInternal, "emulator: the kernel does not compile: " + text.substr(0, 2000));
}

}  // namespace

std::string compile_kernel(const cuda::KernelSource& source, const std::vector<std::string>& flags,
                           double* seconds) {
  const fs::path root = test::source_root();
  std::string all_flags = kFlags;
  all_flags += " -DARK_DEVICE_HEADER='\"tests/emulator/device_emulated.h\"'";
  for (const auto* list : {&source.flags, &flags}) {
    for (const std::string& flag : *list) all_flags += " '" + flag + "'";
  }
  Hash hash;
  hash.add(source.text);
  for (const cuda::SourceFile& header : source.headers) {
    hash.add(header.name);
    hash.add(header.text);
  }
  hash.add(all_flags);
  hash.add(__VERSION__);
  for (const char* ours : {"tests/emulator/device_emulated.h", "tests/emulator/hooks.h"})
    hash.add(read(root / ours));
  char name[32];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash.value));

  *seconds = 0;
  const fs::path library = cache_folder() / (std::string(name) + ".so");
  if (fs::exists(library)) return library;
  // Sources stay beside the library: its line numbers point into them.
  const fs::path folder = cache_folder() / name;
  fs::create_directories(folder);
  // Ranks ask for the same at once, threads and processes: one of them makes it.
  const Descriptor lock(open((folder / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  flock(lock.number, LOCK_EX);
  if (fs::exists(library)) return library;
  const auto start = std::chrono::steady_clock::now();
  const std::string own = "." + std::to_string(getpid());
  for (const cuda::SourceFile& header : source.headers) write(folder / header.name, header.text);
  write(folder / "kernel.cc", source.text);
  const fs::path object = folder / ("kernel.o" + own), linked = folder / ("kernel.so" + own);
  const std::string compiler = ARK_EMULATOR_COMPILER;
  run_compiler(compiler + " " + all_flags + " -I'" + folder.string() + "' -I'" + root.string() + "' -c '" +
                   (folder / "kernel.cc").string() + "' -o '" + object.string() + "'",
               folder / ("log" + own));
  run_compiler(compiler + " -shared '" + object.string() + "' -o '" + linked.string() + "'",
               folder / ("log" + own));
  fs::remove(object);
  fs::rename(linked, library);
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return library;
}

}  // namespace ark::emulator
