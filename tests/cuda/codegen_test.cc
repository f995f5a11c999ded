// The source of loop kernels, and the order in which weights are added up on a device.
#include "engine/cuda/codegen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "engine/compile.h"
#include "engine/cuda/block_layout.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

std::vector<Program> programs_of(bool gpt2, int64_t layers, int32_t ranks, DType weight = DType::kF16,
                                 int64_t head_dim = 8) {
  test::TokenGraphOptions o;
  o.layers = layers;
  o.weight = weight;
  o.head_dim = head_dim, o.hidden = o.heads * head_dim;
  CompileOptions c;
  c.ranks = ranks;
  return compile_decoder(gpt2 ? test::gpt2_tokens(o) : test::llama_tokens(o), c).programs;
}

VariantSet variants_of(const std::vector<Program>& programs, Numerics numerics = Numerics::kExact) {
  std::vector<const Program*> pointers;
  for (const Program& p : programs) pointers.push_back(&p);
  return VariantSet(pointers, numerics);
}

bool has(const VariantSet& variants, const std::string& prefix) {
  return std::any_of(variants.all().begin(), variants.all().end(),
                     [&](const DeviceVariant& v) { return v.type.starts_with(prefix); });
}

TEST(Codegen, SourceDoesNotGrowWithDepth) {
  for (const bool gpt2 : {false, true}) {
    for (const int32_t ranks : {1, 2})
      EXPECT_EQ(make_source(variants_of(programs_of(gpt2, 12, ranks))).text,
                make_source(variants_of(programs_of(gpt2, 48, ranks))).text);
  }
}

// No operation of a decoder is left out: the list is the point.
TEST(Codegen, DecodersRunTheseCasesOnTheDevice) {
  const std::vector<Program> llama = programs_of(false, 3, 2), gpt2 = programs_of(true, 3, 2);
  for (const char* name :
       {"Embed<", "Norm<true, dev::f16, 2>", "MatMul<dev::f16, 64, kParts>", "AppendedTile<kHalves, float>",
        "Attention<float, 8, 8, float>", "SelectRows", "Send", "RecvReduce", "Sample"})
    EXPECT_TRUE(has(variants_of(llama), name)) << name;
  for (const char* name :
       {"Norm<false, dev::f16, 2>", "AppendedTile<kUnturned, float>", "Pointwise<Expression", "RecvReduce"})
    EXPECT_TRUE(has(variants_of(gpt2), name)) << name;
}

TEST(Codegen, RefusesProductsInOtherPrecisionsThanF32) {
  std::vector<Program> programs = programs_of(false, 2, 1, DType::kBF16);
  EXPECT_NO_THROW(variants_of(programs));
  for (Variant& v : programs[0].variants)
    if (is_product(v.code)) v.precision = Precision::kBF16;
  try {
    variants_of(programs);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has no device code: products in bf16"), std::string::npos);
  }
}

TEST(Codegen, RefusesProductsWithChosenExpertsByName) {
  std::vector<Program> programs = programs_of(false, 2, 1);
  for (Variant& v : programs[0].variants)
    if (v.code == OpCode::kMatMul) v.code = OpCode::kExpertMatMul;
  try {
    variants_of(programs);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("node layers.0"), 0U) << error.what();
    EXPECT_NE(std::string(error.what()).find("products with chosen experts"), std::string::npos);
  }
}

TEST(Codegen, WeightsChooseThePathAndNumericsTheTiles) {
  const std::vector<Program> half = programs_of(false, 2, 1), full = programs_of(false, 2, 1, DType::kF32);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    EXPECT_TRUE(has(variants_of(half, numerics), "MatMul<dev::f16, 64, kParts>"));
    EXPECT_TRUE(has(variants_of(full, numerics), "MatMul<float, 64, kFma>"));
    const std::vector<std::string> flags = make_source(variants_of(half, numerics)).flags;
    const std::string wide = numerics == Numerics::kFast ? "-DARK_WIDE_ROWS=128" : "-DARK_WIDE_ROWS=64";
    EXPECT_EQ(std::count(flags.begin(), flags.end(), wide), 1);
    const auto has_wide = [](const KernelSource& source) {
      return std::ranges::any_of(source.flags,
                                 [](const auto& f) { return f.starts_with("-DARK_WIDE_ROWS"); });
    };
    EXPECT_FALSE(has_wide(make_source(variants_of(full, numerics))));
    EXPECT_FALSE(has_wide(make_source(variants_of(half, numerics), {.tiles = kSmallTiles})));
    for (const auto& [tiles, flag] : {std::pair{kLargestTiles, "-DARK_TILES=kLargestTiles"},
                                      {kLargeTiles, "-DARK_TILES=kLargeTiles"},
                                      {kSmallTiles, "-DARK_TILES=kSmallTiles"}}) {
      const auto all = make_source(variants_of(half, numerics), {.tiles = tiles}).flags;
      EXPECT_EQ(std::ranges::count(all, flag), 1);
    }
  }
}

// Where products read, and bodies that know them write; of these models all that products read.
TEST(Codegen, WhatTensorCoresAloneReadIsStoredInTheirParts) {
  for (const bool gpt2 : {false, true}) {
    const std::vector<Program> all = programs_of(gpt2, 2, 2, DType::kBF16, 32);
    const Program& p = all[0];
    const XParts parts(p);
    int stored = 0;
    for (const ark::Instance& i : unroll(p)) {
      const PhaseOperands phase(p, p.phases[i.phase], i.trip, &parts);
      const OpCode code = phase.variant().code;
      for (std::size_t n = 0; n < phase.count(); ++n) {
        if (!phase.has(n) || phase.buffer(n).weight != kNone) continue;
        const bool multiplied = is_product(code) && n == 0,
                   computed = is_written(phase.variant(), n, phase.count()) &&
                              (code == OpCode::kNorm || code == OpCode::kAttention || is_product(code));
        EXPECT_TRUE(!multiplied || phase.parts(n) == DType::kBF16) << phase.phase().name;
        if (!phase.parts(n)) continue;
        EXPECT_TRUE(multiplied || computed || code == OpCode::kSelectRows) << phase.phase().name << " " << n;
        EXPECT_FALSE(computed && code == OpCode::kMatMul && phase.has(3)) << "over a residual";
        stored += computed;
      }
    }
    EXPECT_EQ(stored, 2 * 4 + 1) << "norms, attention and MLP of two layers, and the last norm";
  }
}

TEST(Codegen, WhatOthersReadTooStaysInFloats) {
  std::vector<Program> programs = programs_of(false, 2, 1, DType::kBF16);
  Program& p = programs[0];
  const auto products = [&](const std::string& path) {
    return has(variants_of(programs), "MatMul<dev::bf16, 64, " + path);
  };
  EXPECT_FALSE(products("kMma>"));
  const auto find = [&](auto is) {
    const auto found = std::find_if(p.phases.begin(), p.phases.end(), is);
    EXPECT_NE(found, p.phases.end());
    return found;
  };
  const auto norm = find([&](const Phase& a) { return p.variants[a.variant].code == OpCode::kNorm; });
  const auto sum = find([&](const Phase& a) {
    return p.variants[a.variant].code == OpCode::kMatMul && !(a.operands[3] == Operand{});
  });
  sum->operands[3] = norm->operands[3];  // what products read is added to another's result
  EXPECT_TRUE(products("kMma>"));
  EXPECT_TRUE(products("kParts>"));
}

TEST(Codegen, QuantizedWeightsRunOnTensorCores) {
  for (const int bits : {4, 8}) {
    test::TokenGraphOptions o;
    o.bits = bits;
    const std::vector<Program> programs = compile_decoder(test::llama_tokens(o), {}).programs;
    const std::string type = bits == 4 ? "U4" : "U8";
    EXPECT_TRUE(has(variants_of(programs), "MatMul<" + type + ", 64, kParts>"));
    EXPECT_TRUE(has(variants_of(programs), "Embed<" + type + ", "));
    EXPECT_FALSE(has(variants_of(programs), "MatMul<float")) << "nothing is kept as f32";
    o.terms = BlockTerms::kScales16;
    const std::vector<Program> halves = compile_decoder(test::llama_tokens(o), {}).programs;
    EXPECT_TRUE(has(variants_of(halves),
                    "MatMul<Codes<" + std::to_string(bits) + ", BlockTerms::kScales16>, 64, kParts>"));
  }
}

TEST(Codegen, PiecesBeginWithBlocksOfQuantizedRows) {
  for (const int32_t unit : {8, 16, 24, 32, 64, 100, 128}) {
    for (const Recipe& recipe : {Recipe{{0, 4100}}, Recipe{{0, 9 * unit, 20 * unit, 20 * unit, 41 * unit}}}) {
      const std::vector<int32_t> pieces = pieces_of(recipe, unit, kPieceRows);
      EXPECT_TRUE(std::has_single_bit(pieces.size() - 1)) << unit;
      EXPECT_EQ(pieces.back(), recipe.slabs.back());
      for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
        EXPECT_EQ(pieces[i] % unit, 0) << unit;
        EXPECT_LE(pieces[i + 1] - pieces[i], kPieceRows) << unit;
        EXPECT_LE(pieces[i], pieces[i + 1]) << unit;
      }
    }
  }
}

// Long weights of 4 bits in blocks of 128 rows: a block a piece, and no more pieces than that takes.
TEST(Codegen, WholeBlocksOfQuantizedRowsAreDealtEvenly) {
  Recipe recipe{{0}};
  for (int32_t s = 1; s <= 8; ++s) recipe.slabs.push_back(s * 1792);
  EXPECT_EQ(pieces_of(recipe, 128, kPieceRows).size() - 1, 128u);
  EXPECT_EQ(pieces_of({{0, 4096}}, 128, kPieceRows).size() - 1, 32u);
  EXPECT_EQ(pieces_of({{0, 4096}}, 32, kPieceRows).size() - 1, 32u) << "128 rows each";
}

TEST(Codegen, RefusesWhatHasNoDeviceCodeByName) {
  std::vector<Program> programs = programs_of(false, 1, 1);
  Program& p = programs[0];
  for (Phase& phase : p.phases) {
    if (p.variants[phase.variant].code != OpCode::kNorm) continue;
    Variant generic{.code = OpCode::kGeneric, .op = Op::kTopK};
    phase.variant = static_cast<int32_t>(p.variants.size());
    phase.name = "the culprit";
    p.variants.push_back(generic);
    break;
  }
  try {
    variants_of(programs);
    FAIL() << "an operator without device code was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("the culprit"), std::string::npos) << error.what();
  }
}

TEST(Codegen, RefusesWeightsOfATypeWithoutDeviceCodeByName) {
  try {
    variants_of(programs_of(false, 1, 1, DType::kF8E4M3));
    FAIL() << "weights without device code were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    const std::string what = error.what();
    EXPECT_NE(what.find("elements of type f8e4m3; run with --device cpu"), std::string::npos) << what;
  }
}

// The pieces of a rank's slabs are those that the whole weight has there, but for empty ones.
TEST(Pieces, DependOnTheSlabOnly) {
  const Recipe whole{{0, 800, 1100, 1500, 3000}};
  const Recipe half{{0, 400, 1900}};  // slabs 2 and 3
  const auto lengths = [](const std::vector<int32_t>& borders, int32_t from) {
    std::vector<int32_t> result;
    for (std::size_t i = 1; i < borders.size(); ++i) {
      if (borders[i - 1] >= from && borders[i] > borders[i - 1])
        result.push_back(borders[i] - borders[i - 1]);
    }
    return result;
  };
  EXPECT_EQ(lengths(pieces_of(whole, 1, 64), 1100), lengths(pieces_of(half, 1, 64), 0));
  for (const Recipe& recipe : {whole, half}) {
    const std::vector<int32_t> borders = pieces_of(recipe, 1, 64);
    const std::size_t pieces = borders.size() - 1, slabs = recipe.slabs.size() - 1;
    EXPECT_EQ(pieces & (pieces - 1), 0u);
    for (std::size_t i = 0; i < pieces; ++i) {
      EXPECT_GE(borders[i + 1], borders[i]);
      EXPECT_LE(borders[i + 1] - borders[i], 64);
    }
    for (std::size_t s = 0; s <= slabs; ++s) EXPECT_EQ(borders[s * (pieces / slabs)], recipe.slabs[s]);
  }
}

TEST(Layout, FitsTheSmallestGpuThatIsMeant) {
  EXPECT_LE(shared_layout(kMinStages, kLargeTiles.scratch).total, 163u << 10);  // A100
  EXPECT_LE(shared_layout(kMinStages, kSmallTiles.scratch).total, 99u << 10);   // sm_86, sm_89, sm_120
  EXPECT_EQ(tiles_for(99 << 10), kSmallTiles);
  EXPECT_EQ(tiles_for(163 << 10), kLargeTiles);
  EXPECT_EQ(tiles_for(227 << 10), kLargestTiles);
}

}  // namespace
}  // namespace ark::cuda
