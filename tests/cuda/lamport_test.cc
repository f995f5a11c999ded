// What steps that tell (engine/cuda/lamport.h) exchange without counters, and that they wait for all else.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/index.h"
#include "engine/compile.h"
#include "engine/cuda/image.h"
#include "engine/cuda/lamport_plan.h"
#include "engine/cuda/taken_up.h"
#include "engine/program/opcodes.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

using test::TokenGraphOptions;

// One rank's program and its plan.
struct Planned {
  Compiled compiled;
  std::vector<ark::Instance> all;
  std::vector<int32_t> takers;   // of products
  std::vector<SharedSums> sums;  // of all of them
  RankParts parts;               // of several ranks
  LamportPlan plan;

  // `rows`: of a step that tells, at most.
  Planned(const DecoderModel& model, int32_t ranks, int32_t rows = kFewRows) {
    CompileOptions options;
    options.ranks = ranks;
    options.kv_dtype = DType::kF16;
    compiled = compile_decoder(model, options);
    all = unroll(program());
    const Appended appended(program());
    OnDevice device = on_device(program(), binding(), appended, MergedSends(program()));
    device.also.assign(all.size(), kNone);
    takers = cuda::takers(program(), binding(), longest_row(kLargeTiles));
    if (ranks > 1) parts = plan_rank_parts(program(), appended);
    parts.leave_to_norms(program(), takers);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_product(code(i))) takers[i] = kNone;
      if (!is_product(code(i))) continue;
      sums.push_back({static_cast<int32_t>(i), 64, takers[i], rows});
      if (takers[i] != kNone) device.more[takers[i]] = accesses_taken_up(program(), all[i]);
    }
    plan = plan_lamport(program(), binding(), appended, parts, XParts(program()),
                        {{"items", rows}, {"pages", 8}, {"rows", rows}, {"tokens", rows}}, sums, device);
  }
  const Program& program() const { return compiled.programs[0]; }
  const Binding& binding() const { return compiled.bindings[0]; }
  const Phase& phase(std::size_t i) const { return program().phases[all[i].phase]; }
  OpCode code(std::size_t i) const { return program().variants[phase(i).variant].code; }
  BufferId operand(std::size_t i, std::size_t n) const {
    return root(program(), resolve(program(), phase(i), phase(i).operands[n], all[i].trip));
  }
  bool has(std::size_t i, std::size_t n) const {
    return resolve(program(), phase(i), phase(i).operands[n], all[i].trip) != kNone;
  }
  bool is_gone(std::size_t i) const { return Appended(program()).is_done(all[i].phase); }
};

TokenGraphOptions shape_of(DType weight) {
  TokenGraphOptions o;
  o.layers = 3, o.hidden = 64, o.heads = 4, o.kv_heads = 2, o.head_dim = 16, o.intermediate = 128;
  o.weight = weight;
  return o;
}

TEST(LamportPlan, TellsWhatOnlyProductsRead) {
  for (const DType weight : {DType::kF32, DType::kBF16}) {
    for (const bool is_gpt2 : {false, true}) {
      TokenGraphOptions o = shape_of(weight);
      if (is_gpt2) o.kv_heads = o.heads;
      const int32_t rows = is_gpt2 ? kFewRows : kMostToldRows;
      const Planned p(is_gpt2 ? test::gpt2_tokens(o) : test::llama_tokens(o), 1, rows);
      std::set<int32_t> places;
      int norms = 0, attentions = 0, products = 0;
      for (std::size_t i = 0; i < p.all.size(); ++i) {
        if (p.plan.out[i] == kNone) continue;
        EXPECT_TRUE(places.insert(p.plan.out[i]).second) << "two outputs in one place";
        EXPECT_EQ(p.plan.out[i] % 16, 0);
        norms += p.code(i) == OpCode::kNorm, attentions += p.code(i) == OpCode::kAttention,
            products += is_product(p.code(i));
      }
      // Two norms, attention and the activation of each layer; but rows are selected of the last attention. A gated
      // product in f32 keeps sums where it writes.
      EXPECT_GE(norms, 2 * o.layers);
      EXPECT_EQ(attentions, o.layers - 1);
      EXPECT_EQ(products, is_gpt2 || weight == DType::kBF16 ? o.layers : 0);
      EXPECT_EQ(p.plan.pitch % 16, 0);
      EXPECT_EQ(p.plan.floats, int64_t{2} * rows * p.plan.pitch + 64 * std::ssize(p.sums));
      for (std::size_t i = 0; i < p.all.size(); ++i) {
        if (p.plan.x[i] == kNone) continue;
        EXPECT_TRUE(is_product(p.code(i)));
        EXPECT_TRUE(places.contains(p.plan.x[i])) << "nobody tells what instance " << i << " takes";
      }
    }
  }
}

// Whether they meet in memory other than what is told: said differently than the plan says it.
bool meet(const Planned& p, std::size_t a, std::size_t b) {
  const auto touched = [&](std::size_t i) {
    std::vector<Access> all = accesses(p.program(), p.all[i]);
    // What ranks exchange by words: sends do nothing, products store no part where these would read it, and the norm
    // behind adds up, or who receives.
    if (!p.parts.place.empty() && p.parts.place[i] != 0) {
      const bool adds = p.code(i) == OpCode::kRecvReduce;
      if (is_send(p.code(i)) || (adds && p.parts.taker[i] != kNone)) return std::vector<Access>{};
      std::erase_if(all, [&](const Access& access) {
        return access.writes ? !adds : adds && access.buffer == p.operand(i, 0);
      });
    }
    const auto sum = std::find(p.parts.taker.begin(), p.parts.taker.end(), static_cast<int32_t>(i));
    if (sum != p.parts.taker.end()) {
      const auto reduce = static_cast<std::size_t>(sum - p.parts.taker.begin());
      const std::size_t out = p.phase(reduce).operands.size() - 1;
      all.push_back({p.operand(reduce, out), true});
      if (p.has(reduce, out - 1)) all.push_back({p.operand(reduce, out - 1), false});
    }
    // Who takes up a product's sums accesses its residual and output in its place.
    const auto other = std::find(p.takers.begin(), p.takers.end(), static_cast<int32_t>(i));
    if (other != p.takers.end()) {
      const auto product = static_cast<std::size_t>(other - p.takers.begin());
      all.push_back({p.operand(product, 4), true});
      if (p.has(product, 3)) all.push_back({p.operand(product, 3), false});
    }
    // Who appends its tiles writes pages instead of its output.
    if (const Appended appended(p.program()); appended.of(p.all[i].phase)) {
      std::erase_if(all, [&](const Access& access) { return access.writes; });
      const auto written = appended.accesses(p.program(), p.binding());
      for (const Access& access : written.at(static_cast<int32_t>(i))) all.push_back(access);
    }
    if (p.takers[i] != kNone) {
      std::erase_if(all, [&](const Access& access) { return access.writes; });
      const bool has_own = p.has(i, 3) && p.operand(i, 3) != p.operand(i, 0);  // else x is read all the same
      std::erase_if(all, [&](const Access& access) { return has_own && access.buffer == p.operand(i, 3); });
    }
    std::erase_if(all, [&](const Access& access) {
      const bool is_out = p.plan.out[i] != kNone && access.writes &&
                          access.buffer == p.operand(i, p.phase(i).operands.size() - 1);
      return is_out || (p.plan.x[i] != kNone && !access.writes && access.buffer == p.operand(i, 0));
    });
    return all;
  };
  for (const Access& x : touched(a)) {
    for (const Access& y : touched(b)) {
      const Range of_x = memory_of(p.program(), p.binding(), x.buffer),
                  of_y = memory_of(p.program(), p.binding(), y.buffer);
      if ((x.writes || y.writes) && of_x.begin < of_y.end && of_y.begin < of_x.end) return true;
    }
  }
  return false;
}

void expect_all_else_is_waited_for(const Planned& p) {
  std::vector<std::vector<bool>> before(p.all.size(), std::vector<bool>(p.all.size()));
  int told = 0;  // by nothing else
  for (std::size_t i = 0; i < p.all.size(); ++i) {
    for (const int32_t n : p.plan.needed[i]) {
      ASSERT_LT(at(n), i);
      before[i][at(n)] = true;
      for (std::size_t k = 0; k < at(n); ++k) before[i][k] = before[i][k] || before[at(n)][k];
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (p.is_gone(i) || p.is_gone(j)) continue;
      if (p.plan.x[i] != kNone && p.plan.x[i] == p.plan.out[j]) {
        told += !before[i][j];
      } else if (meet(p, j, i)) {
        EXPECT_TRUE(before[i][j]) << p.phase(i).name << " does not wait for " << p.phase(j).name;
      }
    }
  }
  EXPECT_GE(told, 3 * 5) << "of each layer q, k, v, and the MLP's products";
  EXPECT_TRUE(fits(p.program(), MergedSends(p.program()), p.plan, p.plan.needed));
}

TEST(LamportPlan, AllElseIsWaitedFor) {
  for (const int32_t ranks : {1, 2})
    expect_all_else_is_waited_for(Planned(test::llama_tokens(shape_of(DType::kBF16)), ranks));
  TokenGraphOptions own = shape_of(DType::kF16);
  own.kv_heads = own.heads, own.adds_own = true;
  expect_all_else_is_waited_for(Planned(test::gpt2_tokens(own), 1));
}

TEST(LamportPlan, TooManyWaitsDoNotFit) {
  const Planned p(test::llama_tokens(shape_of(DType::kBF16)), 1);
  std::vector<std::vector<int32_t>> others(p.all.size());
  std::size_t i = p.all.size() - 1;
  while (i > 0 && p.plan.needed[i].empty()) --i;
  others[i] = p.plan.needed[i];  // both steps' alike: they count once
  for (int32_t n = 1000; std::ssize(others[i]) < kMaxWaits; ++n) others[i].push_back(n);
  EXPECT_TRUE(fits(p.program(), MergedSends(p.program()), p.plan, others));
  others[i].front() = 2000;  // instead of what steps that tell wait for
  EXPECT_FALSE(fits(p.program(), MergedSends(p.program()), p.plan, others));
}

}  // namespace
}  // namespace ark::cuda
