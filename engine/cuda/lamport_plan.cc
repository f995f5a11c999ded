#include "engine/cuda/lamport_plan.h"

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "engine/cuda/dependencies.h"
#include "engine/cuda/image.h"
#include "engine/cuda/phase_operands.h"
#include "engine/cuda/taken_up.h"
#include "engine/cuda/variants.h"
#include "engine/program/opcodes.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

constexpr int32_t kRun = 16;  // floats; kPartsTogether of them are parts

using Accesses = std::map<int32_t, std::vector<Access>>;  // by instance

class RowFinder {
 public:
  RowFinder(const Program& program, std::span<const ark::Instance> all, const Appended& appended,
            const XParts& parts, const SymbolValues& most)
      : p_(program), all_(all), appended_(appended), parts_(parts) {
    for (int64_t tokens = 1; tokens <= most.at("tokens"); ++tokens) {
      steps_.push_back(most);
      for (auto& [symbol, value] : steps_.back()) value = std::min(value, tokens);
    }
    for (const ark::Instance& i : all) accesses_.push_back(accesses(program, i));
  }

  // `less`: what instances do not access then, though the program says so.
  LamportPlan run(Accesses& less) {
    found_.out.assign(all_.size(), kNone);
    found_.x.assign(all_.size(), kNone);
    found_.told.resize(all_.size());
    for (std::size_t i = 0; i < all_.size(); ++i) look_at(i, less);
    return std::move(found_);
  }

 private:
  PhaseOperands operands(std::size_t i) const {
    return {p_, p_.phases[all_[i].phase], all_[i].trip, &parts_};
  }
  bool is_gone(std::size_t i) const { return appended_.is_done(all_[i].phase); }

  // Elements of a row of what the instance computes; 0: not by such rows.
  int64_t width_of(const PhaseOperands& writer) const {
    const std::size_t out = writer.count() - 1;
    std::size_t axes = 1;  // of a row
    switch (writer.variant().code) {
      case OpCode::kNorm:
      case OpCode::kMatMul:
        break;
      case OpCode::kGatedMatMul:
        if (!part_type(writer)) return 0;  // its first sums wait where its output is
        break;
      case OpCode::kAttention:
        axes = 2;
        break;
      default:
        return 0;
    }
    const std::size_t rank = writer.rank(out);
    if (rank < axes) return 0;
    int64_t width = 1;
    for (std::size_t a = rank - axes; a < rank; ++a)
      width *= std::max<int64_t>(0, writer.constant_dim(out, a));
    // Of no more rows than tokens: as many are cleared.
    for (std::size_t n = 0; n < steps_.size(); ++n) {
      int64_t rows = 1;
      for (std::size_t a = 0; a < rank - axes; ++a)
        rows *= p_.vals[writer.buffer(out).dims[a]].e.evaluate(steps_[n]);
      if (rows > static_cast<int64_t>(n + 1)) return 0;
    }
    return width % kRun == 0 ? width : 0;
  }

  // Whether the instance reads `buffer` as rows of a product's x, and in no other way.
  bool takes(std::size_t i, BufferId buffer, int64_t width) const {
    const PhaseOperands reader = operands(i);
    if (is_gone(i) || !is_product(reader.variant().code)) return false;
    for (std::size_t n = 1; n < reader.count(); ++n) {
      if (reader.has(n) && root(p_, reader.id(n)) == buffer) return false;
    }
    if (!reader.has(0) || root(p_, reader.id(0)) != buffer) return false;
    if (reader.constant_dim(0, reader.rank(0) - 1) != width) return false;
    const std::vector<int32_t> pieces = pieces_of(reader.variant().recipe, reader.weight(1));
    const int32_t run = reader.parts(0) ? 8 : 4;
    return std::none_of(pieces.begin(), pieces.end(), [&](int32_t border) { return border % run != 0; });
  }

  void look_at(std::size_t i, Accesses& less) {
    const PhaseOperands writer = operands(i);
    if (is_gone(i) || appended_.of(all_[i].phase) != nullptr || !writer.has(writer.count() - 1)) return;
    const BufferId buffer = root(p_, writer.id(writer.count() - 1));
    const int64_t width = width_of(writer);
    if (width == 0 || p_.buffers[buffer].kind != BufferKind::kAct) return;
    std::vector<std::size_t> readers;
    for (std::size_t j = i + 1; j < all_.size(); ++j) {
      bool reads = false, writes = false;
      for (const Access& a : accesses_[j]) {
        if (a.buffer == buffer) (a.writes ? writes : reads) = true;
      }
      if (reads && (writes || !takes(j, buffer, width))) return;
      if (writes) break;
      if (reads) readers.push_back(j);
    }
    if (readers.empty()) return;
    found_.out[i] = found_.pitch;
    less[static_cast<int32_t>(i)].push_back({buffer, true});
    for (const std::size_t j : readers) {
      found_.x[j] = found_.pitch;
      found_.told[j].push_back(static_cast<int32_t>(i));
      less[static_cast<int32_t>(j)].push_back({buffer, false});
    }
    found_.pitch += static_cast<int32_t>(width);
  }

  const Program& p_;
  const std::span<const ark::Instance> all_;
  const Appended& appended_;
  const XParts& parts_;
  std::vector<SymbolValues> steps_;            // of one token, and more, up to the largest
  std::vector<std::vector<Access>> accesses_;  // by instance
  LamportPlan found_;
};

// What is told orders nothing else, so that instances would wait for many that lie far behind. Where one that must have
// run by then (what others were told says so) has waited for several of these, it is waited for in their place.
void cover(LamportPlan& plan) {
  const std::size_t count = plan.needed.size();
  // By instance: who is complete when it runs; who has at least stored what it was to store.
  std::vector<std::vector<bool>> complete(count, std::vector<bool>(count)), stored = complete;
  const auto join = [&](std::vector<bool>& to, const std::vector<bool>& from) {
    for (std::size_t k = 0; k < count; ++k) to[k] = to[k] || from[k];
  };
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<int32_t>& needed = plan.needed[i];
    std::vector<bool> run(count);
    for (const auto* all : {&needed, &plan.told[i]}) {
      for (const int32_t n : *all) join(run, stored[at(n)]);
    }
    const auto covers = [&](std::size_t j, int32_t n) { return at(n) == j || complete[j][at(n)]; };
    for (;;) {
      std::size_t best = count;
      std::ptrdiff_t most = 1;
      for (std::size_t j = i; j-- > 0;) {
        const auto covered = std::ranges::count_if(needed, [&](int32_t n) { return covers(j, n); });
        if (run[j] && covered > most) best = j, most = covered;
      }
      if (best == count) break;
      std::erase_if(needed, [&](int32_t n) { return covers(best, n); });
      needed.push_back(static_cast<int32_t>(best));
    }
    for (const int32_t n : needed) {
      join(complete[i], complete[at(n)]);
      complete[i][at(n)] = run[at(n)] = true;
    }
    for (const int32_t n : plan.told[i]) run[at(n)] = true;
    stored[i] = std::move(run);
  }
}

// What ranks exchange so: who adds up is told by the product of its own rank, as by the others'. `more`: what norms
// access that add up in others' place.
void take_rank_parts(const Program& program, std::span<const ark::Instance> all, const RankParts& of_ranks,
                     LamportPlan& plan, Accesses& less, Accesses& more) {
  plan.left_out.resize(all.size());
  for (std::size_t i = 0; i < of_ranks.place.size(); ++i) {
    const Phase& phase = program.phases[all[i].phase];
    const bool sends = is_send(program.variants[phase.variant].code);
    const int32_t product = of_ranks.product[i];
    if (of_ranks.place[i] == 0 || (!sends && product == kNone)) continue;
    const BufferId parts = root(program, resolve(program, phase, phase.operands[0], all[i].trip));
    const int32_t taker = of_ranks.taker[i];
    less[static_cast<int32_t>(i)].push_back({parts, false});
    plan.left_out[i] = (sends || taker != kNone) && of_ranks.settles[i] == 0;
    if (sends) continue;
    plan.told[taker == kNone ? i : at(taker)].push_back(product);
    less[product].push_back({parts, true});
    if (taker == kNone) continue;
    for (const Access& a : accesses_taken_up(program, all[i])) {
      less[static_cast<int32_t>(i)].push_back(a);
      more[taker].push_back(a);
    }
  }
}

}  // namespace

LamportPlan plan_lamport(const Program& program, const Binding& binding, const Appended& appended,
                         const RankParts& of_ranks, const XParts& parts, const SymbolValues& most,
                         std::span<const SharedSums> sums, OnDevice device) {
  const std::vector<ark::Instance> all = unroll(program);
  LamportPlan plan = RowFinder(program, all, appended, parts, most).run(device.less);
  plan.rows = static_cast<int32_t>(most.at("tokens"));
  plan.floats = int64_t{2} * plan.rows * plan.pitch;
  for (const SharedSums& own : sums) {
    plan.sums.push_back(own.floats > 0 ? plan.floats : kNone);
    plan.sums_rows.push_back(own.rows);
    plan.floats += own.floats;
    if (own.floats == 0 || own.taker == kNone) continue;
    plan.told[at(own.taker)].push_back(own.instance);
    // The norm behind accesses these, as device.more says.
    for (const Access& a : accesses_taken_up(program, all[at(own.instance)]))
      device.less[own.instance].push_back(a);
  }
  take_rank_parts(program, all, of_ranks, plan, device.less, device.more);
  device.left_out = plan.left_out;
  plan.needed = dependencies(program, binding, device);
  cover(plan);
  return plan;
}

int64_t most_told_bytes(const Program& program) {
  int64_t floats = 0;  // of a row: its place in both halves, and sums of as many tiles as a norm adds up
  for (const ark::Instance& i : unroll(program)) {
    const Phase& phase = program.phases[i.phase];
    const BufferId out = resolve(program, phase, phase.operands.back(), i.trip);
    if (out == kNone || program.buffers[out].kind == BufferKind::kKvPage) continue;
    int64_t width = 1;
    for (const ValId d : program.buffers[out].dims) width *= program.vals[d].e.constant().value_or(1);
    floats += width * (is_product(program.variants[phase.variant].code) ? 2 + kNode : 2);
  }
  return std::max(std::min(kMostToldBytes, floats * 4 * kMostToldRows), floats * 4 * kFewRows);
}

bool fits(const Program& program, const MergedSends& sends, const LamportPlan& plan,
          const std::vector<std::vector<int32_t>>& needed) {
  const std::vector<ark::Instance> all = unroll(program);
  const auto of_channels = [&](PhaseId phase) {
    return std::ranges::count_if(program.phases[phase].waits,
                                 [](const ark::Wait& w) { return w.kind != WaitKind::kPhase; });
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto only_here = std::ranges::count_if(
        plan.needed[i], [&](int32_t n) { return std::ranges::count(needed[i], n) == 0; });
    std::ptrdiff_t count = std::ssize(needed[i]) + only_here + of_channels(all[i].phase);
    for (const PhaseId also : sends.also_of(all[i].phase)) count += of_channels(also);
    if (count > kMaxWaits) return false;
  }
  return true;
}

}  // namespace ark::cuda
