#include "engine/cuda/x_parts.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/variants.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

constexpr std::size_t kProductResidual = 3;  // operand of kMatMul

// Buffers that hold the same: what a phase reads or writes in its trips, what rows are selected from and into.
class PartFinder {
 public:
  explicit PartFinder(const Program& program)
      : p_(program),
        owner_(program.buffers.size()),
        taken_(owner_.size()),
        given_(owner_.size()),
        kept_(owner_.size()) {
    std::iota(owner_.begin(), owner_.end(), 0);
  }

  std::vector<std::optional<DType>> run() {
    for (const ark::Instance& instance : unroll(p_)) look_at(instance);
    std::vector<std::optional<DType>> all(owner_.size());
    for (std::size_t b = 0; b < all.size(); ++b) {
      const std::size_t owner = owner_of(b);
      const bool fits = !given_[owner] || given_[owner] == taken_[owner];
      if (!kept_[owner] && fits) all[b] = taken_[owner];
    }
    return all;
  }

 private:
  std::size_t owner_of(std::size_t b) const {
    while (owner_[b] != b) b = owner_[b];
    return b;
  }
  void join(std::size_t a, std::size_t b) {
    a = owner_of(a), b = owner_of(b);
    if (a == b) return;
    owner_[b] = a;
    if (kept_[b]) kept_[a] = true;
    if (taken_[b]) set(taken_, a, *taken_[b]);
    if (given_[b]) set(given_, a, *given_[b]);
  }
  void set(std::vector<std::optional<DType>>& types, std::size_t b, DType type) {
    std::optional<DType>& own = types[owner_of(b)];
    if (own && *own != type) keep(b);
    own = type;
  }
  void keep(std::size_t b) { kept_[owner_of(b)] = true; }

  void look_at(const ark::Instance& instance) {
    const PhaseOperands phase(p_, p_.phases[instance.phase], instance.trip);
    const OpCode code = phase.variant().code;
    std::optional<std::size_t> selected;
    for (std::size_t i = 0; i < phase.count(); ++i) {
      if (!phase.has(i) || phase.buffer(i).weight != kNone) continue;
      const auto b = at(root(p_, phase.id(i)));
      if (p_.buffers[b].kind != BufferKind::kAct) keep(b);
      join(first_.try_emplace({instance.phase, i}, b).first->second, b);
      if (code == OpCode::kSelectRows) {
        join(selected.value_or(b), b);
        selected = b;
      } else if (is_product(code) && i == 0 && part_type(phase)) {
        set(taken_, b, *part_type(phase));
      } else if (!can_store(phase, i)) {
        keep(b);
      } else if (is_product(code)) {
        set(given_, b, *part_type(phase));
      }
    }
  }

  // Whether the phase's body can store operand `i` split; a product: in parts of its own type, and not over a residual
  // that may lie there.
  static bool can_store(const PhaseOperands& phase, std::size_t i) {
    if (i + 1 != phase.count()) return false;
    const OpCode code = phase.variant().code;
    int64_t row = phase.constant_dim(i, phase.rank(i) - 1);
    if (code == OpCode::kAttention) row *= phase.constant_dim(i, phase.rank(i) - 2);  // of all heads
    if (row % kPartsTogether != 0) return false;
    switch (code) {
      case OpCode::kNorm:
      case OpCode::kAttention:
        return true;
      case OpCode::kMatMul:
        return part_type(phase) && !phase.has(kProductResidual);
      case OpCode::kGatedMatMul:
        return part_type(phase).has_value();
      default:
        return false;
    }
  }

  const Program& p_;
  std::vector<std::size_t> owner_;  // by buffer: another of its set
  // By owner: by products that read it; by one that writes it.
  std::vector<std::optional<DType>> taken_, given_;
  std::vector<bool> kept_;                                        // by owner: somebody needs f32
  std::map<std::pair<PhaseId, std::size_t>, std::size_t> first_;  // of a phase's operand
};

}  // namespace

std::optional<DType> part_type(const PhaseOperands& product) {
  const WeightUse& use = product.weight(1);
  const DType stored = product.buffer(1).dtype;
  if (!codec_of(stored)->has_mma || use.block % 16 != 0) return {};
  const std::vector<int32_t> pieces = pieces_of(product.variant().recipe, use);
  const bool is_whole =
      std::none_of(pieces.begin(), pieces.end(), [](int32_t border) { return border % 16 != 0; });
  ARK_CHECK(use.block == 0 || is_whole == has_turned_codes(use.block, pieces.back()),
            "codes lie as those who read them expect");
  if (!is_whole) return {};
  return stored == DType::kF16 ? DType::kF16 : DType::kBF16;
}

XParts::XParts(const Program& program) : program_(&program), types_(PartFinder(program).run()) {}

std::optional<DType> XParts::of(BufferId buffer) const { return types_[at(root(*program_, buffer))]; }

}  // namespace ark::cuda
