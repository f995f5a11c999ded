// The text of programs: read back it gives the same structs; what is written does not change unnoticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "engine/compile.h"
#include "engine/program/text.h"
#include "tests/engine/models.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

// -- equality, field by field; numbers by their bits

bool same_number(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

template <typename T, typename Same>
bool all_same(const std::vector<T>& a, const std::vector<T>& b, const Same& same) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}
template <typename T>
bool same(const T& a, const T& b) {
  return a == b;
}
bool same(const double& a, const double& b) { return same_number(a, b); }
bool same(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.dims == b.dims &&
         std::memcmp(a.data.get(), b.data.get(), static_cast<std::size_t>(a.bytes())) == 0;
}
bool same(const Attributes& a, const Attributes& b) {
  if (a.values().size() != b.values().size()) return false;
  for (auto i = a.values().begin(), j = b.values().begin(); i != a.values().end(); ++i, ++j) {
    if (i->first != j->first || i->second.index() != j->second.index()) return false;
    const bool equal = std::visit(
        [&](const auto& x) { return same(x, std::get<std::decay_t<decltype(x)>>(j->second)); }, i->second);
    if (!equal) return false;
  }
  return true;
}
bool same_val(const Val& a, const Val& b) { return a.e == b.e && a.max == b.max; }
bool same_buffer(const Buffer& a, const Buffer& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.dims == b.dims && a.weight == b.weight &&
         a.cache == b.cache && a.is_value == b.is_value && a.channel == b.channel && a.alias == b.alias &&
         a.name == b.name;
}
bool same_weight(const WeightUse& a, const WeightUse& b) {
  return a.constant == b.constant && a.ranges == b.ranges && a.layout == b.layout &&
         a.transposed == b.transposed && a.panel == b.panel && a.stored == b.stored;
}
bool same_step(const PointwiseStep& a, const PointwiseStep& b) {
  return a.op == b.op && a.a == b.a && a.b == b.b && a.c == b.c && a.input == b.input &&
         same_number(a.p, b.p) && same_number(a.q, b.q);
}
bool same_variant(const Variant& a, const Variant& b) {
  return a.code == b.code && a.op == b.op && a.outputs == b.outputs && same(a.attributes, b.attributes) &&
         a.recipe == b.recipe && a.epilogue == b.epilogue && all_same(a.pointwise, b.pointwise, same_step);
}
bool same_phase(const Phase& a, const Phase& b) {
  return a.name == b.name && a.variant == b.variant && a.operands == b.operands && a.grid == b.grid &&
         a.waits == b.waits && a.channel == b.channel && a.repeat == b.repeat;
}
bool same_repeat(const Repeat& a, const Repeat& b) {
  return a.first == b.first && a.count == b.count && a.trips == b.trips && a.table == b.table;
}
bool same_channel(const Channel& a, const Channel& b) {
  return a.peer == b.peer && a.outgoing == b.outgoing && a.link == b.link && a.bytes == b.bytes &&
         a.name == b.name;
}

void expect_same(const Program& a, const Program& b, const std::string& what) {
  EXPECT_TRUE(a.rank == b.rank && a.ranks == b.ranks) << what;
  EXPECT_TRUE(a.token_ids == b.token_ids && a.positions == b.positions && a.logits == b.logits) << what;
  EXPECT_TRUE(all_same(a.vals, b.vals, same_val)) << what;
  EXPECT_TRUE(all_same(a.buffers, b.buffers, same_buffer)) << what;
  EXPECT_TRUE(all_same(a.weights, b.weights, same_weight)) << what;
  EXPECT_TRUE(all_same(a.variants, b.variants, same_variant)) << what;
  EXPECT_TRUE(all_same(a.phases, b.phases, same_phase)) << what;
  EXPECT_TRUE(all_same(a.repeats, b.repeats, same_repeat)) << what;
  EXPECT_TRUE(all_same(a.channels, b.channels, same_channel)) << what;
}

void expect_round_trip(const Compiled& c, const std::string& what) {
  for (std::size_t r = 0; r < c.programs.size(); ++r) {
    const std::string text = program_text(c.programs[r], c.bindings[r]);
    const auto [program, binding] = parse_program(text);
    expect_same(program, c.programs[r], what);
    EXPECT_EQ(binding.offsets, c.bindings[r].offsets) << what;
    EXPECT_EQ(binding.act_bytes, c.bindings[r].act_bytes) << what;
    EXPECT_EQ(binding.inbox_bytes, c.bindings[r].inbox_bytes) << what;
    EXPECT_EQ(program_text(program, binding), text) << what;
  }
}

TEST(ProgramText, OfEveryDecoderIsReadBackEqual) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  int seen = 0;
  for (const std::string& name : kDecoders) {
    if (is_sanitized() && ++seen % 4 != 1) continue;
    std::string why;
    const auto model = read_decoder(model_file(fixtures() / name), why);
    ASSERT_TRUE(model) << name << ": " << why;
    for (const int32_t ranks : degrees({1, 3})) expect_round_trip(compile_small(*model, ranks), name);
  }
}

TEST(ProgramText, OfPlainGraphsIsReadBackEqual) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  for (const char* name : {"mobilenet-tiny", "resnet-tiny"}) {
    const Graph graph = import_model(fixtures() / name / "model.onnx");
    SymbolValues most;
    for (const ValueId v : graph.inputs) {
      std::set<std::string> symbols;
      for (const Expr& e : *graph.value(v).shape) e.collect_symbols(symbols);
      for (const std::string& s : symbols) most[s] = 2;
    }
    expect_round_trip(compile_plain(graph, most), name);
  }
}

TEST(ProgramText, IsWhatTheGoldenFileSays) {
  const DecoderModel model = llama_tokens({.layers = 2, .kv_heads = 2});
  const Compiled c = compile_small(model, 2);
  std::string text;
  for (std::size_t r = 0; r < c.programs.size(); ++r) text += program_text(c.programs[r], c.bindings[r]);
  const std::filesystem::path file = source_root() / "tests" / "golden" / "llama-tp2.program";
  if (std::getenv("ARK_UPDATE_GOLDEN")) std::ofstream(file) << text;
  std::ifstream in(file);
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(text, golden.str()) << "look at the difference; if it is meant, run with ARK_UPDATE_GOLDEN=1";
}

TEST(ProgramText, OfNonsenseIsRefusedWithTheLine) {
  const Compiled c = compile_small(llama_tokens({.layers = 2, .kv_heads = 2}), 2);
  const std::string text = program_text(c.programs[0], c.bindings[0]);
  const auto error = [](const std::string& broken) -> std::string {
    try {
      parse_program(broken);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error("nonsense"), "");
  // An attribute that is misspelt, of another type, or missing is no silent default.
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(text.find(from), from.size(), to);
    return error(changed);
  };
  EXPECT_NE(with("window=i:0", "windw=i:0").find("Attention knows no attribute 'windw'"), std::string::npos);
  EXPECT_NE(with("window=i:0", "window=f:0").find("attribute 'window' has another type"), std::string::npos);
  EXPECT_NE(with(", window=i:0", "").find("Attention has no attribute 'window'"), std::string::npos);
  EXPECT_NE(with("RecvReduce ", "RecvReduce slabs=[0, 4] ").find("has a recipe"), std::string::npos);
  EXPECT_NE(error(text + "phase 99999 !0 () wait"), "");
  // Cut anywhere but between records: refused, or else the rest of a record that says the same.
  for (std::size_t cut = 1; cut < text.size(); cut += 37) {
    if (text[cut - 1] == '\n' || text[cut] == '\n') continue;
    const std::string what = error(text.substr(0, cut));
    EXPECT_TRUE(what.empty() || what.find("line ") != std::string::npos ||
                what.find("repeat") != std::string::npos)
        << what;
  }
}

}  // namespace
}  // namespace ark::test
