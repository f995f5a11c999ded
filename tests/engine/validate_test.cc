// The validator accepts what the lowering makes and refuses what somebody broke.
#include "engine/validate.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "engine/compile.h"
#include "tests/engine/soundness.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

Compiled compiled(bool gpt2, int32_t ranks, int64_t layers = 3, bool early = true) {
  TokenGraphOptions o{.layers = layers, .kv_heads = 2, .fused_qkv = gpt2, .select_early = early};
  CompileOptions c{
      .ranks = ranks, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = 8};
  return compile_decoder(gpt2 ? gpt2_tokens(o) : llama_tokens(o), c);
}

std::string first_error(const Compiled& c) {
  const auto errors = validate(c.programs, c.bindings);
  return errors.empty() ? "" : errors[0];
}

TEST(Validate, AcceptsWhatLoweringMakes) {
  for (const bool gpt2 : {false, true}) {
    for (const int64_t layers : {1, 2, 3, 6}) {
      for (const bool early : {true, false}) {
        for (const int32_t ranks : {1, 2, 3, 4, 8}) {
          EXPECT_EQ(first_error(compiled(gpt2, ranks, layers, early)), "")
              << gpt2 << layers << early << ranks;
        }
      }
    }
  }
}

TEST(Validate, LoweringPassesTheIndependentArgumentToo) {
  for (const int32_t ranks : {1, 2, 3}) {
    const Compiled c = compiled(false, ranks, 3);
    EXPECT_EQ(StallRun(c.programs, c.bindings).problem(), "") << ranks;
  }
}

// -- mutations

using Random = std::mt19937;
std::size_t pick(Random& random, std::size_t n) { return random() % n; }
template <typename T>
T& any(Random& random, std::vector<T>& items) {
  return items[pick(random, items.size())];
}
int32_t nudge(Random& random) { return random() % 2 ? 1 : -1; }

struct Mutation {
  const char* name;
  bool (*apply)(Program& p, Binding& b, Random& random);  // false: nothing to break here
};

bool drop_wait(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  phase.waits.erase(phase.waits.begin() + static_cast<int64_t>(pick(r, phase.waits.size())));
  return true;
}
bool move_wait(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  Wait& w = any(r, phase.waits);
  (w.kind == WaitKind::kPhase ? w.phase : w.channel) += nudge(r);
  return true;
}
bool shift_trip(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  any(r, phase.waits).trip_offset += nudge(r);
  return true;
}
bool swap_waits(Program& p, Binding&, Random& r) {
  Phase &a = any(r, p.phases), &b = any(r, p.phases);
  if (a.waits == b.waits) return false;
  std::swap(a.waits, b.waits);
  return true;
}
bool swap_offsets(Program&, Binding& b, Random& r) {
  int64_t &x = any(r, b.offsets), &y = any(r, b.offsets);
  if (x == y) return false;
  std::swap(x, y);
  return true;
}
bool shift_offset(Program&, Binding& b, Random& r) {
  any(r, b.offsets) += nudge(r) * (r() % 2 ? 64 : 4);
  return true;
}
bool move_buffer(Program&, Binding& b, Random& r) {
  int64_t& x = any(r, b.offsets);
  const int64_t y = any(r, b.offsets);
  if (x == y || x < 0) return false;
  x = y;
  return true;
}
bool change_repeat(Program& p, Binding&, Random& r) {
  if (p.repeats.empty()) return false;
  Repeat& repeat = any(r, p.repeats);
  int32_t* fields[] = {&repeat.trips, &repeat.count, &repeat.first};
  *fields[pick(r, 3)] += nudge(r);
  return true;
}
bool change_table(Program& p, Binding&, Random& r) {
  if (p.repeats.empty()) return false;
  BufferId& entry = any(r, any(r, any(r, p.repeats).table));
  const BufferId other = static_cast<BufferId>(pick(r, p.buffers.size()));
  if (entry == other) return false;
  entry = other;
  return true;
}
bool overwrite(Program& p, Binding&, Random& r) {  // a phase writes another buffer
  Phase& phase = any(r, p.phases);
  if (phase.operands.empty()) return false;
  const BufferId other = static_cast<BufferId>(pick(r, p.buffers.size()));
  const Buffer& b = p.buffers[static_cast<std::size_t>(other)];
  if (phase.operands.back() == Operand{other} || b.kind == BufferKind::kWeight) return false;
  if (!is_written(p.variants[static_cast<std::size_t>(phase.variant)], phase.operands.size() - 1,
                  phase.operands.size()))
    return false;
  phase.operands.back() = {other};
  return true;
}
bool change_dims(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  if (b.dims.empty()) return false;
  ValId& v = any(r, b.dims);
  const auto other = static_cast<ValId>(pick(r, p.vals.size()));
  if (p.vals[static_cast<std::size_t>(v)].e == p.vals[static_cast<std::size_t>(other)].e) return false;
  v = other;
  return true;
}
bool change_max(Program& p, Binding&, Random& r) {
  any(r, p.vals).max += nudge(r);
  return true;
}
bool change_grid(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  const auto other = static_cast<ValId>(pick(r, p.vals.size()));
  if (phase.grid == other) return false;
  phase.grid = other;
  return true;
}
bool change_variant(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  const auto other = static_cast<int32_t>(pick(r, p.variants.size()));
  if (phase.variant == other) return false;
  phase.variant = other;
  return true;
}
bool change_recipe(Program& p, Binding&, Random& r) {
  Recipe& recipe = any(r, p.variants).recipe;
  if (recipe.slabs.empty()) return false;
  if (r() % 2)
    recipe.slabs.back() += nudge(r);
  else
    recipe.slabs.pop_back();
  return true;
}
bool change_epilogue(Program& p, Binding&, Random& r) {
  any(r, p.variants).epilogue ^= 1u << pick(r, 2);
  return true;
}
bool drop_operand(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.operands.empty()) return false;
  phase.operands.erase(phase.operands.begin() + static_cast<int64_t>(pick(r, phase.operands.size())));
  return true;
}
bool change_channel(Program& p, Binding&, Random& r) {
  if (p.channels.empty()) return false;
  Channel& c = any(r, p.channels);
  switch (r() % 4) {
    case 0:
      c.peer += nudge(r);
      break;
    case 1:
      c.outgoing = !c.outgoing;
      break;
    case 2:
      c.bytes += nudge(r) * 64;
      break;
    default:
      c.link = c.link == Link::kDirect ? Link::kPosted : Link::kDirect;
  }
  return true;
}
bool mix_channels(Program& p, Binding&, Random& r) {
  if (p.channels.size() < 2) return false;
  const auto other = static_cast<int32_t>(pick(r, p.channels.size()));
  int32_t* field = nullptr;
  if (r() % 2)
    field = &any(r, p.phases).channel;
  else
    field = &any(r, p.buffers).channel;
  if (*field == other) return false;
  *field = other;
  return true;
}
bool change_arena(Program&, Binding& b, Random& r) {
  (r() % 2 ? b.act_bytes : b.inbox_bytes) += nudge(r) * 64;
  return true;
}
bool change_type(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  b.dtype = b.dtype == DType::kF32 ? DType::kI64 : DType::kF32;
  return true;
}
bool swap_phases(Program& p, Binding&, Random& r) {
  const std::size_t i = pick(r, p.phases.size() - 1);
  std::swap(p.phases[i], p.phases[i + 1]);
  return true;
}
bool break_alias(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  const auto other = static_cast<BufferId>(pick(r, p.buffers.size()));
  if (b.alias == other || (b.alias == kNone && b.kind != BufferKind::kAct)) return false;
  b.alias = r() % 2 ? other : kNone;
  return b.alias == other || r() % 2;
}

const Mutation kMutations[] = {{"drop wait", drop_wait},         {"move wait", move_wait},
                               {"shift trip", shift_trip},       {"swap waits", swap_waits},
                               {"swap offsets", swap_offsets},   {"shift offset", shift_offset},
                               {"move buffer", move_buffer},     {"change repeat", change_repeat},
                               {"change table", change_table},   {"overwrite", overwrite},
                               {"change dims", change_dims},     {"change max", change_max},
                               {"change grid", change_grid},     {"change variant", change_variant},
                               {"change recipe", change_recipe}, {"change epilogue", change_epilogue},
                               {"drop operand", drop_operand},   {"change channel", change_channel},
                               {"mix channels", mix_channels},   {"change arena", change_arena},
                               {"change type", change_type},     {"swap phases", swap_phases},
                               {"break alias", break_alias}};

TEST(Validate, RefusesAThousandRandomMutations) {
  Random random(20240607);
  int refused = 0, neutral = 0;
  std::map<std::string, int> refused_of;
  std::vector<Compiled> sources;
  for (const int32_t ranks : {1, 2, 3}) {
    sources.push_back(compiled(false, ranks, 4));
    sources.push_back(compiled(true, ranks, 3));
  }
  while (refused < 1000) {
    const Compiled& source = sources[pick(random, sources.size())];
    std::vector<Program> programs = source.programs;
    std::vector<Binding> bindings = source.bindings;
    const std::size_t rank = pick(random, programs.size());
    const Mutation& mutation = kMutations[pick(random, std::size(kMutations))];
    if (!mutation.apply(programs[rank], bindings[rank], random)) continue;
    if (program_text(programs[rank], bindings[rank]) ==
        program_text(source.programs[rank], source.bindings[rank]))
      continue;
    if (!validate(programs, bindings).empty()) {
      ++refused;
      ++refused_of[mutation.name];
      continue;
    }
    // Accepted: then it must be harmless, by an argument of its own.
    ++neutral;
    ASSERT_TRUE(meaning(programs[rank], bindings[rank]) ==
                meaning(source.programs[rank], source.bindings[rank]))
        << mutation.name;
    ASSERT_EQ(StallRun(programs, bindings).problem(), "") << mutation.name;
  }
  EXPECT_LT(neutral, refused / 5);
  for (const Mutation& mutation : kMutations) EXPECT_GT(refused_of[mutation.name], 5) << mutation.name;
  RecordProperty("neutral", neutral);
}

TEST(Validate, EveryWaitOfAProgramIsNeeded) {
  const Compiled source = compiled(false, 2, 4);
  for (std::size_t i = 0; i < source.programs[0].phases.size(); ++i) {
    for (std::size_t w = 0; w < source.programs[0].phases[i].waits.size(); ++w) {
      std::vector<Program> programs = source.programs;
      std::vector<Wait>& waits = programs[0].phases[i].waits;
      waits.erase(waits.begin() + static_cast<int64_t>(w));
      EXPECT_FALSE(validate(programs, source.bindings).empty()) << "phase " << i << " wait " << w;
    }
  }
}

TEST(Validate, NamesRankPhaseAndReason) {
  Compiled c = compiled(false, 2);
  for (Phase& phase : c.programs[1].phases) {
    if (phase.name == "layers.0.q_proj") phase.waits.clear();
  }
  const std::string error = first_error(c);
  EXPECT_NE(error.find("rank 1, phase"), std::string::npos) << error;
  EXPECT_NE(error.find("layers.0.q_proj"), std::string::npos) << error;
  EXPECT_NE(error.find("before it is written"), std::string::npos) << error;
  EXPECT_THROW(check_programs(c.programs, c.bindings), Error);
}

}  // namespace
}  // namespace ark::test
