#include "engine/cuda/cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/scratch_folder.h"

namespace ark::cuda {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;

// "Compiles" a source to bytes that follow from it, and counts.
class CountingCompiler : public Compiler {
 public:
  const std::string& version() const override { return version_; }
  const std::vector<std::string>& options() const override { return options_; }
  CompiledCode compile(const KernelSource& source, const std::string& arch) override {
    ++count;
    return expected(source, arch);
  }
  static CompiledCode expected(const KernelSource& source, const std::string& arch) {
    CompiledCode code;
    for (int i = 0; i < 2000; ++i)
      for (char c : source.text + arch) code.cubin.push_back(static_cast<std::byte>(c + i));
    code.facts = {static_cast<int32_t>(source.text.size()), 0, 8, 512, 0.5};
    return code;
  }
  int count = 0;
  std::string version_ = "13.0";
  std::vector<std::string> options_ = {"--fmad=false"};
};

KernelSource source(const std::string& text) { return {text, {{"a.h", "int a;"}}, {"-DX=1"}, "ark_loop"}; }

CompiledCode get(CountingCompiler& compiler, const fs::path& folder, const KernelSource& s) {
  return compile_cached(compiler, DiskCache(folder, 1 << 30), s, "sm_90a", "13.0");
}

TEST(CodeCache, KeepsCodeAndFacts) {
  const ScratchFolder folder;
  CountingCompiler compiler;
  const CompiledCode first = get(compiler, folder.path() / "deep/er", source("one"));
  const CompiledCode second = get(compiler, folder.path() / "deep/er", source("one"));
  EXPECT_EQ(compiler.count, 1);
  EXPECT_EQ(first.cubin, second.cubin);
  EXPECT_EQ(second.facts.registers, 3);
  EXPECT_EQ(second.facts.static_shared, 512);
  EXPECT_EQ(second.facts.compile_seconds, 0);
}

TEST(CodeCache, KeyCoversAllThatTheCodeDependsOn) {
  CountingCompiler compiler, newer, plain;
  newer.version_ = "13.1";
  plain.options_ = {};
  const KernelSource base = source("one");
  KernelSource text = base, header = base, name = base, flag = base, entry = base;
  text.text = "two";
  header.headers[0].text = "int b;";
  name.headers[0].name = "b.h";
  flag.flags = {"-DX=2"};
  entry.entry = "other";
  std::vector<std::string> keys = {
      cache_key(base, "sm_90a", compiler, "13.0"), cache_key(base, "sm_80", compiler, "13.0"),
      cache_key(base, "sm_90a", newer, "13.0"), cache_key(base, "sm_90a", plain, "13.0"),
      cache_key(base, "sm_90a", compiler, "12.9")};
  for (const KernelSource* s : {&text, &header, &name, &flag, &entry})
    keys.push_back(cache_key(*s, "sm_90a", compiler, "13.0"));
  EXPECT_EQ(keys[0], cache_key(base, "sm_90a", compiler, "13.0"));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

TEST(CodeCache, CorruptEntriesAreCompiledAgain) {
  const ScratchFolder folder;
  CountingCompiler compiler;
  const KernelSource s = source("one");
  const CompiledCode code = get(compiler, folder.path(), s);
  const fs::path entry = folder.path() / cache_key(s, "sm_90a", compiler, "13.0");
  ASSERT_TRUE(fs::exists(entry));
  const auto size = fs::file_size(entry);
  int compiled = 1;
  for (const std::uintmax_t at :
       {std::uintmax_t{0}, std::uintmax_t{20}, std::uintmax_t{75}, size / 2, size - 1}) {
    {
      std::fstream file(entry, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(at));
      const char old = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(old ^ 1));
    }
    EXPECT_EQ(get(compiler, folder.path(), s).cubin, code.cubin) << at;
    EXPECT_EQ(compiler.count, ++compiled) << "a flipped bit at " << at << " went unnoticed";
  }
  for (const std::uintmax_t length : {std::uintmax_t{0}, std::uintmax_t{50}, std::uintmax_t{80}, size - 1}) {
    fs::resize_file(entry, length);
    EXPECT_EQ(get(compiler, folder.path(), s).cubin, code.cubin);
    EXPECT_EQ(compiler.count, ++compiled) << "a cut at " << length << " went unnoticed";
  }
  EXPECT_EQ(get(compiler, folder.path(), s).cubin, code.cubin);
  EXPECT_EQ(compiler.count, compiled);
}

// Whose entries have so many registers, and as many as they can if none are moved.
class FewRegisters final : public CountingCompiler {
 public:
  explicit FewRegisters(int32_t registers) : registers_(registers) {}
  CompiledCode compile(const KernelSource& source, const std::string& arch) override {
    CompiledCode code = CountingCompiler::compile(source, arch);
    const bool keeps = source.flags.back() == "-DKEEPS=1";
    code.cubin.push_back(std::byte{keeps});
    code.facts.registers = keeps ? 100 : registers_;
    return code;
  }

 private:
  int32_t registers_;
};

TEST(CodeCache, EntriesWithTooFewRegistersToMoveKeepThem) {
  KernelSource moving = source("one");
  moving.launch_registers = 168, moving.keeping_flag = "-DKEEPS=1";
  const auto keeps = [&](int32_t registers, const KernelSource& s, const std::string& arch) {
    const ScratchFolder folder;
    FewRegisters compiler(registers);
    const DiskCache cache(folder.path(), 1 << 30);
    const CompiledCode first = compile_cached(compiler, cache, s, arch, "13.0");
    const int count = compiler.count;
    EXPECT_EQ(compile_cached(compiler, cache, s, arch, "13.0").cubin, first.cubin);
    EXPECT_EQ(compiler.count, count) << "kept under the same name";
    return first.cubin.back() == std::byte{1};
  };
  EXPECT_TRUE(keeps(167, moving, "sm_90a"));
  EXPECT_FALSE(keeps(168, moving, "sm_90a"));
  EXPECT_FALSE(keeps(136, moving, "sm_80")) << "nothing is moved there";
  EXPECT_FALSE(keeps(0, moving, "sm_90a")) << "unknown";
  EXPECT_FALSE(keeps(100, source("one"), "sm_90a"));
}

TEST(CodeCache, WorksWithoutAFolder) {
  CountingCompiler compiler;
  for (const fs::path& folder : {fs::path(), fs::path("/proc/no/such/folder")}) {
    get(compiler, folder, source("one"));
    get(compiler, folder, source("one"));
  }
  EXPECT_EQ(compiler.count, 4);
}

}  // namespace
}  // namespace ark::cuda
