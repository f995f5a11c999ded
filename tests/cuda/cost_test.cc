// What a step of known models would take on an H100, by the replay of their loops: against cost_budget.json, which may
// only fall. That the replay's counts are the code's: tests/emulator/cost_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/compile.h"
#include "engine/cuda/cost/replay.h"
#include "engine/cuda/lamport_plan.h"
#include "engine/cuda/make_image.h"
#include "engine/ragged_runner.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::cuda::cost {
namespace {

using test::TokenGraphOptions;
using Json = nlohmann::json;

struct Model {
  std::string name;
  DecoderModel decoder;
  WeightPolicy weights = WeightPolicy::kExact;
};

// Of the models' kinds, widths and depths, without numbers in their weights.
Model model_of(const std::string& name) {
  TokenGraphOptions o{.head_dim = 64, .max_positions = 4096, .filled = false};
  if (name == "gpt2-124m-f16") {
    o.layers = 12, o.hidden = 768, o.heads = 12, o.intermediate = 3072, o.vocabulary = 50257,
    o.weight = DType::kF16;
    return {name, test::gpt2_tokens(o)};
  }
  if (name == "smollm2-135m-f32") {
    o.layers = 30, o.hidden = 576, o.heads = 9, o.kv_heads = 3, o.intermediate = 1536, o.vocabulary = 49152;
    return {name, test::llama_tokens(o), WeightPolicy::kF32};
  }
  o.layers = 16, o.hidden = 2048, o.heads = 32, o.kv_heads = 8, o.intermediate = 8192, o.vocabulary = 128256;
  o.weight = DType::kBF16;
  if (name == "llama-1b-u4") o.bits = 4, o.block = 32, o.terms = BlockTerms::kScales16;
  // Products of more tiles than there are processors, which share outputs; of 36, 32 and 80 layers.
  if (name == "llama-4b-bf16-8-layers")
    o.layers = 8, o.head_dim = 128, o.hidden = 2560, o.intermediate = 9728;
  if (name == "llama-8b-bf16-8-layers" || name == "llama-8b-bf16-96-layers")
    o.layers = name.ends_with("96-layers") ? 96 : 8, o.head_dim = 128, o.hidden = 4096,
    o.intermediate = 14336;
  if (name == "llama-70b-bf16-4-layers")
    o.layers = 4, o.head_dim = 128, o.hidden = 8192, o.heads = 64, o.intermediate = 28672;
  return {name, test::llama_tokens(o)};
}

class Loop {
 public:
  // `ranks`: on a GPU each.
  explicit Loop(const Model& model, int32_t max_tokens = 512, int32_t ranks = 1) {
    limits_ = {.max_tokens = max_tokens,
               .max_rows = 64,
               .max_slots = 64,
               .max_length = 2 * max_tokens,
               .page_size = 16,
               .pages = 1};
    limits_.vocabulary = static_cast<int32_t>(model.decoder.vocabulary);
    CompileOptions options;
    options.ranks = ranks;
    options.max_tokens = limits_.max_tokens, options.max_rows = limits_.max_rows;
    options.max_items = most_items(limits_.max_tokens, limits_.max_slots);
    options.storage.policy = model.weights;
    options.activations = Activations::kF32;
    options.kv_dtype = DType::kUndefined;  // as a GPU is given them
    compiled_ = compile_decoder(model.decoder, options);
  }
  StepTables tables(const Rates& rates, int32_t batch, int32_t groups = 0) const {
    return tables(rates, {std::vector<StepShape::Sequence>(static_cast<std::size_t>(batch), {1, 128})},
                  Numerics::kExact, groups);
  }
  StepTables tables(const Rates& rates, const StepShape& shape, Numerics numerics, int32_t groups = 0) const {
    const StepMachine machine = machine_of(rates.processors, rates.shared_per_block, rates.l2_bytes, 1);
    std::vector<RankSetup> ranks;
    for (std::size_t r = 0; r < compiled_.programs.size(); ++r)
      ranks.push_back({&compiled_.programs[r], &compiled_.bindings[r], nullptr, nullptr});
    return StepTables(ranks, options(), machine, numerics, groups, shape);
  }

  const Program& program() const { return compiled_.programs[0]; }
  // Bytes of what steps that tell exchange.
  int64_t told_bytes(const Rates& rates) const {
    const StepMachine machine = machine_of(rates.processors, rates.shared_per_block, rates.l2_bytes, 1);
    ExecutorOptions all = options();
    all.processors = machine.processors;
    const Program* const programs[] = {&program()};
    const VariantSet variants(programs, Numerics::kExact);
    const RankImage image({&program(), &compiled_.bindings[0], nullptr, nullptr}, all, variants, 0, 0,
                          machine.tiles, {});
    return image.absent_words().size();
  }

 private:
  ExecutorOptions options() const {
    ExecutorOptions options;
    options.limits = limits_;
    options.max_items = most_items(limits_.max_tokens, limits_.max_slots);
    return options;
  }

  RunnerLimits limits_;
  Compiled compiled_;
};

// Of a layer: the phases that run several times, once each.
Json layer_of(const StepCost& cost) {
  Counts all;
  for (const PhaseCost& p : cost.phases) {
    if (p.times == 1) continue;
    all.loads += p.counts.loads, all.fences += p.counts.fences;
    all.atomics += p.counts.atomics, all.barriers += p.counts.barriers;
  }
  return {{"loads", all.loads}, {"fences", all.fences}, {"atomics", all.atomics}, {"barriers", all.barriers}};
}

// A budget may only fall, so what is better lowers it.
void expect_within(const std::string& what, double us, double most) {
  EXPECT_TRUE(us <= most) << what << ": " << us << " us";
  EXPECT_TRUE(us >= 0.97 * most) << what << ": better: lower the budget to " << us << " us";
}

TEST(Cost, KeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/cost_budget.json");
  const Json budget = Json::parse(in);
  const Rates& rates = rates_of(budget.at("arch").get<std::string>());
  Json predicted;
  for (const auto& [name, batches] : budget.at("models").items()) {
    const Loop loop(model_of(name));
    for (const auto& [batch, limit] : batches.items()) {
      const StepCost cost = replay(loop.tables(rates, std::stoi(batch)), rates);
      const Json layer = layer_of(cost);
      const std::string what = name + ", batch " + batch;
      std::cout << what << ": " << cost.us << " us, byte floor " << cost.floor_us << " us, a layer " << layer
                << "\n";
      const double most = limit.at("us").get<double>();
      predicted[name][batch] = layer;
      predicted[name][batch]["us"] = std::ceil(cost.us);
      expect_within(what, cost.us, most);
      for (const auto& [count, value] : layer.items())
        EXPECT_EQ(value.get<int>(), limit.value(count, 0))
            << what << ": " << count << "; what is less lowers the budget";
    }
  }
  if (HasFailure()) std::cout << "as it is now: " << predicted << "\n";
}

// Ranks on a GPU each; the more, the less a step takes.
TEST(Cost, OfSeveralGpusKeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/cost_budget.json");
  const Json budget = Json::parse(in);
  const Rates& rates = rates_of(budget.at("arch").get<std::string>());
  for (const auto& [name, all] : budget.at("gpus").items()) {
    for (const auto& [gpus, batches] : all.items()) {
      const Loop loop(model_of(name), 512, std::stoi(gpus));
      for (const auto& [tokens, most] : batches.at("prompts").items()) {
        const int32_t count = std::stoi(tokens);
        const Loop reader(model_of(name), count, std::stoi(gpus));
        const double us = replay(reader.tables(rates, {{{count, 0}}}, Numerics::kExact), rates).us;
        expect_within(name + ", prompt of " + tokens + ", " + gpus + " GPUs", us, most.get<double>());
      }
      for (const auto& [batch, most] : batches.at("batches").items()) {
        const double us = replay(loop.tables(rates, std::stoi(batch)), rates).us,
                     alone = budget.at("models").at(name).at(batch).at("us").get<double>();
        const std::string what = name + ", batch " + batch + ", " + gpus + " GPUs";
        std::cout << what << ": " << us << " us\n";
        expect_within(what, us, most.get<double>());
        EXPECT_LT(us, alone) << what << ", and of one GPU";
      }
    }
  }
}

// Up to 64; or fewer, where looks at rows take more than is saved, or so many layers would take too much memory.
TEST(Cost, StepsTellAsManyRowsAsPay) {
  const Rates& rates = rates_of("sm_90a");
  for (const auto& [name, rows] :
       {std::pair{"gpt2-124m-f16", 64}, std::pair{"smollm2-135m-f32", 64},
        std::pair{"llama-8b-bf16-8-layers", 16}, std::pair{"llama-8b-bf16-96-layers", 8}}) {
    const Loop loop(model_of(name));
    EXPECT_TRUE(loop.tables(rates, rows).tells()) << name;
    EXPECT_FALSE(loop.tables(rates, rows + 1).tells()) << name;
  }
}

// What is planned for before there is an image.
TEST(Cost, WhatStepsTellHasRoomInThePlanOfMemory) {
  const Rates& rates = rates_of("sm_90a");
  for (const std::string name :
       {"gpt2-124m-f16", "smollm2-135m-f32", "llama-1b-bf16", "llama-8b-bf16-8-layers",
        "llama-8b-bf16-96-layers", "llama-70b-bf16-4-layers"}) {
    const Loop loop(model_of(name));
    const int64_t bytes = loop.told_bytes(rates), most = most_told_bytes(loop.program());
    EXPECT_GT(bytes, 0) << name;
    EXPECT_LE(bytes, most) << name;
  }
}

TEST(Cost, OfPromptsKeepsToTheBudget) {
  std::ifstream in(test::source_root() / "tests/cuda/cost_budget.json");
  const Json budget = Json::parse(in);
  const Rates& rates = rates_of(budget.at("arch").get<std::string>());
  for (const auto& [name, prompts] : budget.at("prompts").items()) {
    for (const auto& [tokens, limit] : prompts.items()) {
      const int32_t count = std::stoi(tokens);
      const Loop loop(model_of(name), count);
      for (const auto& [numerics, most] : limit.items()) {
        const Numerics as = numerics == "fast" ? Numerics::kFast : Numerics::kExact;
        const double us = replay(loop.tables(rates, {{{count, 0}}}, as), rates).us;
        const std::string what = name + ", prompt of " + tokens + ", " + numerics;
        std::cout << what << ": " << us << " us\n";
        expect_within(what, us, most.get<double>());
      }
    }
  }
}

// Rates of a GPU that does all in no time.
Rates boundless() {
  Rates r = rates_of("sm_90a");
  for (Rate* rate : {&r.l2, &r.memory, &r.barrier, &r.release, &r.hop, &r.raise, &r.cold, &r.enter, &r.skip,
                     &r.hold, &r.open, &r.close})
    rate->value = 0;
  for (Rate* rate : {&r.clock, &r.peak, &r.stream, &r.link, &r.share}) rate->value = 1e18;
  return r;
}

TEST(Cost, IsTheLongestChainOfWaitsWhereHopsAloneTakeTime) {
  Rates rates = boundless();
  rates.hop.value = 1000;
  const Loop loop(model_of("gpt2-124m-f16"));
  const StepTables tables = loop.tables(rates, 1, 1);  // no tiles share outputs: no hops but the waits'
  std::vector<int> longest;
  for (std::size_t i = 0; i < tables.needs().size(); ++i) {
    longest.push_back(0);
    for (const auto* all : {&tables.needs()[i], &tables.told()[i]}) {
      for (const int32_t n : *all)
        longest.back() = std::max(longest.back(), longest[static_cast<std::size_t>(n)] + 1);
    }
  }
  EXPECT_NEAR(replay(tables, rates).us, *std::max_element(longest.begin(), longest.end()), 0.001);
}

TEST(Cost, IsTheBytesOfWeightsWhereMemoryAloneTakesTime) {
  Rates rates = boundless();
  rates.stream.value = 1;
  rates.l2_bytes = 0;
  const Loop loop(model_of("gpt2-124m-f16"));
  const StepTables tables = loop.tables(rates, 1);
  int64_t bytes = 0;
  for (const Instance& i : tables.instances()) {
    if (tables.variant(i).type.starts_with("MatMul"))
      bytes += int64_t{i.stream.panels} * i.stream.panel * i.stream.k * 2;
  }
  const double us = replay(tables, rates).us, most = static_cast<double>(bytes) / 1000;
  EXPECT_NEAR(us, most, most * 1e-3);
  // What the step before has asked for takes none: pieces of a stage at most, of each processor.
  rates.l2_bytes = 50 << 20;
  const StepTables after = loop.tables(rates, 1);
  const double asked = pieces_ahead(rates.l2_bytes, rates.processors) * rates.processors * kStageBytes / 1e3;
  EXPECT_GE(replay(after, rates).us, us - asked * 1.001);
  EXPECT_LE(replay(after, rates).us, us - asked / 2);
}

TEST(Cost, OfUnknownArchitecturesIsRefusedByName) {
  for (const Rates& rates : all_rates()) EXPECT_EQ(rates_of(rates.arch).card, rates.card);
  EXPECT_EQ(rates_of("sm_100a").card, rates_of("sm_100").card) << "as code for it is named";
  try {
    rates_of("sm_70");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sm_80, sm_89, sm_90a, sm_100, sm_120"), std::string::npos);
  }
}

}  // namespace
}  // namespace ark::cuda::cost
