// Broken and hostile files: every one ends in an Error with a one-line message, soon and with little memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/proto.h"

namespace ark {
namespace {

using test::error_of;
using test::graph_attribute;
using test::kBool;
using test::kF32;
using test::kI64;
using test::Names;
using test::node;
using test::Proto;
using test::value_info;
using testing::HasSubstr;

void import_bytes(const std::string& bytes) {
  Graph graph = build_graph(test::parse(bytes));
  run_passes(graph);
}

// With ARK_KEEP_CASES=DIR each case is written to DIR/case.onnx first: the one that crashes stays there.
void keep(const std::string& bytes) {
  if (const char* directory = std::getenv("ARK_KEEP_CASES"))
    std::ofstream(std::string(directory) + "/case.onnx", std::ios::binary) << bytes;
}

// Imports; an Error must be about the model and on one line. Returns whether it was imported.
bool survives(const std::string& bytes, const std::string& what) {
  keep(bytes);
  try {
    import_bytes(bytes);
    return true;
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == Code::kBadModel || e.code() == Code::kUnsupported) << what << ": " << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what << ": " << e.what();
    EXPECT_LT(std::string(e.what()).size(), 2000u) << what;
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << ": " << e.what();
  }
  return false;
}

struct Victim {
  std::string name, bytes;
  std::vector<std::size_t> structure;  // offsets of bytes that are no weights
};

Victim load(const std::string& fixture) {
  const auto path = test::fixtures() / fixture / "model.onnx";
  std::ifstream in(path, std::ios::binary);
  Victim v{fixture, std::string(std::istreambuf_iterator<char>(in), {}), {}};
  const onnx::Model model = onnx::parse_model(path);
  std::vector<bool> payload(v.bytes.size());
  for (const auto& t : model.graph.initializers)
    if (t.constant && t.constant->file)
      std::fill_n(payload.begin() + t.constant->offset, t.constant->bytes, true);
  for (std::size_t i = 0; i < payload.size(); ++i)
    if (!payload[i]) v.structure.push_back(i);
  return v;
}

std::vector<Victim> victims() {
  return {load("gpt2-ort-fused"), load("bert-ort-fused"), load("resnet-tiny")};
}

TEST(Mutations, FlippedBitsNeverCrash) {
  std::mt19937 random(11);
  for (const Victim& v : victims())
    for (int i = 0; i < test::rounds(300); ++i) {
      std::string bytes = v.bytes;
      const std::size_t at = v.structure[random() % v.structure.size()];
      const int bit = static_cast<int>(random() % 8);
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      survives(bytes, v.name + ": bit " + std::to_string(bit) + " of byte " + std::to_string(at));
    }
}

TEST(Mutations, RandomBytesInRandomPlacesNeverCrash) {
  std::mt19937 random(12);
  for (const Victim& v : victims())
    for (int i = 0; i < test::rounds(200); ++i) {
      std::string bytes = v.bytes;
      for (int n = static_cast<int>(random() % 8); n >= 0; --n)
        bytes[v.structure[random() % v.structure.size()]] = static_cast<char>(random());
      survives(bytes, v.name + ": case " + std::to_string(i));
    }
}

TEST(Mutations, TruncationIsNoticed) {
  for (const Victim& v : victims())
    for (std::size_t n = 0; n < 64; ++n)
      EXPECT_FALSE(
          survives(v.bytes.substr(0, v.bytes.size() * n / 64), v.name + " at " + std::to_string(n) + "/64"));
}

TEST(Mutations, BlownUpLengthsNeverAllocate) {
  std::mt19937 random(13);
  for (const Victim& v : victims())
    for (int i = 0; i < test::rounds(150); ++i) {
      std::string bytes = v.bytes;
      const std::size_t at = v.structure[random() % (v.structure.size() - 16)];
      const std::size_t n = std::min<std::size_t>(random() % 9 + 1, bytes.size() - at - 1);
      for (std::size_t k = 0; k < n; ++k) bytes[at + k] = static_cast<char>(0xFF);
      bytes[at + n] = 0x01;
      survives(bytes, v.name + ": " + std::to_string(n) + " bytes at " + std::to_string(at));
    }
}

TEST(Mutations, PiecesRemovedOrRepeated) {
  std::mt19937 random(14);
  for (const Victim& v : victims())
    for (int i = 0; i < test::rounds(100); ++i) {
      const std::size_t at = v.structure[random() % v.structure.size()];
      const std::size_t n = random() % 200 + 1;
      std::string bytes = v.bytes;
      if (i % 2)
        bytes.erase(at, n);
      else
        bytes.insert(at, v.bytes.substr(at, n));
      survives(bytes, v.name + ": piece " + std::to_string(i));
    }
}

// -- bombs: what the file alone shows to be too much is refused, with the limit's name

const Proto kRowOfFour = value_info("x", kF32, {"4"});

Proto bomb(const std::vector<Proto>& nodes, const std::vector<Proto>& initializers,
           const std::vector<Proto>& inputs = {kRowOfFour}, const std::string& output = "y") {
  Proto named;  // an output of no declared type
  return test::model(test::graph({.nodes = nodes,
                                  .initializers = initializers,
                                  .inputs = inputs,
                                  .outputs = {Proto().text(1, output)}}));
}

class Bomb : public testing::Test {
 protected:
  void SetUp() override { before_ = usage(); }
  void TearDown() override {
    const rusage after = usage();
    if (test::is_sanitized()) return;  // its checks cost more than what is checked
    EXPECT_LT(after.ru_utime.tv_sec - before_.ru_utime.tv_sec, 3) << "seconds of CPU time, rounded up";
    EXPECT_LT(after.ru_maxrss - before_.ru_maxrss, 300 * 1024) << "KiB";
  }
  static rusage usage() {
    rusage u{};
    ::getrusage(RUSAGE_SELF, &u);
    return u;
  }
  static std::string refused(const Proto& model) {
    return error_of(Code::kBadModel, [&] { import_bytes(model.bytes); });
  }
  rusage before_{};
};

const std::vector<int64_t> kHuge = {1'000'000, 100'000};

TEST_F(Bomb, ConstantOfShape) {
  EXPECT_THAT(refused(bomb({node("ConstantOfShape", {"s"}, {"y"})}, {test::ints_tensor("s", kHuge)})),
              HasSubstr("max_"));
  EXPECT_THAT(refused(bomb({node("ConstantOfShape", {"s"}, {"y"})},
                           {test::ints_tensor("s", {1ll << 62, 1ll << 62})})),
              HasSubstr("node n_y (ConstantOfShape)"));
}

TEST_F(Bomb, Expand) {
  EXPECT_THAT(refused(bomb({node("Expand", {"w", "s"}, {"y"})},
                           {test::ints_tensor("s", kHuge), test::ints_tensor("w", {1})})),
              HasSubstr("max_"));
}

TEST_F(Bomb, Tile) {
  EXPECT_THAT(refused(bomb({node("Tile", {"w", "s"}, {"y"})},
                           {test::ints_tensor("s", {10'000'000'000}), test::ints_tensor("w", {1, 2})})),
              HasSubstr("max_"));
}

TEST_F(Bomb, Range) {
  EXPECT_THAT(refused(bomb({node("Range", {"a", "b", "c"}, {"y"})},
                           {test::scalar_tensor("a", 0), test::scalar_tensor("b", 1ll << 50),
                            test::scalar_tensor("c", 1)})),
              HasSubstr("max_"));
}

TEST_F(Bomb, Pad) {
  EXPECT_THAT(refused(bomb({node("Pad", {"w", "s"}, {"y"})},
                           {test::ints_tensor("s", {0, 1ll << 40}), test::ints_tensor("w", {1, 2})})),
              HasSubstr("max_"));
}

TEST_F(Bomb, ChainOfDoublings) {
  std::vector<Proto> nodes;
  std::string last = "w";
  for (int i = 0; i < 60; ++i) {
    const std::string next = i == 59 ? "y" : "v" + std::to_string(i);
    nodes.push_back(node("Concat", {last, last}, {next}, {test::int_attribute("axis", 0)}));
    last = next;
  }
  EXPECT_THAT(refused(bomb(nodes, {test::tensor("w", {4}, kF32, std::string(16, 'x'))})), HasSubstr("max_"));
}

TEST_F(Bomb, LargeTensorsOfConstantsGrownFurther) {
  EXPECT_THAT(refused(bomb({node("ConstantOfShape", {"s"}, {"v"}), node("Tile", {"v", "r"}, {"y"})},
                           {test::ints_tensor("s", {100'000'000}), test::ints_tensor("r", {100})})),
              HasSubstr("max_generated_bytes"));
}

TEST_F(Bomb, ManyLargeTensors) {
  std::vector<Proto> nodes;
  Names parts;
  for (int i = 0; i < 40; ++i) {
    parts.push_back("v" + std::to_string(i));
    nodes.push_back(node("ConstantOfShape", {"s"}, {parts.back()}));
  }
  nodes.push_back(node("Sum", parts, {"y"}));
  EXPECT_THAT(refused(bomb(nodes, {test::ints_tensor("s", {200'000'000})})),
              HasSubstr("max_generated_total"));
}

// 1.2 GB of f32 behind 300 MB that the file stores (a hole, here): no bomb, but only once.
TEST_F(Bomb, StoredWeightsMayBeUnpackedOnce) {
  const test::TemporaryDirectory dir;
  std::filesystem::resize_file(dir.write("w.bin", ""), 300'000'000);
  const Proto location = Proto().text(1, "location").text(2, "w.bin");
  const Proto w = Proto().varint(1, 300'000).varint(1, 1000).varint(2, 3).text(8, "w").message(13, location);
  const Proto scale = test::tensor("s", {}, kF32, test::raw<float>({1}));
  const auto import = [&](const std::vector<Proto>& nodes) {
    import_model(dir.write("m.onnx", bomb(nodes, {Proto(w).varint(14, 1), scale}).bytes));
  };
  const Proto first = node("DequantizeLinear", {"w", "s"}, {"v"}), turned = node("Transpose", {"v"}, {"y"});
  EXPECT_NO_THROW(import({first, turned}));
  const auto refused = [&](const std::vector<Proto>& nodes) {
    return error_of(Code::kBadModel, [&] { import(nodes); });
  };
  EXPECT_THAT(refused({first, node("DequantizeLinear", {"w", "s"}, {"u"}), node("Add", {"u", "v"}, {"y"})}),
              HasSubstr("node n_u (DequantizeLinear): makes 1200000000 bytes"));
  const std::vector<Proto> chain{first, node("Transpose", {"v"}, {"a"}), node("Transpose", {"a"}, {"b"}),
                                 node("Transpose", {"b"}, {"y"})};
  EXPECT_THAT(refused(chain), HasSubstr("max_generated_bytes"));
}

TEST_F(Bomb, ManyFoldedTensors) {
  std::vector<Proto> nodes;
  std::string sum = "x";
  for (int i = 0; i < test::rounds(200); ++i) {
    const std::string n = std::to_string(i);
    nodes.push_back(node("Range", {"a", "b", "c"}, {"r" + n}));
    nodes.push_back(node("Mul", {"r" + n, "r" + n}, {"q" + n}));
    nodes.push_back(node("Add", {"q" + n, "k" + n}, {i == 199 ? "y" : "k" + std::to_string(i + 1)}));
  }
  const Proto m = bomb(nodes, {test::scalar_tensor("a", 0), test::scalar_tensor("b", 4'000'000),
                               test::scalar_tensor("c", 1), test::ints_tensor("k0", {1})});
  survives(m.bytes, "many ranges");  // may be left unfolded, must not take the memory
}

TEST_F(Bomb, ManyTinyStructures) {
  Proto empty_nodes, empty_attributes, dims;
  std::string nodes;
  for (int i = 0; i < 2'000'000; ++i) nodes += std::string("\x0a\x00", 2);
  EXPECT_THAT(error_of(Code::kBadModel, [&] { import_bytes(Proto().varint(1, 8).text(7, nodes).bytes); }),
              HasSubstr("max_"));
  std::string attributes;
  for (int i = 0; i < 2'000'000; ++i) attributes += std::string("\x2a\x00", 2);
  EXPECT_THAT(
      error_of(Code::kBadModel,
               [&] { import_bytes(Proto().varint(1, 8).message(7, Proto().text(1, attributes)).bytes); }),
      HasSubstr("max_structure_bytes"));
}

TEST_F(Bomb, PackedIntegersOfOneByteEach) {
  const Proto t =
      Proto().varint(1, 20'000'000).varint(2, 7).text(8, "w").text(7, std::string(20'000'000, '\1'));
  EXPECT_THAT(error_of(Code::kBadModel, [&] { import_bytes(bomb({}, {t}).bytes); }),
              HasSubstr("max_structure_bytes"));
}

TEST_F(Bomb, LongNames) {
  EXPECT_THAT(refused(bomb({node("Neg", {std::string(100'000, 'n')}, {"y"})}, {})),
              HasSubstr("max_name_bytes"));
  EXPECT_LT(refused(bomb({node("Neg", {std::string(60'000, 'n')}, {"y"})}, {})).size(), 1000u);
}

TEST_F(Bomb, SymbolicSizesThatMultiply) {
  std::vector<Proto> nodes;
  for (int i = 0; i < test::rounds(100); ++i) {
    const std::string from = i ? "v" + std::to_string(i - 1) : "x",
                      to = i == 99 ? "y" : "v" + std::to_string(i);
    nodes.push_back(node("Shape", {from}, {"s" + std::to_string(i)}));
    nodes.push_back(node("Tile", {from, "s" + std::to_string(i)}, {to}));
  }
  survives(bomb(nodes, {}, {value_info("x", kF32, {"n", "m"})}).bytes, "tiles of their own size");
}

TEST_F(Bomb, LoopsInsideOfLoopsThatChangeSize) {
  Proto inner = node("Concat", {"s0", "s0"}, {"t0"}, {test::int_attribute("axis", 0)});
  const int depth = test::is_sanitized() ? 12 : 30;
  for (int i = 0; i < depth; ++i) {
    const std::string n = std::to_string(i), up = std::to_string(i + 1);
    const Proto body = test::graph({.nodes = {inner, node("Identity", {"go" + n}, {"on" + n})},
                                    .inputs = {value_info("i" + n, kI64, {}), value_info("go" + n, kBool, {}),
                                               value_info("s" + n, kF32, {})},
                                    .outputs = {Proto().text(1, "on" + n), Proto().text(1, "t" + n)}});
    inner = node("Loop", {"m", "", i == depth - 1 ? "x" : "s" + up}, {i == depth - 1 ? "y" : "t" + up},
                 {graph_attribute("body", body)});
  }
  survives(bomb({inner}, {}, {kRowOfFour, value_info("m", kI64, {})}).bytes, "nested loops");
}

}  // namespace
}  // namespace ark
