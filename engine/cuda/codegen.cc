#include "engine/cuda/codegen.h"

#include "base/error.h"
#include "engine/cuda/sources.h"

namespace ark::cuda {
namespace {

std::string numbered(std::string text, std::size_t number) {
  for (std::size_t i = text.find("$N"); i != std::string::npos; i = text.find("$N", i))
    text.replace(i, 2, std::to_string(number));
  return text;
}

// In image.h.
const char* name_of(const TileShape& tiles) {
  if (tiles == kLargestTiles) return "kLargestTiles";
  if (tiles == kLargeTiles) return "kLargeTiles";
  ARK_CHECK(tiles == kSmallTiles, "tiles that the device knows");
  return "kSmallTiles";
}

}  // namespace

KernelSource make_source(const VariantSet& variants, const SourceOptions& options) {
  std::string text =
      "// One loop kernel: what a variant number means, engine/cuda/variants.h.\n"
      "#include \"engine/cuda/bodies/appended_tile.h\"\n"
      "#include \"engine/cuda/bodies/attention.h\"\n"
      "#include \"engine/cuda/bodies/matmul.h\"\n"
      "#include \"engine/cuda/bodies/exchange.h\"\n"
      "#include \"engine/cuda/bodies/pointwise.h\"\n"
      "#include \"engine/cuda/bodies/rows.h\"\n"
      "#include \"engine/cuda/bodies/sample.h\"\n"
      "#include \"engine/cuda/loop.h\"\n\n"
      "namespace ark::cuda {\n\n";
  std::string cases, uses;
  for (std::size_t v = 0; v < variants.all().size(); ++v) {
    const DeviceVariant& variant = variants.all()[v];
    if (!variant.definition.empty()) text += numbered(variant.definition, v) + "\n";
    if (variant.takes_tiles) {
      uses += "    case " + std::to_string(v) + ":\n      return " + variant.type + "::run(p, tile);\n";
      continue;
    }
    cases += "      case " + std::to_string(v) + ":\n        return run_case<" + numbered(variant.type, v) +
             ">(p, n);\n";
  }
  text +=
      "ARK_APART void use_tile(const LoopParameters& p, FinishedTile tile) {\n"
      "  switch (instance_at(tile.instance).product.tile_variant) {\n" +
      uses +
      "  }\n"
      "}\n\n"
      "struct Cases {\n"
      "  ARK_DEVICE static void run(int variant, const LoopParameters& p, i32 n) {\n"
      "    switch (variant) {\n" +
      cases +
      "    }\n"
      "  }\n"
      "};\n\n"
      "ARK_KERNEL(ark_loop, LoopParameters, kThreads) { run_loop<Cases>(p); }\n\n"
      "}  // namespace ark::cuda\n";
  KernelSource source = source_of(std::move(text));
  source.launch_registers = kLaunchRegisters, source.keeping_flag = "-DARK_MOVES_REGISTERS=0";
  if (options.trace) source.flags.push_back("-DARK_TRACE=1");
  if (!variants.has_peers()) source.flags.emplace_back("-DARK_ALONE=1");
  source.flags.push_back("-DARK_TILES=" + std::string(name_of(options.tiles)));
  if (variants.takes_wide_tiles(options.tiles))
    source.flags.push_back("-DARK_WIDE_ROWS=" + std::to_string(wide_rows(variants.numerics())));
  return source;
}

}  // namespace ark::cuda
