#include "engine/cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/ir/pointwise_host.h"
#include "engine/cuda/pointwise_source.h"
#include "engine/cuda/sources.h"
#include "tests/cuda/environment.h"
#include "tests/scratch_folder.h"

namespace ark::cuda {
namespace {

const char* const kLog =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'other' for 'sm_90a'\n"
    "ptxas info    : Function properties for other\n"
    "    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
    "ptxas info    : Used 255 registers, used 1 barriers, 99 bytes smem\n"
    "ptxas info    : Compiling entry function 'ark_loop' for 'sm_90a'\n"
    "ptxas info    : Function properties for ark_loop\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 96 registers, used 1 barriers, 512 bytes smem, 400 bytes cmem[0]\n";

TEST(Nvrtc, ReadsFactsOfTheRightEntry) {
  const KernelFacts loop = facts_of(kLog, "ark_loop"), other = facts_of(kLog, "other");
  EXPECT_EQ(loop.registers, 96);
  EXPECT_EQ(loop.spilled_bytes, 0);
  EXPECT_EQ(loop.static_shared, 512);
  EXPECT_EQ(other.registers, 255);
  EXPECT_EQ(other.spilled_bytes, 24);
}

TEST(Nvrtc, TheVariableIsAnAnswerNotAHint) {
  EXPECT_EQ(nvrtc_candidates("/no/such/libnvrtc.so"), std::vector<std::string>{"/no/such/libnvrtc.so"});
  const ark::test::ScratchFolder folder;
  std::ofstream(folder.path() / "libnvrtc.so.13");
  std::ofstream(folder.path() / "libnvrtc-builtins.so.13");
  EXPECT_EQ(nvrtc_candidates(folder.path()), std::vector<std::string>{folder.path() / "libnvrtc.so.13"});
  const test::Environment variable("ARK_NVRTC", "/no/such/libnvrtc.so");
  std::string why;
  EXPECT_EQ(open_nvrtc(&why), nullptr);
  EXPECT_EQ(why, "ARK_NVRTC=/no/such/libnvrtc.so cannot be loaded");
}

TEST(Nvrtc, FilesOfTheDriversVersionComeFirst) {
  const ark::test::ScratchFolder folder;
  for (const char* name : {"libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.13.0.1"})
    std::ofstream(folder.path() / name);
  const auto names = [&](int major) {
    std::vector<std::string> out;
    for (const std::string& file : nvrtc_candidates(folder.path(), major))
      out.push_back(std::filesystem::path(file).filename());
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(0), (Names{"libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.13.0.1"}));
  EXPECT_EQ(names(13), (Names{"libnvrtc.so.13", "libnvrtc.so.13.0.1", "libnvrtc.so.12"}));
  EXPECT_EQ(nvrtc_candidates("", 12).front(), "libnvrtc.so.12");
  EXPECT_EQ(nvrtc_candidates("", 13).front(), "libnvrtc.so.13");
}

TEST(Nvrtc, ARefusedVersionIsNotOpenedAgain) {
  std::string why;
  const auto compiler = open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  const auto other = open_nvrtc(nullptr, 0, {compiler->version()});
  if (other) {
    EXPECT_NE(other->version(), compiler->version());
  }
}

TEST(Nvrtc, CompilesForTheGpuOrTheNewestBeforeIt) {
  const std::vector<int> known = {80, 86, 90, 100};
  EXPECT_EQ(arch_for(8, 6, known), "sm_86");
  EXPECT_EQ(arch_for(8, 9, known), "sm_86");
  EXPECT_EQ(arch_for(9, 0, known), "sm_90a");
  EXPECT_EQ(arch_for(10, 0, known), "sm_100a");
  EXPECT_EQ(arch_for(10, 3, known), "sm_100") << "sm_100a runs on 10.0 alone";
  EXPECT_EQ(arch_for(10, 3, {100, 103}), "sm_103a");
  EXPECT_EQ(arch_for(12, 0, known), "");
  EXPECT_EQ(arch_for(12, 0, {}), "sm_120");
  EXPECT_EQ(arch_for(8, 9, {80, 86, 87}), "sm_86") << "87 is an embedded GPU";
  EXPECT_EQ(arch_for(8, 7, {80, 86, 87}), "sm_87");
}

TEST(Nvrtc, CompilesWithHeadersHandedOverByName) {
  std::string why;
  const auto compiler = open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  const KernelSource source{
      "#include \"dir/one.h\"\n"
      "extern \"C\" __global__ void ark_loop(Parameters p) { *p.out = kValue + SCALE; }\n",
      {{"dir/one.h", "#pragma once\n#include \"dir/two.h\"\nstruct Parameters { int* out; };\n"},
       {"dir/two.h", "#pragma once\nconstexpr int kValue = 3;\n"}},
      {"-DSCALE=4"},
      "ark_loop"};
  for (const char* arch : {"sm_80", "sm_90a", "sm_100"}) {
    const CompiledCode code = compiler->compile(source, arch);
    ASSERT_GT(code.cubin.size(), 64u);
    EXPECT_EQ(code.cubin[1], std::byte{'E'});  // an ELF file
    EXPECT_GT(code.facts.registers, 0);
    EXPECT_GT(code.facts.compile_seconds, 0);
  }
}

TEST(Nvrtc, CompilesFromTheHeadersThatTheBinaryCarries) {
  std::string why;
  const auto compiler = open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  const KernelSource source = source_of(
      "#include \"engine/cuda/post.h\"\n"
      "struct Words { unsigned* out; };\n"
      "ARK_KERNEL(ark_loop, Words, 32) { ark::dev::st_release<ark::dev::Scope::gpu>(p.out, 1u); }\n");
  for (const char* arch : {"sm_80", "sm_90a", "sm_100"}) {
    const CompiledCode code = compiler->compile(source, arch);
    EXPECT_GT(code.facts.registers, 0);
    EXPECT_EQ(code.facts.spilled_bytes, 0);
  }
}

// One expression of all of them, as the code generator writes it.
TEST(Nvrtc, CompilesEveryPointwiseOperator) {
  Variant variant{.code = OpCode::kPointwise};
  variant.pointwise = {{.op = Op::kIdentity, .input = 0}, {.op = Op::kIdentity, .input = 1}};
  for (const pointwise::Row& row : pointwise::rows()) {
    if (!pointwise::is_fusible(row)) continue;
    const auto last = static_cast<int32_t>(variant.pointwise.size()) - 1;
    const bool two = pointwise::operands_of(row) == 2;
    variant.pointwise.push_back({.op = row.op, .a = last, .b = two ? 0 : kNone, .p = 0.5f, .q = 2});
  }
  std::string text = pointwise_source(variant, 2).definition;
  for (std::size_t i = text.find("$N"); i != std::string::npos; i = text.find("$N", i))
    text.replace(i, 2, "0");
  EXPECT_NE(text.find("= pointwise::Softplus::of(r"), std::string::npos) << text;
  std::string why;
  const auto compiler = open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  const KernelSource source =
      source_of("#include \"engine/cuda/bodies/pointwise.h\"\nnamespace ark::cuda {\n" + text +
                "extern \"C\" __global__ void ark_loop(float* p) {\n"
                "  const float in[2] = {p[0], p[1]};\n"
                "  p[2] = Expression0::apply(in);\n}\n}\n");
  for (const char* arch : {"sm_80", "sm_90a"}) EXPECT_GT(compiler->compile(source, arch).facts.registers, 0);
  variant.pointwise.back().op = Op::kEqual;
  EXPECT_THROW(pointwise_source(variant, 2), Error) << "its result is no f32";
}

TEST(Nvrtc, RefusalsNameTheComplaint) {
  std::string why;
  const auto compiler = open_nvrtc(&why);
  if (!compiler) GTEST_SKIP() << why;
  try {
    compiler->compile({"__global__ void ark_loop() { undeclared(); }", {}, {}, "ark_loop"}, "sm_90a");
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("undeclared"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ark::cuda
