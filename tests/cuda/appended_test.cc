// Which products rotate and append what they compute, in place of a phase behind them; and who waits for whom then.
#include "engine/cuda/appended.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/index.h"
#include "engine/compile.h"
#include "engine/cuda/make_image.h"
#include "engine/program/opcodes.h"
#include "engine/ragged_runner.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

using test::TokenGraphOptions;

Compiled compiled_of(const DecoderModel& model, int32_t ranks = 1) {
  CompileOptions options;
  options.ranks = ranks;
  return compile_decoder(model, options);
}

OpCode code_of(const Program& p, PhaseId phase) { return p.variants[p.phases[at(phase)].variant].code; }
bool is_append(OpCode code) { return code == OpCode::kKvAppend || code == OpCode::kRotaryAppend; }

// Of a program: phases that append, those that products do, and these products.
struct Counted {
  int appends = 0, done = 0, products = 0;
  bool operator==(const Counted&) const = default;
};
Counted counted(const Program& p) {
  const Appended appended(p);
  Counted all;
  for (PhaseId phase = 0; phase < std::ssize(p.phases); ++phase) {
    all.appends += is_append(code_of(p, phase));
    all.done += appended.is_done(phase);
    EXPECT_TRUE(is_append(code_of(p, phase)) || !appended.is_done(phase));
    if (const Appended::Part* part = appended.of(phase)) {
      EXPECT_EQ(code_of(p, phase), OpCode::kMatMul);
      EXPECT_TRUE(appended.is_done(part->append));
      ++all.products;
    }
  }
  return all;
}

TEST(Appended, ByThreeProductsOfALlamaAndTwoOfAGpt2) {
  for (const int32_t ranks : {1, 2}) {
    for (const Program& p : compiled_of(test::llama_tokens({.kv_heads = 2}), ranks).programs)
      EXPECT_EQ(counted(p), (Counted{2, 2, 6})) << ranks;
    for (const Program& p : compiled_of(test::gpt2_tokens({}), ranks).programs)
      EXPECT_EQ(counted(p), (Counted{2, 2, 4})) << ranks;
  }
  // Layers that repeat: phases once each.
  EXPECT_EQ(counted(compiled_of(test::llama_tokens({.layers = 6, .kv_heads = 2})).programs[0]).done,
            counted(compiled_of(test::llama_tokens({.layers = 12, .kv_heads = 2})).programs[0]).done);
}

TEST(Appended, NotWhereHeadsDoNotLieWholeInPanelsOrOthersComeBetween) {
  for (const int64_t dim : {24, 128}) {
    const Counted all =
        counted(compiled_of(test::llama_tokens({.kv_heads = 2, .head_dim = dim})).programs[0]);
    EXPECT_EQ(all, (Counted{2, 0, 0})) << dim;
  }
  const TokenGraphOptions apart{.kv_heads = 2, .is_apart = true};
  EXPECT_EQ(counted(compiled_of(test::llama_tokens(apart)).programs[0]), (Counted{2, 0, 0}));
}

TEST(Appended, NotWhereSomebodyElseReadsOrWritesAnInput) {
  const Compiled compiled = compiled_of(test::llama_tokens({.layers = 1, .kv_heads = 2}));
  const auto changed = [&](const std::function<void(Program&, Phase & append)>& change) {
    Program p = compiled.programs[0];
    for (Phase& phase : p.phases) {
      if (p.variants[phase.variant].code == OpCode::kRotaryAppend) change(p, phase);
    }
    return counted(p);
  };
  constexpr Counted kNotDone = {1, 0, 0};
  EXPECT_EQ(changed([](Program&, Phase&) {}), (Counted{1, 1, 3}));
  // Attention reads the queries as they were; keys are values, too; positions are not the step's.
  EXPECT_EQ(changed([](Program& p, Phase& append) {
              for (Phase& phase : p.phases)
                if (p.variants[phase.variant].code == OpCode::kAttention)
                  phase.operands[0] = append.operands[0];
            }),
            kNotDone);
  EXPECT_EQ(changed([](Program&, Phase& append) { append.operands[5] = append.operands[4]; }), kNotDone);
  EXPECT_EQ(changed([](Program& p, Phase& append) {
              p.buffers.push_back(p.buffers[at(p.positions)]);
              append.operands[3] = {static_cast<BufferId>(p.buffers.size() - 1)};
            }),
            kNotDone);
}

// A layer's tables: no instance of the phase, and attention waits for the three products.
TEST(Appended, HasNoInstanceAndAttentionWaitsForTheProducts) {
  for (const int64_t layers : {1, 3}) {
    for (const bool gpt2 : {false, true}) {
      TokenGraphOptions o{.layers = layers, .kv_heads = 2};
      if (gpt2) o.kv_heads = o.heads;
      const DecoderModel model = gpt2 ? test::gpt2_tokens(o) : test::llama_tokens(o);
      const Compiled compiled = compiled_of(model);
      const Program& p = compiled.programs[0];
      const Program* const programs[] = {&p};
      const VariantSet variants(programs, Numerics::kExact);
      ExecutorOptions options;
      options.limits = {
          .max_tokens = 16, .max_rows = 4, .max_slots = 4, .max_length = 64, .page_size = 16, .pages = 8};
      options.limits.vocabulary = static_cast<int32_t>(model.vocabulary);
      options.max_items = most_items(16, 4);
      options.processors = 4;
      const RankImage image({&p, &compiled.bindings[0], nullptr, nullptr}, options, variants, 0, 0,
                            kLargeTiles, {});
      RankPlaces places;
      places.arena = u64{1} << 40, places.weights = u64{1} << 44;
      const RankTables rank = image.rank_tables(places);
      const std::vector<std::byte> bytes = image.tables(places);
      const auto* const all =
          reinterpret_cast<const Instance*>(bytes.data() + (rank.instances - places.arena));
      const auto* const waits = reinterpret_cast<const Wait*>(bytes.data() + (rank.waits - places.arena));
      EXPECT_EQ(rank.instance_count, std::ssize(unroll(p)) - layers);
      EXPECT_EQ(std::ssize(variants.appended(0).unwritten(p)), layers * (gpt2 ? 2 : 3));
      int attentions = 0;
      for (i32 n = 0; n < rank.instance_count; ++n) {
        EXPECT_FALSE(is_append(code_of(p, all[n].phase)));
        if (code_of(p, all[n].phase) != OpCode::kAttention) continue;
        ++attentions;
        for (i32 product = n - 1; product >= n - 3; --product) {
          ASSERT_EQ(code_of(p, all[product].phase), OpCode::kMatMul);
          EXPECT_EQ(all[product].product.tile_use != 0, !gpt2 || product != n - 3);
          EXPECT_TRUE(std::any_of(waits + all[n].first_wait, waits + all[n].first_wait + all[n].waits,
                                  [&](const Wait& w) {
                                    return w.counter == all[product].counter &&
                                           w.offset == all[product].complete_offset;
                                  }))
              << "instance " << n << " does not wait for " << product;
        }
      }
      EXPECT_EQ(attentions, layers);
    }
  }
}

}  // namespace
}  // namespace ark::cuda
