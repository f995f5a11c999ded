// What the compiler makes of the loops of known models, without a GPU: registers, spills, shared memory and
// size of code of each architecture against budget.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/compile.h"
#include "engine/cuda/codegen.h"
#include "engine/cuda/image.h"
#include "engine/cuda/nvrtc.h"
#include "engine/program/kv_codec.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::cuda {
namespace {

using test::TokenGraphOptions;

// kUndefined: as a GPU is given them.
KernelSource source_of_model(const DecoderModel& model, int32_t ranks, bool small_tiles,
                             DType kv_dtype = DType::kUndefined) {
  CompileOptions options;
  options.ranks = ranks;
  options.kv_dtype = kv_dtype;
  const Compiled compiled = compile_decoder(model, options);
  std::vector<const Program*> programs;
  for (const Program& program : compiled.programs) programs.push_back(&program);
  return make_source(VariantSet(programs, Numerics::kExact), {.small_tiles = small_tiles});
}

// Of this process: what others do on the machine matters less than to a clock on the wall.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Of the models' kinds and widths; two layers and a small vocabulary, since neither is code.
KernelSource source_of_model(const std::string& name, bool small_tiles) {
  TokenGraphOptions o{.layers = 2, .vocabulary = 512, .max_positions = 64};
  if (name == "gpt2-124m-f16") {
    o.hidden = 768, o.heads = o.kv_heads = 12, o.head_dim = 64, o.intermediate = 3072, o.weight = DType::kF16;
    return source_of_model(test::gpt2_tokens(o), 1, small_tiles);
  }
  if (name == "smollm2-135m-f32") {
    o.hidden = 576, o.heads = 9, o.kv_heads = 3, o.head_dim = 64, o.intermediate = 1536;
    return source_of_model(test::llama_tokens(o), 1, small_tiles);
  }
  o.hidden = 2048, o.heads = 32, o.kv_heads = 8, o.head_dim = 64, o.intermediate = 8192, o.layers = 1;
  o.weight = DType::kBF16;
  if (name == "llama-1b-u4") o.bits = 4, o.block = 32;
  return source_of_model(test::llama_tokens(o), 2, small_tiles);  // with what ranks exchange
}

class Sass : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    compiler_ = open_nvrtc(&why);
    if (compiler_) return;
    if (std::getenv("ARK_REQUIRE_NVRTC")) FAIL() << why;  // where all tests run: no budget is held unseen
    GTEST_SKIP() << why;
  }
  std::unique_ptr<Compiler> compiler_;
};

// Bytes of instructions in a cubin, an ELF file of 64 bits: its sections .text.*; names and tables are not counted.
std::size_t instruction_bytes(const std::vector<std::byte>& cubin) {
  const auto at = [&](std::size_t place, auto value) {
    if (place + sizeof value <= cubin.size()) std::memcpy(&value, cubin.data() + place, sizeof value);
    return value;
  };
  const auto header = [&](std::size_t i) { return at(0x28, uint64_t{0}) + i * at(0x3a, uint16_t{0}); };
  const std::size_t names = at(header(at(0x3e, uint16_t{0})) + 0x18, uint64_t{0});
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < at(0x3c, uint16_t{0}); ++i) {
    const std::size_t name = names + at(header(i), uint32_t{0});
    if (name + 6 < cubin.size() && std::memcmp(cubin.data() + name, ".text.", 6) == 0)
      bytes += at(header(i) + 0x20, uint64_t{0});
  }
  return bytes;
}

TEST_F(Sass, KeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const auto budget = nlohmann::json::parse(in);
  // Those that the project names are held for each model; of the others, which differ in stages and shared memory, one
  // is enough but for ARK_FULL=1.
  const auto is_named = [](const std::string& arch) {
    return arch == "sm_80" || arch == "sm_90a" || arch == "sm_100";
  };
  constexpr std::string_view kModelOfOthers = "llama-1b-bf16";
  for (const char* name : {"gpt2-124m-f16", "smollm2-135m-f32", "llama-1b-bf16", "llama-1b-u4"}) {
    for (const auto& [arch, limit] : budget.at("arch").items()) {
      const auto& known = compiler_->architectures();
      if (std::find(known.begin(), known.end(), std::atoi(arch.c_str() + 3)) == known.end()) {
        std::cout << "NVRTC " << compiler_->version() << " does not know " << arch << "\n";
        continue;
      }
      if (!is_named(arch) && kModelOfOthers != name && !std::getenv("ARK_FULL")) continue;
      const int shared = limit.at("shared").get<int>();
      const TileShape tiles = tiles_for(shared);
      const KernelSource source = source_of_model(name, tiles.scratch == kSmallTiles.scratch);
      const double start = cpu_seconds();
      const CompiledCode code = compiler_->compile(source, arch);
      const double seconds = cpu_seconds() - start;
      const KernelFacts& facts = code.facts;
      std::cout << name << " " << arch << ": " << facts.registers << " registers, " << facts.spilled_bytes
                << " bytes spilled, " << facts.stack_bytes << " of stack, " << facts.static_shared
                << " static shared, " << instruction_bytes(code.cubin) << " of code, compiled in " << seconds
                << " s of CPU time\n";
      EXPECT_GT(facts.registers, 0) << "the compiler's log was not understood";
      EXPECT_GT(instruction_bytes(code.cubin), 0u) << "the cubin was not understood";
      EXPECT_LE(facts.registers, limit.at("registers").get<int>()) << name << " " << arch;
      EXPECT_LE(facts.spilled_bytes, limit.value("spilled", 0)) << name << " " << arch;
      EXPECT_LE(facts.stack_bytes, limit.at("stack").get<int>()) << name << " " << arch;
      const SharedLayout layout = shared_layout(limit.at("stages").get<int>(), tiles.scratch);
      EXPECT_LE(facts.static_shared + static_cast<int>(layout.total), shared) << name << " " << arch;
      EXPECT_LE(instruction_bytes(code.cubin), limit.at("code").get<std::size_t>()) << name << " " << arch;
      EXPECT_LE(seconds, limit.at("seconds").get<double>()) << name << " " << arch;
    }
  }
}

// Attention and appending in the types that no model above has, which those of a GPU without options are.
TEST_F(Sass, KeysAndValuesOfEachTypeKeepToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const nlohmann::json limit = nlohmann::json::parse(in).at("arch").at("sm_90a");
  const DecoderModel model = test::llama_tokens({.heads = 4, .kv_heads = 2, .head_dim = 128});
  for (const KvCodec& codec : kv_codecs()) {
    if (!codec.format.has_scales()) continue;
    const CompiledCode code = compiler_->compile(source_of_model(model, 1, false, codec.type), "sm_90a");
    EXPECT_LE(code.facts.registers, limit.at("registers").get<int>()) << codec.name;
    EXPECT_EQ(code.facts.spilled_bytes, 0) << codec.name;
    EXPECT_LE(code.facts.stack_bytes, limit.at("stack").get<int>()) << codec.name;
    EXPECT_LE(instruction_bytes(code.cubin), limit.at("code").get<std::size_t>()) << codec.name;
  }
}

}  // namespace
}  // namespace ark::cuda
