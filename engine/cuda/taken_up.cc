#include "engine/cuda/taken_up.h"

#include <algorithm>

#include "base/index.h"
#include "engine/program/opcodes.h"

namespace ark::cuda {
namespace {

// Operands of kMatMul and kRecvReduce: the last ones.
std::size_t out_of(const Phase& phase) { return phase.operands.size() - 1; }
std::size_t residual_of(const Phase& phase) { return phase.operands.size() - 2; }

class NormFinder {
 public:
  NormFinder(const Program& program, const Binding& binding, int64_t longest_row)
      : p_(program), binding_(binding), longest_row_(longest_row), all_(unroll(program)) {}

  std::vector<int32_t> run() const {
    std::vector<int32_t> takers(all_.size(), kNone);
    for (std::size_t i = 0; i < all_.size(); ++i) takers[i] = taker_of(i);
    return takers;
  }

 private:
  OpCode code(std::size_t i) const { return code_of(p_, all_[i]); }
  // kNone: there is none.
  BufferId operand(std::size_t i, std::size_t n) const { return resolve(p_, all_[i], n); }
  Range memory(BufferId buffer) const { return memory_of(p_, binding_, root(p_, buffer)); }
  static bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }
  bool touches(std::size_t i, const Range& memory) const {
    const std::vector<Access> all = accesses(p_, all_[i]);
    return std::any_of(all.begin(), all.end(),
                       [&](const Access& a) { return overlap(memory_of(p_, binding_, a.buffer), memory); });
  }

  int32_t taker_of(std::size_t i) const {
    if (code(i) != OpCode::kMatMul && code(i) != OpCode::kRecvReduce) return kNone;
    const Phase& phase = p_.phases[all_[i].phase];
    const BufferId out = operand(i, out_of(phase));
    std::size_t j = i + 1;
    // Up to the next product: its sums may lie where this one's do.
    while (j < all_.size() && !is_product(code(j)) && !touches(j, memory(out))) ++j;
    if (j == all_.size() || code(j) != OpCode::kNorm) return kNone;
    const BufferId x = operand(j, 0), normed = operand(j, 3), residual = operand(i, residual_of(phase));
    const Buffer &of_product = p_.buffers[out], &of_norm = p_.buffers[x];
    const Expr& width = p_.vals[of_product.dims.back()].e;
    const int64_t n = width.constant().value_or(0);
    if (root(p_, x) != root(p_, out) || !(width == p_.vals[of_norm.dims.back()].e) || n % 4 != 0 ||
        n > longest_row_ || p_.buffers[root(p_, out)].kind != BufferKind::kAct)
      return kNone;
    if (residual == kNone) return static_cast<int32_t>(j);
    // The residual may have died with the sum. Its place may be the norm's output, row by row.
    const Range from = memory(residual), to = memory(normed);
    const bool is_kept = !overlap(from, to) || from == to;
    for (std::size_t k = i + 1; k < j; ++k) {
      if (touches(k, from)) return kNone;
    }
    return is_kept ? static_cast<int32_t>(j) : kNone;
  }

  const Program& p_;
  const Binding& binding_;
  const int64_t longest_row_;
  const std::vector<ark::Instance> all_;
};

}  // namespace

std::vector<int32_t> takers(const Program& program, const Binding& binding, int64_t longest_row) {
  return NormFinder(program, binding, longest_row).run();
}

std::vector<Access> accesses_taken_up(const Program& program, const ark::Instance& taken) {
  const Phase& phase = program.phases[taken.phase];
  std::vector<Access> all;
  for (const std::size_t n : {residual_of(phase), out_of(phase)}) {
    const BufferId buffer = resolve(program, phase, phase.operands[n], taken.trip);
    if (buffer != kNone && program.buffers[buffer].kind != BufferKind::kWeight)
      all.push_back({root(program, buffer), n == out_of(phase)});
  }
  return all;
}

}  // namespace ark::cuda
