// What the model of a step's cost says that code does (engine/cuda/cost/work.h) against what the code does, block by
// block: NVRTC's PTX of whole loops, interpreted and counted. A model that lies about the code is caught by this; that
// it would be, is proven by lies planted into the code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "engine/cuda/cost/work.h"
#include "engine/cuda/nvrtc.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/ptx/work_log.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using cuda::cost::Counts;
using cuda::cost::StepShape;
using cuda::cost::StepTables;
using emulator::ptx::WorkLog;

struct Loop {
  const char* name;
  bool is_gpt2;
  DType weight;
  int32_t bits;  // of quantized weights; 0: `weight`
  int32_t groups;
  int32_t ranks = 1;
  DType kv = DType::kF32;
  int64_t head_dim = 16;  // of 24: a phase appends, not products
  cuda::Numerics numerics = cuda::Numerics::kExact;
  int32_t tokens = 11;  // of the prompt: many of them take wide tiles
  int64_t hidden = 64, intermediate = 384;
  int arch = 900;
  int32_t processors = 3;   // of a rank
  int64_t window = 0;       // of attention
  int64_t shares_from = 0;  // DeviceOptions

  int32_t most_tokens() const { return std::max(32, tokens); }
};

// One layer where products are large: interpreting takes long.
DecoderModel model_of(const Loop& loop) {
  TokenGraphOptions o{.layers = loop.intermediate > 1000 ? 1 : 2,
                      .hidden = loop.hidden,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = loop.head_dim};
  o.intermediate = loop.intermediate;
  o.window = loop.window;
  o.max_positions = 256, o.vocabulary = 300, o.weight = loop.weight, o.bits = loop.bits, o.block = 32;
  return loop.is_gpt2 ? gpt2_tokens(o) : llama_tokens(o);
}

RunnerSetup setup_of(const Loop& loop, int32_t processors) {
  RunnerSetup setup;
  setup.max_tokens = loop.most_tokens();
  setup.max_length = 64 + loop.most_tokens();
  setup.pages = std::max(setup.pages, 2 * setup.max_length / setup.page_size);
  setup.ranks = loop.ranks;
  setup.options.device.numerics = loop.numerics;
  setup.kv_dtype = loop.kv;
  setup.activations = Activations::kF32;
  setup.options.device.processors = processors;
  setup.options.device.groups = loop.groups;
  setup.options.device.shares_from = loop.shares_from;
  // However long the host takes from step to step: what a loop that has parked does as it starts again is counted as
  // the step's.
  setup.options.device.linger = std::chrono::hours(1);
  setup.options.step_deadline = std::chrono::seconds(120);
  return setup;
}

// A prompt; a token; some of several sequences, more than tensor cores have columns of; a few of some.
struct Driven {
  std::shared_ptr<WorkLog> log = std::make_shared<WorkLog>();
  std::vector<StepShape> steps;
};
Driven drive(const Loop& loop, int32_t processors, int steps,
             const std::function<void(cuda::KernelSource&)>& change = {}) {
  Driven driven;
  const DecoderModel model = model_of(loop);
  RunnerSetup setup = setup_of(loop, processors);
  setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(
      std::make_shared<emulator::World>(), emulator::EmulatedGpuOptions{.processors = processors * loop.ranks,
                                                                        .arch = loop.arch,
                                                                        .as_ptx = true,
                                                                        .work = driven.log,
                                                                        .change = change});
  const auto runner = make_runner(model, setup);
  std::vector<Sequence> sequences;
  for (int32_t slot = 0; slot < 8; ++slot) {
    sequences.push_back({.slot = slot});
    for (int32_t i = 0; i < loop.most_tokens() + 21; ++i)
      sequences.back().tokens.push_back((slot * 31 + i * 7) % 300);
  }
  int32_t page = 0;
  const auto run = [&](std::vector<std::pair<int32_t, int32_t>> chunks) {
    StepDescriptor step;
    StepShape& shape = driven.steps.emplace_back();
    for (const auto& [slot, count] : chunks) {
      Sequence& s = sequences[static_cast<std::size_t>(slot)];
      shape.sequences.push_back({count, s.cached});
      add_chunk(step, s, count, setup.page_size, page, true, kWantToken);
    }
    runner->post(step);
    wait_for(*runner);
  };
  run({{0, loop.tokens}});
  if (steps > 1) run({{0, 1}});
  if (steps > 2) run({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 2}, {6, 1}, {7, 3}});
  if (steps > 2) run({{0, 1}, {5, 4}, {7, 2}});
  return driven;
}

std::string text_of(const Counts& c) {
  return std::to_string(c.loads) + " loads, " + std::to_string(c.fences) + " fences, " +
         std::to_string(c.atomics) + " atomics, " + std::to_string(c.barriers) + " barriers";
}

// Where model and code differ. Who is the last of those that share an output is the schedule's choice: a block's own
// barriers tell how often it was, and all blocks together must have been once an output.
class Differences {
 public:
  struct Difference {
    int block;
    Counts said, counted;
    std::string text;
  };

  Differences(const Loop& loop, const Driven& driven, int32_t processors)
      : log_(*driven.log), processors_(processors) {
    const DecoderModel model = model_of(loop);
    const RunnerSetup setup = setup_of(loop, processors);
    const Compiled compiled = compile(model, setup);
    std::vector<RankSetup> ranks;
    for (std::size_t r = 0; r < compiled.programs.size(); ++r)
      ranks.push_back({&compiled.programs[r], &compiled.bindings[r], nullptr, nullptr});
    const auto machine = cuda::cost::machine_of(
        processors * loop.ranks, loop.arch == 900 ? 227 << 10 : 163 << 10, 1 << 20, loop.ranks);
    for (std::size_t step = 0; step < driven.steps.size(); ++step) {
      const StepTables tables(ranks, ragged_options(model, setup), machine, loop.numerics, loop.groups,
                              driven.steps[step], {.shares_from = loop.shares_from});
      for (std::size_t n = 0; n < tables.instances().size(); ++n) compare(tables, step, static_cast<int>(n));
    }
  }
  std::vector<Difference> all;
  int compared = 0;

 private:
  void compare(const StepTables& tables, uint64_t step, int n) {
    const cuda::Instance& i = tables.instances()[static_cast<std::size_t>(n)];
    const std::string where = "step " + std::to_string(step) + ", instance " + std::to_string(n) + " (" +
                              tables.variant(i).type + ")";
    int joined = 0;
    for (int block = 0; block < processors_; ++block) {
      const Counts& counted = log_.at(step, n, block);
      const int last =
          times_last(instance_work(tables, i, block, 0), instance_work(tables, i, block, 1), counted);
      joined += last;
      const Counts said = instance_work(tables, i, block, last);
      ++compared;
      if (!(said == counted) && !has_fewer_rows(tables, i, said, counted))
        all.push_back({block, said, counted,
                       where + ", block " + std::to_string(block) + ": the model says " + text_of(said) +
                           "; counted " + text_of(counted)});
    }
    if (joined != shared_outputs(tables, i))
      all.push_back({-1, {}, {}, where + ": " + std::to_string(joined) + " outputs were added up"});
  }

  // Of a table that ranks share a rank has some rows; the model takes it to have all.
  static bool has_fewer_rows(const StepTables& tables, const cuda::Instance& i, Counts said,
                             const Counts& counted) {
    const bool shares = tables.program().ranks > 1 && tables.variant(i).type.starts_with("Embed");
    if (shares && counted.loads < said.loads) said.loads = counted.loads;
    return said == counted;
  }
  // By what only the last one does: a join's barriers, or the credits that it returns.
  static int times_last(const Counts& none, const Counts& once, const Counts& counted) {
    if (once.barriers > none.barriers)
      return (counted.barriers - none.barriers) / (once.barriers - none.barriers);
    return once.atomics > none.atomics && counted.atomics >= once.atomics;
  }

  WorkLog& log_;
  const int32_t processors_;
};

// Of which the bodies are counted in others, too.
constexpr std::string_view kLikeOthers[] = {"llama_u4_exact_wide_sm_80", "gpt2_f16_wide_groups",
                                            "gpt2_bf16_exact_wide_groups", "llama_f32_window"};

class CostOfLoop : public ::testing::TestWithParam<Loop> {};
TEST_P(CostOfLoop, IsWhatTheCodeDoes) {
  if (!cuda::open_nvrtc()) GTEST_SKIP() << "no NVRTC";
  const bool is_like_others = std::ranges::find(kLikeOthers, GetParam().name) != std::end(kLikeOthers);
  if ((GetParam().ranks > 1 || is_like_others) && !std::getenv("ARK_FULL"))
    GTEST_SKIP() << (is_like_others ? "its bodies are counted in other loops; " : "") << "ARK_FULL=1 runs it";
  const int32_t processors = GetParam().ranks == 1 ? GetParam().processors : 2;
  const Differences differences(GetParam(), drive(GetParam(), processors, 3), processors);
  EXPECT_GT(differences.compared, 3 * 15 * processors);
  for (const Differences::Difference& difference : differences.all) ADD_FAILURE() << difference.text;
}
constexpr Loop kGpt2 = {"gpt2_f16_groups_kv_f16", true, DType::kF16, 0, 2, 1, DType::kF16};
INSTANTIATE_TEST_SUITE_P(
    , CostOfLoop,
    ::testing::Values(
        kGpt2, Loop{"llama_f32", false, DType::kF32, 0, 0, 1, DType::kF32, 24},
        // Some warps have no keys of a window, and not the first ones always.
        Loop{"llama_f16_window", false, DType::kF16, 0, 0, 1, DType::kF16, 16, cuda::Numerics::kExact, 150,
             64, 384, 900, 3, 40},
        Loop{"llama_f32_window", false, DType::kF32, 0, 0, 1, DType::kF32, 16, cuda::Numerics::kExact, 150,
             64, 384, 900, 3, 40},
        Loop{"llama_u4_groups_kv_int8", false, DType::kF32, 4, 2, 1, DType::kI8},
        // Wide tiles of codes, whose pieces are one slice and two.
        Loop{"llama_u4_exact_wide", false, DType::kF32, 4, 1, 1, DType::kF16, 16, cuda::Numerics::kExact, 70,
             128, 2112},
        Loop{"llama_u4_exact_wide_sm_80", false, DType::kF32, 4, 1, 1, DType::kF16, 16,
             cuda::Numerics::kExact, 70, 128, 448, 800},
        Loop{"gpt2_u8_wide_groups", true, DType::kF32, 8, 2, 1, DType::kF16, 16, cuda::Numerics::kFast, 70},
        Loop{"llama_bf16_wide", false, DType::kBF16, 0, 1, 1, DType::kF16, 16, cuda::Numerics::kFast, 150},
        // Its trees have levels in registers, in scratch and in memory.
        Loop{"llama_f16_exact_wide", false, DType::kF16, 0, 1, 1, DType::kF16, 16, cuda::Numerics::kExact, 70,
             128, 2112},
        // Copies of x one piece ahead; no levels in memory.
        Loop{"llama_f16_exact_wide_sm_80", false, DType::kF16, 0, 1, 1, DType::kF16, 16,
             cuda::Numerics::kExact, 70, 128, 448, 800},
        Loop{"gpt2_bf16_exact_wide_groups", true, DType::kBF16, 0, 2, 1, DType::kF16, 16,
             cuda::Numerics::kExact, 70},
        // Products of ten tokens have two blocks of rows.
        Loop{"llama_f16_row_blocks", false, DType::kF16, 0, 0, 1, DType::kF16, 16, cuda::Numerics::kExact, 11,
             1024, 448, 900, 8},
        Loop{"gpt2_f16_wide_groups", true, DType::kF16, 0, 2, 1, DType::kF16, 16, cuda::Numerics::kFast, 70},
        // Attention by strips, of values in two parts.
        Loop{"llama_bf16_strips", false, DType::kBF16, 0, 0, 1, DType::kBF16, 128, cuda::Numerics::kExact,
             200},
        // Sums over ranks of the prompt's forty rows go by sends, or by shares; those of other steps by words.
        Loop{"llama_bf16_two_ranks", false, DType::kBF16, 0, 0, 2, DType::kF32, 16, cuda::Numerics::kExact,
             40},
        Loop{"llama_bf16_shares_of_two_ranks", false, DType::kBF16, 0, 0, 2, DType::kF32, 16,
             cuda::Numerics::kExact, 40, 64, 384, 900, 3, 0, 1}),
    [](const auto& test) { return std::string(test.param.name); });

// ---- lies: one a block, so that one kernel tells them all

struct Lie {
  const char* name;
  const char* header;
  const char* right;
  const char* wrong;
  // Whether what was counted differs from what was said as it should.
  bool (*is_seen)(const Counts& said, const Counts& counted);
};
const Lie kLies[] = {
    {"a barrier removed", "engine/cuda/bodies/matmul.h", "      consumers_sync();\n      fold(batch);",
     "      if (dev::block_id() != 0) consumers_sync();\n      fold(batch);",
     [](const Counts& said, const Counts& counted) {
       // Where it lost as many as a join has the last of an output is taken for another: its loads tell.
       return counted.barriers < said.barriers ||
              (counted.barriers == said.barriers && counted.loads > said.loads);
     }},
    {"a fence doubled", "engine/cuda/messages.h", "  const u32 raises = static_cast<u32>(b.words->raises);",
     "  const u32 raises = static_cast<u32>(b.words->raises);\n"
     "  if (dev::block_id() == 1) dev::fence<dev::Scope::gpu>();",
     [](const Counts& said, const Counts& counted) {
       return counted.fences == said.fences + 1 && counted.atomics == said.atomics;
     }},
    {"a hidden dependent load", "engine/cuda/bodies/rows.h", "float* x = at<float>(a.x) + row * n;\n",
     "float* x = at<float>(a.x) + row * n +\n"
     "          (dev::block_id() == 2 && dev::ld_global(at<const u32>(a.x)) == 0x7fc12345u);\n",
     [](const Counts& said, const Counts& counted) {
       return counted.loads > said.loads && counted.fences == said.fences;
     }},
    {"an atomic more", "engine/cuda/messages.h", "  // Release: publishes this processor's tiles;",
     "  if (dev::block_id() == 3) dev::red_release_add<dev::Scope::gpu>(at<u32>(i.readers), 0u);\n"
     "  // Release: publishes this processor's tiles;",
     [](const Counts& said, const Counts& counted) { return counted.atomics == said.atomics + 1; }},
    {"a wait more", "engine/cuda/loop.h", "  if (b.thread < own.count) {",
     "  if (dev::block_id() == 4 && b.thread == 64)\n"
     "    wait_reached<dev::Scope::gpu>(b, {LoopWait::kPhase}, at<const u64>(b.rank->ready), u64{0});\n"
     "  if (b.thread < own.count) {",
     [](const Counts& said, const Counts& counted) {
       return counted.fences == said.fences + 1 && counted.atomics == said.atomics;
     }},
};

void plant_lies(cuda::KernelSource& source) {
  for (const Lie& lie : kLies) {
    const auto header = std::find_if(source.headers.begin(), source.headers.end(),
                                     [&](const auto& file) { return file.name == lie.header; });
    ASSERT_NE(header, source.headers.end()) << lie.header;
    const auto at = header->text.find(lie.right);
    ASSERT_NE(at, std::string::npos) << lie.header << " no longer says " << lie.right;
    header->text.replace(at, std::string_view(lie.right).size(), lie.wrong);
  }
}

TEST(CostOfLoops, EveryLieIsCaught) {
  if (!cuda::open_nvrtc()) GTEST_SKIP() << "no NVRTC";
  constexpr int kBlocks = std::size(kLies);
  const Differences differences(kGpt2, drive(kGpt2, kBlocks, 2, plant_lies), kBlocks);
  for (int block = 0; block < kBlocks; ++block) {
    const Lie& lie = kLies[block];
    int seen = 0;
    for (const Differences::Difference& d : differences.all) {
      if (d.block != block) continue;
      if (seen++ == 0) std::printf("%s: %s\n", lie.name, d.text.c_str());
      EXPECT_TRUE(lie.is_seen(d.said, d.counted)) << lie.name << ": " << d.text;
    }
    EXPECT_GT(seen, 0) << lie.name;
  }
}

}  // namespace
}  // namespace ark::test
