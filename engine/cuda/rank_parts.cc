#include "engine/cuda/rank_parts.h"

#include <algorithm>
#include <map>

#include "base/index.h"
#include "engine/cuda/image.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

constexpr std::size_t kProduced = 4;  // operand of kMatMul
// Floats that a row's parts begin at a multiple of; and so many that belong to nobody.
constexpr int32_t kUnit = 16;

class PartsFinder {
 public:
  PartsFinder(const Program& program, const Appended& appended)
      : p_(program), appended_(appended), all_(unroll(program)) {
    for (const ark::Instance& i : all_) accesses_.push_back(accesses(program, i));
    for (int64_t n = 1; n <= kFewRows; ++n)
      steps_.push_back({{"items", n}, {"pages", n}, {"rows", n}, {"tokens", n}});
    found_.place.assign(all_.size(), 0);
    found_.settles = found_.place;
    found_.product.assign(all_.size(), kNone);
  }

  RankParts run() {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (code(i) == OpCode::kRecvReduce) look_at(i);
    }
    settle();
    if (found_.pitch == kUnit) found_.pitch = 0;
    return std::move(found_);
  }

 private:
  OpCode code(std::size_t i) const { return p_.variants[p_.phases[all_[i].phase].variant].code; }
  BufferId operand(std::size_t i, std::size_t n) const {
    const Phase& phase = p_.phases[all_[i].phase];
    return resolve(p_, phase, phase.operands[n], all_[i].trip);
  }
  bool touches(std::size_t i, BufferId buffer, bool writes) const {
    return std::ranges::any_of(accesses_[i],
                               [&](const Access& a) { return a.buffer == buffer && a.writes == writes; });
  }

  // Elements of a row of parts; 0: not of so many rows as a step has tokens, at most, or not by whole runs.
  int64_t width_of(const Buffer& parts) const {
    if (parts.dims.empty()) return 0;
    for (std::size_t n = 0; n < steps_.size(); ++n) {
      int64_t rows = 1;
      for (std::size_t a = 0; a + 1 < parts.dims.size(); ++a)
        rows *= p_.vals[parts.dims[a]].e.evaluate(steps_[n]);
      if (rows > static_cast<int64_t>(n + 1)) return 0;
    }
    const int64_t width = p_.vals[parts.dims.back()].e.constant().value_or(0);
    return width % kUnit == 0 ? width : 0;
  }

  // A sum over ranks: of what a product stores for nobody else.
  void look_at(std::size_t reduce) {
    const BufferId parts = root(p_, operand(reduce, 0));
    std::size_t product = reduce;
    std::vector<std::size_t> sends;
    while (product-- > 0 && !touches(product, parts, true)) {
      if (!touches(product, parts, false)) continue;
      if (!is_send(code(product)) || root(p_, operand(product, 0)) != parts) return;
      sends.push_back(product);
    }
    if (product >= reduce || std::ssize(sends) != p_.ranks - 1) return;
    if (code(product) != OpCode::kMatMul || appended_.of(all_[product].phase) != nullptr ||
        root(p_, operand(product, kProduced)) != parts || p_.buffers[parts].kind != BufferKind::kAct)
      return;
    for (std::size_t i = reduce + 1; i < all_.size() && !touches(i, parts, true); ++i) {
      if (touches(i, parts, false)) return;
    }
    const int64_t width = width_of(p_.buffers[operand(product, kProduced)]);
    if (width == 0) return;
    found_.product[reduce] = static_cast<int32_t>(product);
    found_.place[product] = found_.place[reduce] = found_.pitch;
    for (const std::size_t send : sends) found_.place[send] = found_.pitch;
    found_.pitch += static_cast<int32_t>(width);
  }

  // From the end: whether the next message of a channel is left out, too.
  void settle() {
    std::map<int32_t, bool> next_is_left_out;  // by channel
    std::map<int32_t, int32_t> left_out;
    for (std::size_t i = all_.size(); i-- > 0;) {
      for (const int32_t channel : channels_of(p_, p_.phases[all_[i].phase])) {
        if (found_.place[i] != 0 && !next_is_left_out[channel]) found_.settles[i] = 1;
        next_is_left_out[channel] = found_.place[i] != 0;
      }
    }
    for (std::size_t i = 0; i < all_.size(); ++i) {
      for (const int32_t channel : channels_of(p_, p_.phases[all_[i].phase])) {
        int32_t& count = left_out[channel];
        if (found_.place[i] != 0) ++count;
        if (found_.settles[i] != 0) found_.settles[i] = count;
      }
      if (found_.settles[i] == 0) continue;
      for (const int32_t channel : channels_of(p_, p_.phases[all_[i].phase])) left_out[channel] = 0;
    }
  }

  const Program& p_;
  const Appended& appended_;
  const std::vector<ark::Instance> all_;
  std::vector<std::vector<Access>> accesses_;  // by instance
  std::vector<SymbolValues> steps_;            // of one token, and more, up to kFewRows
  RankParts found_{.place = {}, .settles = {}, .product = {}, .pitch = kUnit};
};

}  // namespace

uint64_t RankParts::bytes() const { return uint64_t{2} * kFewRows * static_cast<uint64_t>(pitch) * 4; }

std::string RankParts::text() const {
  std::string text;
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (product[i] != kNone) text += std::to_string(i) + ":" + std::to_string(place[i]) + " ";
  }
  return text;
}

RankParts plan_rank_parts(const Program& program, const Appended& appended) {
  return PartsFinder(program, appended).run();
}

}  // namespace ark::cuda
