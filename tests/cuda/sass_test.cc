// What the compiler makes of the loops of known models, without a GPU: registers, spills, shared memory and
// size of code of each architecture against budget.json, what each body's instructions are against sass_shape.json.
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
#include "engine/cuda/block_layout.h"
#include "engine/cuda/codegen.h"
#include "engine/cuda/nvrtc.h"
#include "engine/program/kv_codec.h"
#include "tests/cuda/sass_shape.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"
#include "tests/scratch_folder.h"

namespace ark::cuda {
namespace {

using test::TokenGraphOptions;

// kUndefined: as a GPU is given them.
KernelSource source_of_model(const DecoderModel& model, int32_t ranks, const TileShape& tiles,
                             DType kv_dtype = DType::kUndefined, Numerics numerics = Numerics::kExact) {
  CompileOptions options;
  options.ranks = ranks;
  options.kv_dtype = kv_dtype;
  const Compiled compiled = compile_decoder(model, options);
  std::vector<const Program*> programs;
  for (const Program& program : compiled.programs) programs.push_back(&program);
  return make_source(VariantSet(programs, numerics), {.tiles = tiles});
}

// Of this process: what others do on the machine matters less than to a clock on the wall.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

bool is_fast(std::string_view model) { return model.ends_with("-fast"); }
bool has_codes(std::string_view model) { return model.ends_with("-u4"); }
// What a loop has beside others: instructions' bytes.
std::size_t more_code(std::string_view model, const KernelSource& source, const nlohmann::json& budget) {
  const auto is_wide = [](const std::string& flag) { return flag.starts_with("-DARK_WIDE_ROWS"); };
  const auto of = [&](const char* kind) { return budget.at(kind).at("code").get<std::size_t>(); };
  return (std::ranges::any_of(source.flags, is_wide) ? of("wide") : 0) + (has_codes(model) ? of("codes") : 0);
}

// Of the models' kinds and widths; two layers and a small vocabulary, since neither is code.
KernelSource source_of_model(const std::string& name, const TileShape& tiles) {
  TokenGraphOptions o{.layers = 2, .vocabulary = 512, .max_positions = 64};
  if (name == "gpt2-124m-f16") {
    o.hidden = 768, o.heads = o.kv_heads = 12, o.head_dim = 64, o.intermediate = 3072, o.weight = DType::kF16;
    return source_of_model(test::gpt2_tokens(o), 1, tiles);
  }
  if (name == "smollm2-135m-f32") {
    o.hidden = 576, o.heads = 9, o.kv_heads = 3, o.head_dim = 64, o.intermediate = 1536;
    return source_of_model(test::llama_tokens(o), 1, tiles);
  }
  o.hidden = 2048, o.heads = 32, o.kv_heads = 8, o.head_dim = 64, o.intermediate = 8192, o.layers = 1;
  o.weight = DType::kBF16;
  if (name == "llama-1b-u4") o.bits = 4, o.block = 32;
  // With what ranks exchange.
  return source_of_model(test::llama_tokens(o), 2, tiles, DType::kUndefined,
                         is_fast(name) ? Numerics::kFast : Numerics::kExact);
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

// What tensor cores are given in a matrix product's loops: all columns of the panel times the two parts of eight rows,
// and of twice eight in a loop of its own. Of a wide tile: one part, of four times eight; or both of twice eight, at
// once or, where registers cannot be moved, half the columns in a loop each, and of eight. Of codes: in a function of
// its own, or wide, both parts of eight, and of twice eight.
// `attention`: the body's name, if the loop has one.
int products_of(const std::string& model, const std::string& arch, const std::string& attention,
                const std::string& function) {
  if (has_codes(model) && (function == "wide_pieces" || function == "multiply_codes"))
    return (1 + 2) * 2 * (64 / 16);
  if (function == "wide_pieces")
    return (is_fast(model) ? 4 : arch.ends_with('a') ? 2 * 2 : 2 * 2 + 2) * (64 / 16);
  int panel = 0, path = 0, key = 0, value = 0;
  // Attention: scores of 32 elements of keys, in a loop, and values times weights, of 64 elements unrolled; of two
  // strips where registers are moved.
  if (function == "attend" && attention.starts_with("Attention<dev::") &&
      std::sscanf(attention.c_str() + attention.find(", "), ", %d, %d", &key, &value) == 2) {
    const int strips = arch.ends_with('a') && key <= 128 && value <= 64 ? 2 : 1;
    return key % 8 != 0 || value % 8 != 0 ? 0 : strips * (16 + 32 * ((std::min(value, 128) + 63) / 64));
  }
  // By strips: the same scores, then the elements that a warp takes of a value, unrolled.
  if (function == "attend_many" &&
      std::sscanf(attention.c_str() + attention.find(", "), ", %d, %d", &key, &value) == 2)
    return 16 + 8 * (value > 80 ? value / 2 : value) / 16;
  // Products of codes are in multiply_codes.
  const bool are_numbers = function.starts_with("MatMul<") && function.find(">, ") == std::string::npos;
  if (!are_numbers ||
      std::sscanf(function.c_str() + function.find(", ") + 2, "%d, (MatMulPath)%d", &panel, &path) != 2 ||
      path == 0)
    return 0;
  return 6 * (panel / 16);
}

// What each body's machine code is made of, where there is a nvdisasm.
class ShapeBudget {
 public:
  ShapeBudget() : nvdisasm_(test::find_nvdisasm()) {
    std::ifstream in(test::source_root() / "tests/cuda/sass_shape.json");
    budget_ = nlohmann::json::parse(in);
  }
  bool has_tool() const { return nvdisasm_.has_value(); }
  void check(const std::string& model, const std::string& arch, const std::vector<std::byte>& cubin) const {
    const auto& held = budget_.at("held");
    if (!nvdisasm_) return;
    const bool is_held =
        held.contains(model) && std::find(held[model].begin(), held[model].end(), arch) != held[model].end();
    if (!is_held && !std::getenv("ARK_FULL")) return;
    const bool has_bulk = std::atoi(arch.c_str() + 3) >= 90;
    const auto shapes = test::shapes_of(cubin, *nvdisasm_, folder_.path());
    ASSERT_TRUE(shapes.contains("produce")) << "nvdisasm's text was not understood";
    std::string attention;
    for (const auto& [function, shape] : shapes) {
      if (function.starts_with("Attention<")) attention = function;
    }
    for (const auto& [function, shape] : shapes) {
      const std::string what = model + " " + arch + " " + function;
      const std::string body = function.substr(0, function.find('<'));
      const auto most = [&](const char* kind) { return budget_.at("at most").at(kind).value(body, 0); };
      const bool multiplies = function == "wide_pieces" || function == "multiply_codes";
      if (!has_codes(model) || arch.ends_with('a') || multiplies) {  // else budget.json says what they spill
        EXPECT_LE(shape.local, most("local")) << what << ": loads and stores of local memory";
      }
      EXPECT_LE(shape.generic, most("generic")) << what << ": generic loads and stores";
      EXPECT_LE(shape.system, most("system")) << what << ": fences of the system";
      EXPECT_LE(shape.rolled, most("rolled")) << what << ": loops that wait for each load";
      EXPECT_EQ(shape.products, products_of(model, arch, attention, function))
          << what << ": products on tensor cores";
      // Where the compiler finds that a side needs more it leaves both as they are.
      EXPECT_EQ(shape.moves, function == "ark_loop" && arch.ends_with('a') ? 2 : 0) << what << ": registers";
      const bool streams = function == "produce";
      EXPECT_EQ(shape.bulk_copies, streams && has_bulk ? 1 : 0) << what << ": bulk copies";
      if (streams) {
        EXPECT_EQ(shape.async_copies > 0, !has_bulk) << what << ": copies of single threads";
      }
    }
  }

 private:
  std::optional<std::filesystem::path> nvdisasm_;
  nlohmann::json budget_;
  test::ScratchFolder folder_;
};

TEST_F(Sass, KeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const auto budget = nlohmann::json::parse(in);
  // Each model on one architecture; one model on all of them; codes, which hold the most in registers, where registers
  // and copies are others. ARK_FULL=1: each on all.
  const auto is_held = [](std::string_view model, std::string_view arch) {
    return arch == "sm_90a" || model == "llama-1b-bf16" ||
           (has_codes(model) && (arch == "sm_80" || arch == "sm_100a")) || std::getenv("ARK_FULL");
  };
  const ShapeBudget shapes;
  for (const std::string name :
       {"gpt2-124m-f16", "smollm2-135m-f32", "llama-1b-bf16", "llama-1b-u4", "llama-1b-bf16-fast"}) {
    for (const auto& [arch, limit] : budget.at("arch").items()) {
      const auto& known = compiler_->architectures();
      if (std::find(known.begin(), known.end(), std::atoi(arch.c_str() + 3)) == known.end()) {
        std::cout << "NVRTC " << compiler_->version() << " does not know " << arch << "\n";
        continue;
      }
      if (!is_held(name, arch)) continue;
      const int shared = limit.at("shared").get<int>();
      const TileShape tiles = tiles_for(shared);
      const KernelSource source = source_of_model(name, tiles);
      const bool is_alone = std::ranges::count(source.flags, "-DARK_ALONE=1") > 0;
      const auto of_peers = is_alone ? 0 : budget.at("peers").at("code").get<std::size_t>();
      const bool has_strips = arch.ends_with('a') && source.text.find("Attention<dev::") != std::string::npos;
      const auto of_strips = has_strips ? budget.at("strips").at("code").get<std::size_t>() : 0;
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
      if (arch.ends_with('a')) {
        EXPECT_EQ(facts.registers, kLaunchRegisters) << "fewer, and who takes some waits for ever";
      }
      const int spilled = has_codes(name) ? budget.at("codes").at("spilled").value(arch, 0) : 0;
      EXPECT_LE(facts.spilled_bytes, spilled) << name << " " << arch;
      EXPECT_GE(facts.spilled_bytes, spilled - 8) << name << " " << arch << ": better: lower the budget";
      EXPECT_LE(facts.stack_bytes, limit.at("stack").get<int>()) << name << " " << arch;
      const SharedLayout layout = shared_layout(limit.at("stages").get<int>(), tiles.scratch);
      EXPECT_LE(facts.static_shared + static_cast<int>(layout.total), shared) << name << " " << arch;
      EXPECT_LE(instruction_bytes(code.cubin),
                limit.at("code").get<std::size_t>() + more_code(name, source, budget) + of_peers + of_strips)
          << name << " " << arch;
      EXPECT_LE(seconds, limit.at("seconds").get<double>()) << name << " " << arch;
      shapes.check(name, arch, code.cubin);
    }
  }
  if (!shapes.has_tool())
    GTEST_SKIP()
        << "registers and sizes are held, but not what bodies are made of: no nvdisasm (the wheel of "
           "scripts/requirements-nvdisasm.txt, or ARK_NVDISASM)";
}

// In the words of each architecture.
TEST(SassText, CountsWhatWouldBeADefect) {
  const auto shape = [](std::initializer_list<const char*> lines) {
    test::SassText text;
    text.read("        .type           $ark_loop$_ZN3ark4cuda7produceERKNS0_14LoopParametersE,@function\n");
    for (const char* line : lines) text.read(line);
    return text.shapes().at("produce");
  };
  EXPECT_EQ(shape({"        /*0010*/                   STL.64 [R1+0x8], R4 ;\n",
                   "        /*0020*/              @!P0 LDL.LU R7, [R1] ;\n"})
                .local,
            2);
  EXPECT_EQ(shape({"        /*0010*/                   LD.E.64 R4, [R2.64+0x28] ;\n",        // sm_80
                   "        /*0020*/               @P1 LD.E R4, desc[UR8][R2.64+0x28] ;\n",  // sm_90a
                   "        /*0030*/                   ST.E.U16 desc[UR8][R2.64], R4 ;\n",
                   "        /*0040*/                   LDG.E.STRONG.GPU R4, desc[UR8][R2.64] ;\n",
                   "        /*0050*/                   STS.128 [R2], R4 ;\n"})
                .generic,
            3);
  EXPECT_EQ(shape({"        /*0010*/                   MEMBAR.ALL.GPU ;\n",
                   "        /*0020*/                   MEMBAR.ALL.SYS ;\n",
                   "        /*0030*/                   MEMBAR.SC.SYS ;\n"})
                .system,
            2);
  constexpr const char* kHead = ".L_x_7:\n";
  constexpr const char* kLoad =
      "        /*0010*/                   LDG.E.STRONG.GPU R5, desc[UR4][R2.64] ;\n";
  constexpr const char* kStore = "        /*0020*/                   STG.E desc[UR4][R2.64], R5 ;\n";
  constexpr const char* kBack = "        /*0030*/              @!P0 BRA `(.L_x_7) ;\n";
  EXPECT_EQ(shape({kHead, kLoad, kStore, kBack}).rolled, 1);
  EXPECT_EQ(shape({kHead, kLoad, kBack, kStore, kBack}).rolled, 1) << "`continue`";
  EXPECT_EQ(shape({kHead, kLoad, kLoad, kLoad, kLoad, kStore, kBack}).rolled, 0) << "four at once";
  EXPECT_EQ(shape({kLoad, kHead, kStore, kBack, kLoad}).rolled, 0) << "outside";
  EXPECT_EQ(
      shape({".L_x_6:\n", kLoad, kHead, kLoad, kStore, kBack, kStore, "    /*0040*/    BRA `(.L_x_6) ;\n"})
          .rolled,
      1)
      << "the innermost";
  const test::SassShape other =
      shape({"        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n",
             "        /*0020*/                   UBLKCP.S.G [UR8], [UR6], UR9, desc[UR4] ;\n",
             "        /*0030*/                   LDGSTS.E.BYPASS.128 [R3], [R4.64] ;\n"});
  EXPECT_EQ(other.products, 1);
  EXPECT_EQ(other.bulk_copies, 1);
  EXPECT_EQ(other.async_copies, 1);
}

// What code for B300s alone has, and what a loop is whose registers the compiler left too few of.
TEST_F(Sass, RegistersAreMovedWhereTheyCanBe) {
  const auto moves = [&](const KernelSource& source, const std::string& arch) {
    const std::vector<std::byte> text = compiler_->compile(source, arch).cubin;
    return std::string_view(reinterpret_cast<const char*>(text.data()), text.size()).find("setmaxnreg.inc") !=
           std::string_view::npos;
  };
  KernelSource source = source_of_model("smollm2-135m-f32", kLargestTiles);
  EXPECT_EQ(source.launch_registers, kLaunchRegisters);
  const auto& known = compiler_->architectures();
  if (std::find(known.begin(), known.end(), 103) != known.end()) {
    EXPECT_TRUE(moves(source, "compute_103a"));
  }
  EXPECT_TRUE(moves(source, "compute_90a"));
  EXPECT_FALSE(moves(source, "compute_90"));
  source.flags.push_back(source.keeping_flag);
  EXPECT_FALSE(moves(source, "compute_90a"));
}

// Attention and appending in the types that no model above has, which those of a GPU without options are.
TEST_F(Sass, KeysAndValuesOfEachTypeKeepToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const nlohmann::json limit = nlohmann::json::parse(in).at("arch").at("sm_90a");
  const DecoderModel model = test::llama_tokens({.heads = 4, .kv_heads = 2, .head_dim = 128});
  for (const KvCodec& codec : kv_codecs()) {
    if (!codec.format.has_scales()) continue;
    const CompiledCode code =
        compiler_->compile(source_of_model(model, 1, kLargestTiles, codec.type), "sm_90a");
    EXPECT_EQ(code.facts.registers, kLaunchRegisters) << codec.name;
    EXPECT_EQ(code.facts.spilled_bytes, 0) << codec.name;
    EXPECT_LE(code.facts.stack_bytes, limit.at("stack").get<int>()) << codec.name;
    EXPECT_LE(instruction_bytes(code.cubin), limit.at("code").get<std::size_t>()) << codec.name;
  }
}

// A row's sums, two chunks of a head, leave too few registers for all that is around the loop over keys.
TEST_F(Sass, HeadsOf128SpillNoMoreThanTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/budget.json");
  const auto budget = nlohmann::json::parse(in);
  TokenGraphOptions o{.heads = 4, .kv_heads = 2, .head_dim = 128};
  o.weight = DType::kBF16;
  for (const auto& [arch, most] : budget.at("heads of 128").items()) {
    const TileShape tiles = tiles_for(budget.at("arch").at(arch).at("shared").get<int>());
    const CompiledCode code =
        compiler_->compile(source_of_model(test::llama_tokens(o), 1, tiles, DType::kBF16), arch);
    if (arch.ends_with('a')) {
      EXPECT_EQ(code.facts.registers, kLaunchRegisters) << arch;
    }
    EXPECT_LE(code.facts.spilled_bytes, most.get<int>()) << arch;
    EXPECT_GE(code.facts.spilled_bytes, most.get<int>() - 8) << arch << ": better: lower the budget";
  }
}

}  // namespace
}  // namespace ark::cuda
