#include "engine/cuda/nvrtc.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "engine/cuda/library.h"

namespace ark::cuda {
namespace {

namespace fs = std::filesystem;

// Our declarations of the part of nvrtc.h (CUDA 12 and 13) that is used.
using NvrtcProgram = struct ProgramTag*;
struct Functions {
  explicit Functions(const Library& from) : library(from) {}

  const Library& library;
  const char* (*error_text)(int) = library.function("nvrtcGetErrorString");
  int (*version)(int*, int*) = library.function("nvrtcVersion");
  int (*create)(NvrtcProgram*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names) = library.function("nvrtcCreateProgram");
  int (*destroy)(NvrtcProgram*) = library.function("nvrtcDestroyProgram");
  int (*compile)(NvrtcProgram, int options, const char* const*) = library.function("nvrtcCompileProgram");
  int (*code_size)(NvrtcProgram, std::size_t*) = library.function("nvrtcGetCUBINSize");
  int (*code)(NvrtcProgram, char*) = library.function("nvrtcGetCUBIN");
  int (*ptx_size)(NvrtcProgram, std::size_t*) = library.function("nvrtcGetPTXSize");
  int (*ptx)(NvrtcProgram, char*) = library.function("nvrtcGetPTX");
  int (*log_size)(NvrtcProgram, std::size_t*) = library.function("nvrtcGetProgramLogSize");
  int (*log)(NvrtcProgram, char*) = library.function("nvrtcGetProgramLog");
  int (*arch_count)(int*) = library.function("nvrtcGetNumSupportedArchs");
  int (*archs)(int*) = library.function("nvrtcGetSupportedArchs");
};

// The compiler's complaint without its notes: the lines with "error", at most three.
std::string complaint(const std::string& log) {
  std::istringstream lines(log);
  std::string out;
  int found = 0;
  for (std::string line; found < 3 && std::getline(lines, line);) {
    if (line.find("error") == std::string::npos && line.find("fatal") == std::string::npos) continue;
    out += (found++ ? "; " : "") + escaped(line, 300);
  }
  return found ? out : escaped(log, 600);
}

class Nvrtc final : public Compiler {
 public:
  explicit Nvrtc(Library library) : library_(std::move(library)), f_(library_) {
    int major = 0, minor = 0;
    check(f_.version(&major, &minor), "nvrtcVersion");
    version_ = std::to_string(major) + "." + std::to_string(minor);
  }

  const std::string& version() const override { return version_; }
  const std::vector<std::string>& options() const override { return options_; }
  std::vector<int> architectures() const override {
    int count = 0;
    check(f_.arch_count(&count), "nvrtcGetNumSupportedArchs");
    std::vector<int> all(static_cast<std::size_t>(count));
    check(f_.archs(all.data()), "nvrtcGetSupportedArchs");
    return all;
  }

  CompiledCode compile(const KernelSource& source, const std::string& arch) override {
    const auto start = std::chrono::steady_clock::now();
    std::vector<const char*> texts, names, flags;
    for (const SourceFile& header : source.headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.name.c_str());
    }
    const std::string target = "--gpu-architecture=" + arch;
    flags.push_back(target.c_str());
    for (const std::string& option : options_) flags.push_back(option.c_str());
    for (const std::string& flag : source.flags) flags.push_back(flag.c_str());
    Handle program(f_);
    check(f_.create(&program.value, source.text.c_str(), "ark_loop.cu", static_cast<int>(texts.size()),
                    texts.data(), names.data()),
          "nvrtcCreateProgram");
    const int result = f_.compile(program.value, static_cast<int>(flags.size()), flags.data());
    const std::string log = read_log(program.value);
    if (result != 0)
      throw Error(Code::kInternal,
                  "NVRTC " + version_ + " refuses the generated source for " + arch + ": " + complaint(log));
    CompiledCode code;
    std::size_t bytes = 0;
    const bool is_text = arch.starts_with("compute_");
    check((is_text ? f_.ptx_size : f_.code_size)(program.value, &bytes), "the size of the code");
    code.cubin.resize(bytes);
    check((is_text ? f_.ptx : f_.code)(program.value, reinterpret_cast<char*>(code.cubin.data())),
          "the code");
    code.facts = facts_of(log, source.entry);
    code.facts.compile_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return code;
  }

 private:
  struct Handle {
    explicit Handle(const Functions& functions) : f(functions) {}
    ~Handle() {
      if (value) f.destroy(&value);
    }
    const Functions& f;
    NvrtcProgram value = nullptr;
  };

  void check(int result, const char* what) const {
    if (result != 0) throw Error(Code::kInternal, std::string(what) + " of NVRTC: " + f_.error_text(result));
  }

  std::string read_log(NvrtcProgram program) const {
    std::size_t bytes = 0;
    check(f_.log_size(program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, '\0');
    if (bytes) check(f_.log(program, log.data()), "nvrtcGetProgramLog");
    while (!log.empty() && log.back() == '\0') log.pop_back();
    return log;
  }

  Library library_;
  Functions f_;
  std::string version_;
  // --fmad=false: a multiply and an add are one only where the source says so, as on the CPU.
  const std::vector<std::string> options_ = {"--std=c++17", "--fmad=false", "--ptxas-options=-v"};
};

void add_files(const fs::path& folder, std::vector<std::string>& into) {
  for (const std::string& name : names_in(folder))
    if (name.starts_with("libnvrtc.so")) into.push_back(folder / name);
}

}  // namespace

std::vector<std::string> nvrtc_candidates(const std::string& variable, int major) {
  std::vector<std::string> all;
  const auto best_first = [&] {
    const std::string best = "libnvrtc.so." + std::to_string(major);
    std::stable_partition(all.begin(), all.end(), [&](const std::string& file) {
      const std::string name = fs::path(file).filename().string();
      return name == best || name.starts_with(best + ".");
    });
    return all;
  };
  if (!variable.empty()) {  // an answer, not a hint
    std::error_code error;
    if (!fs::is_directory(variable, error)) return {variable};
    add_files(variable, all);
    return best_first();
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) all.emplace_back(name);
  add_files("/usr/local/cuda/lib64", all);
  // The folder of a wheel (nvidia-cuda-nvrtc) in the active virtual environment.
  if (const char* environment = std::getenv("VIRTUAL_ENV")) {
    const fs::path lib = fs::path(environment) / "lib";
    for (const std::string& python : names_in(lib))
      for (const char* part : {"cu13", "cuda_nvrtc"})
        add_files(lib / python / "site-packages" / "nvidia" / part / "lib", all);
  }
  return best_first();
}

std::unique_ptr<Compiler> open_nvrtc(std::string* why, int major, const std::vector<std::string>& refused) {
  const char* variable = std::getenv("ARK_NVRTC");
  for (const std::string& candidate : nvrtc_candidates(variable ? variable : "", major)) {
    Library library({candidate});
    if (!library.is_open()) continue;
    auto compiler = std::make_unique<Nvrtc>(std::move(library));
    if (std::find(refused.begin(), refused.end(), compiler->version()) == refused.end()) return compiler;
  }
  if (why)
    *why = variable ? "ARK_NVRTC=" + escaped(variable) + " cannot be loaded"
                    : "libnvrtc.so cannot be loaded; install the CUDA toolkit or the wheel "
                      "nvidia-cuda-nvrtc, or set ARK_NVRTC";
  return nullptr;
}

std::string arch_for(int major, int minor, const std::vector<int>& known) {
  int best = known.empty() ? major * 10 + minor : 0;
  for (const int arch : known) {
    // Code for embedded GPUs runs on these alone.
    const bool is_embedded = arch == 72 || arch == 87 || arch == 101 || arch == 110;
    if (is_embedded && arch != major * 10 + minor) continue;
    if (arch / 10 == major && arch % 10 <= minor) best = std::max(best, arch);
  }
  // Code for one architecture alone, where loops take what only that has (dma/device_cuda.h, ARK_MOVES_REGISTERS).
  const bool is_alone = best == major * 10 + minor && (best == 90 || best == 100 || best == 103);
  return best == 0 ? "" : "sm_" + std::to_string(best) + (is_alone ? "a" : "");
}

KernelFacts facts_of(const std::string& log, const std::string& entry) {
  // ptxas info    : Compiling entry function 'ark_loop' for 'sm_90a'
  // ptxas info    : Function properties for ark_loop
  //     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
  // ptxas info    : Used 96 registers, used 1 barriers, 512 bytes smem
  KernelFacts facts;
  static const std::regex kStack(R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill)");
  static const std::regex kUsed(R"(Used (\d+) registers)");
  static const std::regex kShared(R"((\d+) bytes smem)");
  std::istringstream lines(log);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (line.find("Compiling entry function") != std::string::npos)
      inside = line.find("'" + entry + "'") != std::string::npos;
    if (!inside) continue;
    // Of the entry and of each function that it calls.
    if (std::regex_search(line, m, kStack)) {
      facts.stack_bytes = std::max(facts.stack_bytes, std::stoi(m[1]));
      facts.spilled_bytes = std::max({facts.spilled_bytes, std::stoi(m[2]), std::stoi(m[3])});
    }
    if (std::regex_search(line, m, kUsed)) facts.registers = std::stoi(m[1]);
    if (std::regex_search(line, m, kShared)) facts.static_shared = std::stoi(m[1]);
  }
  return facts;
}

}  // namespace ark::cuda
