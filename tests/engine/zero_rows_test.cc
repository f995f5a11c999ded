// Rows of zeros do not travel: the bits of sums that send them, in fewer bytes; what makes rows others is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "base/ir/keys.h"
#include "engine/cpu/step_kernel.h"
#include "engine/program/opcodes.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/mutations.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

// So many tokens that their table is split over ranks.
constexpr int64_t kWords = 4099, kHidden = 32;

DecoderModel model_of(bool gpt2) {
  TokenGraphOptions o;
  o.vocabulary = kWords;
  o.hidden = kHidden;
  return gpt2 ? gpt2_tokens(o) : llama_tokens(o);
}

int64_t phases_of(const Program& program, OpCode code) {
  return std::count_if(program.phases.begin(), program.phases.end(),
                       [&](const Phase& p) { return program.variants[p.variant].code == code; });
}

struct Course {
  std::vector<std::vector<float>> logits;
  SentBytes sent;
  int64_t tokens = 0;
};

// A prompt in chunks, then greedy tokens: with what is sent for them.
Course drive(StepRunner& runner, const std::vector<int32_t>& prompt, int32_t chunk, int32_t extra) {
  Course all;
  Sequence s{.slot = 0, .tokens = prompt};
  int32_t next_page = 0;
  while (std::ssize(all.logits) <= extra) {
    StepDescriptor step;
    const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached, count = std::min(chunk, left);
    add_chunk(step, s, count, runner.limits().page_size, next_page, count == left, kWantToken | kWantLogits);
    runner.post(step);
    StepResult result = wait_for(runner);
    all.sent += result.cost.sent;
    all.tokens += count;
    if (result.rows.empty()) continue;
    s.tokens.push_back(result.rows[0].token);
    all.logits.push_back(std::move(result.rows[0].logits));
  }
  return all;
}

TEST(ZeroRows, AreNotSentAndChangeNoBit) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 41; ++i) prompt.push_back(i * 977 % kWords);
  for (const bool gpt2 : {false, true}) {
    const DecoderModel model = model_of(gpt2);
    const Course one = drive(*make_runner(model, {}), prompt, 17, 5);
    for (const int32_t ranks : degrees({2, 3, 4}))
      for (const Link link : {Link::kDirect, Link::kPosted})
        for (const int32_t threads : {1, 3}) {
          RunnerSetup setup;
          setup.ranks = ranks;
          setup.link = link;
          setup.options.threads = threads * ranks;
          ASSERT_EQ(phases_of(compile(model, setup).programs[0], OpCode::kSendRows), ranks - 1);
          const Course rows = drive(*make_runner(model, setup), prompt, 17, 5);
          setup.send_zeros = true;
          ASSERT_EQ(phases_of(compile(model, setup).programs[0], OpCode::kSendRows), 0);
          const Course dense = drive(*make_runner(model, setup), prompt, 17, 5);
          const std::string at = "ranks " + std::to_string(ranks) + " gpt2 " + std::to_string(gpt2);
          EXPECT_TRUE(same_bits(rows.logits, dense.logits)) << at;
          EXPECT_TRUE(ranks == 3 || same_bits(rows.logits, one.logits)) << at;
          // Of n (n - 1) messages of a row, the n - 1 of its owner are left.
          const int64_t message = rows.tokens * kHidden * 4;
          EXPECT_EQ(dense.sent.zeros, 0);
          EXPECT_EQ(rows.sent.zeros, message * (ranks - 1) * (ranks - 1)) << at;
          EXPECT_EQ(rows.sent.data + rows.sent.zeros, dense.sent.data) << at;
        }
  }
}

// The kernels by themselves: numbers of any kind, ids of nobody, rows that pass over tiles.
TEST(ZeroRows, SumsAreThoseOfZerosForAnyNumbers) {
  std::mt19937 random(5);
  const auto number = [&]() -> float {
    switch (random() % 6) {
      case 0:
        return -0.0F;
      case 1:
        return std::bit_cast<float>(0x7f800000U | static_cast<uint32_t>(random() % 3) << 22);
      case 2:
        return -std::numeric_limits<float>::denorm_min();
      default:
        return std::bit_cast<float>(static_cast<uint32_t>(random()));
    }
  };
  for (int round = 0; round < 60; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 4),
              own = static_cast<int>(random() % static_cast<uint32_t>(ranks));
    const int64_t tokens = 1 + random() % 30, width = 1 + random() % 1500;
    std::vector<int64_t> borders = {static_cast<int64_t>(random() % 3)};
    for (int r = 0; r < ranks; ++r) borders.push_back(borders.back() + static_cast<int64_t>(random() % 4));
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(random() % 18) - 1);
    const auto size = static_cast<std::size_t>(tokens * width);
    std::vector<std::vector<float>> dense(static_cast<std::size_t>(ranks), std::vector<float>(size, 0.F)),
        packed = dense;
    for (int r = 0; r < ranks; ++r)
      for (int64_t t = 0; t < tokens; ++t)
        if (ids[t] >= borders[r] && ids[t] < borders[r + 1])
          std::generate_n(dense[r].begin() + t * width, width, number);
    std::vector<float> residual(size);
    std::generate(residual.begin(), residual.end(), number);
    const auto view = [&](std::vector<float>& v) {
      TensorView x{reinterpret_cast<std::byte*>(v.data()), DType::kF32};
      return x.sized(std::vector{tokens, width});
    };
    const TensorView ids_view =
        TensorView{reinterpret_cast<std::byte*>(ids.data()), DType::kI32}.sized(std::vector{tokens});
    VariantFacts facts;
    facts.borders = borders;
    Scratch scratch(1 << 20);
    const auto call_all = [&](OpCode code, int rank, std::vector<TensorView> operands, int64_t grid,
                              std::byte* outbox, int64_t* sent_bytes) {
      Variant variant{.code = code, .epilogue = is_send(code) ? 0U : uint32_t{kEpilogueResidual}};
      const int64_t processors = 1 + static_cast<int64_t>(random() % 4);
      int64_t next = 0;
      for (int64_t p = 0; p < processors; ++p) {
        scratch.reset();
        PhaseCall call;
        Range sent;
        call.variant = &variant;
        call.facts = &facts;
        call.operands = operands;
        call.rank = rank;
        call.ranks = ranks;
        call.outbox = outbox;
        call.sent = &sent;
        call.simd = &simd::table_of(best_isa());
        call.scratch = &scratch;
        call.grid = grid;
        const Range tiles = tiles_of(grid, p, processors);
        call.first = tiles.begin, call.last = tiles.end;
        if (tiles.size() == 0) continue;
        find_step_kernel(code).run(call);
        if (sent.size() > 0) {
          EXPECT_EQ(sent.begin, next);
          next = sent.end;
        }
      }
      if (sent_bytes) *sent_bytes = next;
    };
    for (int r = 0; r < ranks; ++r) {
      int64_t sent = 0;
      std::fill(packed[r].begin(), packed[r].end(), std::numeric_limits<float>::quiet_NaN());
      call_all(OpCode::kSendRows, r, {view(dense[r]), ids_view},
               (tokens * width * 4 + kSendTile - 1) / kSendTile,
               reinterpret_cast<std::byte*>(packed[r].data()), &sent);
      const auto is_own = [&](int32_t id) { return id >= borders[r] && id < borders[r + 1]; };
      EXPECT_EQ(sent, std::count_if(ids.begin(), ids.end(), is_own) * width * 4);
    }
    std::vector<float> expected(size), got(size);
    std::vector<TensorView> of_dense = {view(dense[own])}, of_rows = of_dense;
    for (int r = 0; r < ranks; ++r)
      if (r != own) of_dense.push_back(view(dense[r])), of_rows.push_back(view(packed[r]));
    of_rows.push_back(ids_view);
    of_dense.insert(of_dense.end(), {TensorView{}, view(residual), view(expected)});
    of_rows.insert(of_rows.end(), {TensorView{}, view(residual), view(got)});
    const int64_t grid = (tokens * width + kElementTile - 1) / kElementTile;
    call_all(OpCode::kRecvReduce, own, of_dense, grid, nullptr, nullptr);
    call_all(OpCode::kRecvRows, own, of_rows, grid, nullptr, nullptr);
    ASSERT_EQ(std::memcmp(expected.data(), got.data(), size * sizeof(float)), 0) << "round " << round;
  }
}

TEST(ZeroRows, WhatMayNotBeZerosIsRefused) {
  RunnerSetup setup;
  setup.ranks = 2;
  const Compiled sound = compile(model_of(false), setup);
  ASSERT_EQ(validate(sound.programs, sound.bindings), std::vector<std::string>{});
  const auto error = [&](auto&& change) {
    std::vector<Program> programs = sound.programs;
    change(programs[1]);
    const auto errors = validate(programs, sound.bindings);
    return errors.empty() ? "" : errors[0];
  };
  const auto each = [](Program& p, OpCode code, auto&& change) {
    for (Phase& phase : p.phases)
      if (p.variants[phase.variant].code == code) change(phase, p.variants[phase.variant]);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  for (const OpCode code : {OpCode::kSendRows, OpCode::kRecvRows}) {
    const auto borders = [&](auto&& to) {
      return error([&](Program& p) {
        each(p, code, [&](Phase&, Variant& v) {
          std::vector<int64_t> all = v.attributes.get(key::kBorders);
          to(all);
          v.attributes.set(key::kBorders, all);
        });
      });
    };
    EXPECT_TRUE(
        has(borders([](auto& b) { b.pop_back(); }), "its borders are not those of parts of all ranks"));
    EXPECT_TRUE(has(borders([](auto& b) { b[1] -= 1; }), "not those of the rank's part of a table"));
    // The peer's part.
    EXPECT_TRUE(has(borders([](auto& b) { b[0] -= 1; }), "its ends disagree on the rows"));
    EXPECT_TRUE(has(error([&](Program& p) {
                      each(p, code, [&](Phase& phase, Variant& v) {
                        phase.operands[v.code == OpCode::kSendRows ? 1 : phase.operands.size() - 4] = {
                            p.positions};
                      });
                    }),
                    "its rows are not those of the step's tokens"));
  }
  // One end sends all rows, the other expects its own.
  EXPECT_NE(error([&](Program& p) {
              each(p, OpCode::kSendRows, [&](Phase& phase, Variant& v) {
                v = {.code = OpCode::kSend};
                phase.operands.pop_back();
              });
            }),
            "");
}

TEST(ZeroRows, RandomMutationsAreRefused) {
  RunnerSetup setup;
  setup.ranks = 2;
  expect_refusal({compile(model_of(false), setup), compile(model_of(true), setup)}, rounds(400), 12);
}

}  // namespace
}  // namespace ark::test
