#include "engine/cuda/appended.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/phase_operands.h"
#include "engine/program/opcodes.h"

namespace ark::cuda {
namespace {

constexpr std::size_t kKeys = 0, kValues = 1, kPages = 2;  // of kKvAppend

using Part = Appended::Part;

class Finder {
 public:
  explicit Finder(const Program& program)
      : p_(program), all_(unroll(program)), touched_(program.buffers.size()) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      for (const Access& access : accesses(p_, all_[i])) touched_[at(access.buffer)].push_back(i);
    }
  }

  // By product; phases of which some instance does not fit are in none.
  std::map<PhaseId, Part> run() const {
    std::map<PhaseId, Part> parts;
    std::vector<PhaseId> unfit;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (is_append(i) && !add(i, parts)) unfit.push_back(all_[i].phase);
    }
    std::erase_if(parts, [&](const auto& part) {
      return std::find(unfit.begin(), unfit.end(), part.second.append) != unfit.end();
    });
    return parts;
  }

 private:
  OpCode code(std::size_t i) const { return code_of(p_, all_[i]); }
  bool is_append(std::size_t i) const {
    return code(i) == OpCode::kKvAppend || code(i) == OpCode::kRotaryAppend;
  }

  bool add(std::size_t append, std::map<PhaseId, Part>& parts) const {
    const ark::Instance& own = all_[append];
    const PhaseOperands phase(p_, p_.phases[own.phase], own.trip);
    std::vector<Part> inputs;
    if (code(append) == OpCode::kKvAppend) {
      inputs = {{own.phase, false, kPages, kKeys}, {own.phase, false, kPages + 1, kValues}};
    } else {
      if (root(p_, phase.id(rotary_append::kPositions)) != p_.positions) return false;
      inputs = {{own.phase, true, rotary_append::kOut, rotary_append::kQueries},
                {own.phase, true, rotary_append::kPages, rotary_append::kKeys},
                {own.phase, false, rotary_append::kPages + 1, rotary_append::kValues}};
    }
    for (const Part& input : inputs) {
      const auto product = product_of(append, phase, input.dims);
      if (!product) return false;
      const auto [known, is_new] = parts.try_emplace(*product, input);
      if (!is_new && !(known->second == input)) return false;
    }
    return true;
  }

  // That computes operand `n` of an instance, in the same trip, and for it alone.
  std::optional<PhaseId> product_of(std::size_t append, const PhaseOperands& phase, std::size_t n) const {
    const BufferId buffer = root(p_, phase.id(n));
    if (p_.buffers[buffer].kind != BufferKind::kAct) return {};
    const std::vector<std::size_t>& touched = touched_[at(buffer)];
    const auto own = std::find(touched.begin(), touched.end(), append);
    if (own == touched.begin() || own == touched.end()) return {};
    const std::size_t before = *(own - 1);
    const ark::Instance &product = all_[before], &taker = all_[append];
    if (code(before) != OpCode::kMatMul || product.trip != taker.trip ||
        p_.phases[product.phase].repeat != p_.phases[taker.phase].repeat)
      return {};
    for (const std::size_t other : touched) {
      if (all_[other].phase != product.phase && all_[other].phase != taker.phase) return {};
    }
    const PhaseOperands operands(p_, p_.phases[product.phase], product.trip);
    const int64_t heads = phase.constant_dim(n, 1), dim = phase.constant_dim(n, 2);
    const bool fits = root(p_, operands.id(kProductOut)) == buffer && heads > 0 && dim > 0 &&
                      operands.weight(1).panel % dim == 0 &&
                      operands.constant_dim(kProductOut, operands.rank(kProductOut) - 1) == heads * dim;
    return fits ? std::optional(product.phase) : std::nullopt;
  }

  const Program& p_;
  const std::vector<ark::Instance> all_;
  std::vector<std::vector<std::size_t>> touched_;  // by buffer: instances, in order
};

}  // namespace

Appended::Appended(const Program& program) : done_(program.phases.size()), parts_(Finder(program).run()) {
  for (const auto& [product, part] : parts_) done_[at(part.append)] = true;
}

const Part* Appended::of(PhaseId product) const {
  const auto part = parts_.find(product);
  return part == parts_.end() ? nullptr : &part->second;
}

std::map<int32_t, std::vector<Access>> Appended::accesses(const Program& program,
                                                          const Binding& binding) const {
  std::map<int32_t, std::vector<Access>> all;
  const std::vector<ark::Instance> instances = unroll(program);
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const Part* part = of(instances[i].phase);
    if (!part) continue;
    const Phase& append = program.phases[part->append];
    const BufferId written =
        root(program, resolve(program, append, append.operands[part->written], instances[i].trip));
    const Range to = memory_of(program, binding, written);
    for (const Access& own : ark::accesses(program, instances[i])) {
      const Range from = memory_of(program, binding, own.buffer);
      ARK_CHECK(from.end <= to.begin || to.end <= from.begin, "a product that writes over what it reads");
    }
    all[static_cast<int32_t>(i)] = {{written, true}};
  }
  return all;
}

std::map<int32_t, std::vector<Access>> Appended::unwritten(const Program& program) const {
  std::map<int32_t, std::vector<Access>> all;
  const std::vector<ark::Instance> instances = unroll(program);
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const Phase& phase = program.phases[instances[i].phase];
    if (!of(instances[i].phase)) continue;
    const BufferId out = resolve(program, phase, phase.operands[kProductOut], instances[i].trip);
    all[static_cast<int32_t>(i)] = {{root(program, out), true}};
  }
  return all;
}

}  // namespace ark::cuda
