// Ways to break a program, and what becomes of programs broken at random.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/compile.h"
#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/validate/validate.h"
#include "tests/engine/soundness.h"

namespace ark::test {

using Random = std::mt19937;
inline std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }
inline std::size_t pick(Random& random, std::size_t n) { return random() % n; }
template <typename T>
T& any(Random& random, std::vector<T>& items) {
  return items[pick(random, items.size())];
}
inline int32_t nudge(Random& random) { return random() % 2 ? 1 : -1; }

struct Mutation {
  const char* name;
  bool (*apply)(Program& p, Binding& b, Random& random);  // false: nothing to break here
  // May give a program that computes something else but is as sound: operands of one type and size change
  // places, an operator another of the same operands. The validator does not know what the model means.
  bool may_mean_else = false;
};

inline bool drop_wait(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  phase.waits.erase(phase.waits.begin() + static_cast<int64_t>(pick(r, phase.waits.size())));
  return true;
}
// A phase for which `wanted` holds, or kNone: few send or receive.
template <typename Wanted>
PhaseId any_phase(const Program& p, Random& r, const Wanted& wanted) {
  const std::size_t n = p.phases.size(), start = pick(r, n);
  for (std::size_t i = 0; i < n; ++i) {
    if (wanted(p.phases[(start + i) % n])) return static_cast<PhaseId>((start + i) % n);
  }
  return kNone;
}
inline bool drop_message_wait(Program& p, WaitKind kind, Random& r) {
  const auto is_kind = [&](const Wait& w) { return w.kind == kind; };
  const PhaseId at = any_phase(
      p, r, [&](const Phase& phase) { return std::any_of(phase.waits.begin(), phase.waits.end(), is_kind); });
  return at != kNone && std::erase_if(p.phases[index(at)].waits, is_kind) > 0;
}
inline bool drop_credit(Program& p, Binding&, Random& r) {
  return drop_message_wait(p, WaitKind::kCredit, r);
}
inline bool drop_arrival(Program& p, Binding&, Random& r) {
  return drop_message_wait(p, WaitKind::kArrived, r);
}
// Indices of phases after one was taken out or put in at `at`.
inline void renumber(Program& p, PhaseId at, int32_t by) {
  for (Phase& phase : p.phases) {
    for (Wait& w : phase.waits) w.phase += w.phase > at ? by : 0;
  }
  for (Repeat& repeat : p.repeats) {
    if (repeat.first > at)
      repeat.first += by;
    else if (at < repeat.first + repeat.count)
      repeat.count += by;
  }
}
inline PhaseId any_send(const Program& p, Random& r) {
  return any_phase(p, r, [](const Phase& phase) { return phase.channel != kNone; });
}
inline bool drop_send(Program& p, Binding&, Random& r) {
  const PhaseId at = any_send(p, r);
  if (at == kNone) return false;
  p.phases.erase(p.phases.begin() + at);
  renumber(p, at, -1);
  return true;
}
inline bool double_send(Program& p, Binding&, Random& r) {
  const PhaseId at = any_send(p, r);
  if (at == kNone) return false;
  const Phase twin = p.phases[index(at)];
  renumber(p, at, 1);
  p.phases.insert(p.phases.begin() + at + 1, twin);
  return true;
}
inline bool move_wait(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  Wait& w = any(r, phase.waits);
  (w.kind == WaitKind::kPhase ? w.phase : w.channel) += nudge(r);
  return true;
}
inline bool shift_trip(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.waits.empty()) return false;
  any(r, phase.waits).trip_offset += nudge(r);
  return true;
}
inline bool swap_waits(Program& p, Binding&, Random& r) {
  Phase &a = any(r, p.phases), &b = any(r, p.phases);
  if (a.waits == b.waits) return false;
  std::swap(a.waits, b.waits);
  return true;
}
inline bool swap_offsets(Program&, Binding& b, Random& r) {
  int64_t &x = any(r, b.offsets), &y = any(r, b.offsets);
  if (x == y) return false;
  std::swap(x, y);
  return true;
}
inline bool shift_offset(Program&, Binding& b, Random& r) {
  any(r, b.offsets) += nudge(r) * (r() % 2 ? 64 : 4);
  return true;
}
inline bool move_buffer(Program&, Binding& b, Random& r) {
  int64_t& x = any(r, b.offsets);
  const int64_t y = any(r, b.offsets);
  if (x == y || x < 0) return false;
  x = y;
  return true;
}
inline bool change_repeat(Program& p, Binding&, Random& r) {
  if (p.repeats.empty()) return false;
  Repeat& repeat = any(r, p.repeats);
  int32_t* fields[] = {&repeat.trips, &repeat.count, &repeat.first};
  *fields[pick(r, 3)] += nudge(r);
  return true;
}
inline bool change_table(Program& p, Binding&, Random& r) {
  if (p.repeats.empty()) return false;
  BufferId& entry = any(r, any(r, any(r, p.repeats).table));
  const BufferId other = static_cast<BufferId>(pick(r, p.buffers.size()));
  if (entry == other) return false;
  entry = other;
  return true;
}
inline bool overwrite(Program& p, Binding&, Random& r) {  // a phase writes another buffer
  Phase& phase = any(r, p.phases);
  if (phase.operands.empty()) return false;
  const BufferId other = static_cast<BufferId>(pick(r, p.buffers.size()));
  const Buffer& b = p.buffers[index(other)];
  if (phase.operands.back() == Operand{other} || b.kind == BufferKind::kWeight) return false;
  if (!is_written(p.variants[index(phase.variant)], phase.operands.size() - 1, phase.operands.size()))
    return false;
  phase.operands.back() = {other};
  return true;
}
inline bool change_dims(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  if (b.dims.empty()) return false;
  ValId& v = any(r, b.dims);
  const auto other = static_cast<ValId>(pick(r, p.vals.size()));
  if (p.vals[index(v)].e == p.vals[index(other)].e) return false;
  v = other;
  return true;
}
inline bool change_max(Program& p, Binding&, Random& r) {
  any(r, p.vals).max += nudge(r);
  return true;
}
inline bool change_grid(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  const auto other = static_cast<ValId>(pick(r, p.vals.size()));
  if (phase.grid == other) return false;
  phase.grid = other;
  return true;
}
// One tile more or less.
inline bool shift_grid(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.grid == kNone) return false;
  const Val old = p.vals[index(phase.grid)];
  const int32_t by = nudge(r);
  phase.grid = static_cast<ValId>(p.vals.size());
  p.vals.push_back({old.e + Expr(by), old.max + by});
  return true;
}
inline bool change_variant(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  const auto other = static_cast<int32_t>(pick(r, p.variants.size()));
  if (phase.variant == other) return false;
  phase.variant = other;
  return true;
}
inline bool change_recipe(Program& p, Binding&, Random& r) {
  std::vector<int32_t>& slabs = any(r, p.variants).recipe.slabs;
  if (slabs.empty()) return false;
  switch (r() % 3) {
    case 0:
      slabs.pop_back();
      break;
    case 1:
      slabs.push_back(slabs.back());
      break;
    default:
      any(r, slabs) += nudge(r);
  }
  return true;
}
inline bool change_epilogue(Program& p, Binding&, Random& r) {
  any(r, p.variants).epilogue ^= 1u << pick(r, 2);
  return true;
}
inline bool drop_operand(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  if (phase.operands.empty()) return false;
  phase.operands.erase(phase.operands.begin() + static_cast<int64_t>(pick(r, phase.operands.size())));
  return true;
}
inline bool swap_operands(Program& p, Binding&, Random& r) {
  Phase& phase = any(r, p.phases);
  Operand &a = any(r, phase.operands), &b = any(r, phase.operands);
  if (a == b) return false;
  std::swap(a, b);
  return true;
}
inline bool change_channel(Program& p, Binding&, Random& r) {
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
inline bool mix_channels(Program& p, Binding&, Random& r) {
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
inline bool change_arena(Program&, Binding& b, Random& r) {
  (r() % 2 ? b.act_bytes : b.inbox_bytes) += nudge(r) * 64;
  return true;
}
inline bool change_type(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  b.dtype = b.dtype == DType::kF32 ? DType::kI64 : DType::kF32;
  return true;
}
inline bool swap_phases(Program& p, Binding&, Random& r) {
  const std::size_t i = pick(r, p.phases.size() - 1);
  std::swap(p.phases[i], p.phases[i + 1]);
  return true;
}
inline bool break_alias(Program& p, Binding&, Random& r) {
  Buffer& b = any(r, p.buffers);
  const auto other = static_cast<BufferId>(pick(r, p.buffers.size()));
  if (b.alias == other || (b.alias == kNone && b.kind != BufferKind::kAct)) return false;
  b.alias = r() % 2 ? other : kNone;
  return b.alias == other || r() % 2;
}

inline const Mutation kMutations[] = {
    {"drop wait", drop_wait},         {"drop credit", drop_credit},
    {"drop arrival", drop_arrival},   {"drop send", drop_send},
    {"double send", double_send},     {"swap operands", swap_operands, true},
    {"shift grid", shift_grid},       {"move wait", move_wait},
    {"shift trip", shift_trip},       {"swap waits", swap_waits},
    {"swap offsets", swap_offsets},   {"shift offset", shift_offset},
    {"move buffer", move_buffer},     {"change repeat", change_repeat},
    {"change table", change_table},   {"overwrite", overwrite},
    {"change dims", change_dims},     {"change max", change_max},
    {"change grid", change_grid},     {"change variant", change_variant, true},
    {"change recipe", change_recipe}, {"change epilogue", change_epilogue},
    {"drop operand", drop_operand},   {"change channel", change_channel},
    {"mix channels", mix_channels},   {"change arena", change_arena},
    {"change type", change_type},     {"swap phases", swap_phases},
    {"break alias", break_alias}};

// Breaks `sources` until `count` broken programs are refused. One that is accepted must be harmless by an
// argument that shares nothing with the validator: it computes the same (meaning), and however processors
// stall, nobody reads too early or overwrites what is still needed (StallRun). Prints the counts by kind.
inline void expect_refusal(const std::vector<Compiled>& sources, int count, uint32_t seed) {
  Random random(seed);
  int refused = 0, accepted = 0;
  struct Counts {
    int refused = 0, same = 0, other = 0;
  };
  std::map<std::string, Counts> by_kind;
  while (refused < count) {
    const Mutation& mutation = kMutations[pick(random, std::size(kMutations))];
    const Compiled& source = sources[pick(random, sources.size())];
    const std::size_t rank = pick(random, source.programs.size());
    Program program = source.programs[rank];
    Binding binding = source.bindings[rank];
    const std::string before = program_text(program, binding);
    if (!mutation.apply(program, binding, random) || program_text(program, binding) == before) continue;
    std::vector<Program> programs = source.programs;
    std::vector<Binding> bindings = source.bindings;
    programs[rank] = program;
    bindings[rank] = binding;
    Counts& counts = by_kind[mutation.name];
    if (!validate(programs, bindings).empty()) {
      ++refused;
      ++counts.refused;
      continue;
    }
    ++accepted;
    const bool same = meaning(program, binding) == meaning(source.programs[rank], source.bindings[rank]);
    ++(same ? counts.same : counts.other);
    ASSERT_TRUE(same || mutation.may_mean_else) << mutation.name;
    ASSERT_EQ(StallRun(programs, bindings).problem(), "") << mutation.name;
  }
  EXPECT_LT(accepted, count / 20);
  std::printf("%-16s %8s %8s %8s\n", "mutation", "refused", "the same", "as sound");
  for (const Mutation& mutation : kMutations) {
    const Counts& counts = by_kind[mutation.name];
    if (count >= 1000) {  // shorter runs may miss a kind
      EXPECT_GT(counts.refused, count / 200) << mutation.name;
    }
    std::printf("%-16s %8d %8d %8d\n", mutation.name, counts.refused, counts.same, counts.other);
  }
  std::printf("%-16s %8d %8d accepted\n", "all", refused, accepted);
}

}  // namespace ark::test
