#include "engine/cuda/dependencies.h"

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

// What an instance touches, and the channels whose messages it sends or takes, which are counted in order.
struct Touched {
  struct Piece {
    Range memory;
    bool writes;
  };
  std::vector<Piece> pieces;
  std::vector<int32_t> channels;
};

Touched touched_by(const Program& p, const Binding& binding, const ark::Instance& instance) {
  Touched all{.pieces = {}, .channels = channels_of(p, p.phases[instance.phase])};
  for (const Access& access : accesses(p, instance))
    all.pieces.push_back({memory_of(p, binding, access.buffer), access.writes});
  return all;
}

bool conflict(const Touched& a, const Touched& b) {
  for (const int32_t channel : a.channels) {
    if (std::find(b.channels.begin(), b.channels.end(), channel) != b.channels.end()) return true;
  }
  for (const Touched::Piece& x : a.pieces) {
    for (const Touched::Piece& y : b.pieces) {
      if ((x.writes || y.writes) && x.memory.begin < y.memory.end && y.memory.begin < x.memory.end)
        return true;
    }
  }
  return false;
}

}  // namespace

OnDevice on_device(const Program& program, const Binding& binding, const Appended& appended,
                   const MergedSends& sends) {
  return {.also = {},
          .more = appended.accesses(program, binding),
          .less = appended.unwritten(program),
          .gone = appended.done(),
          .sent_by = sends.sent_by(),
          .left_out = {}};
}

std::vector<std::vector<int32_t>> dependencies(const Program& program, const Binding& binding,
                                               const OnDevice& device) {
  const std::vector<PhaseId>& sent_by = device.sent_by;
  std::vector<Touched> touched;
  for (const ark::Instance& instance : unroll(program)) {
    touched.push_back(touched_by(program, binding, instance));
    if (at(instance.phase) < device.gone.size() && device.gone[at(instance.phase)]) touched.back() = {};
    if (at(instance.phase) >= sent_by.size() || sent_by[at(instance.phase)] == kNone) continue;
    const auto behind = at(instance.phase - sent_by[at(instance.phase)]);  // one follows the other
    Touched& sender = touched[touched.size() - 1 - behind];
    const std::vector<int32_t> channels = std::exchange(touched.back(), {}).channels;
    sender.channels.insert(sender.channels.end(), channels.begin(), channels.end());
  }
  for (std::size_t i = 0; i < device.left_out.size(); ++i) {
    if (device.left_out[i]) touched[i] = {};
  }
  for (const auto& [instance, accesses] : device.less) {
    for (const Access& a : accesses) {
      const Range memory = memory_of(program, binding, a.buffer);
      std::vector<Touched::Piece>& pieces = touched[at(instance)].pieces;  // of several alike one is meant
      const auto piece = std::ranges::find_if(
          pieces, [&](const Touched::Piece& p) { return p.writes == a.writes && p.memory == memory; });
      if (piece != pieces.end()) pieces.erase(piece);
    }
  }
  for (const auto& [instance, accesses] : device.more) {
    for (const Access& a : accesses)
      touched[at(instance)].pieces.push_back({memory_of(program, binding, a.buffer), a.writes});
  }
  std::vector<std::vector<int32_t>> needed(touched.size());
  std::vector<std::vector<bool>> complete(touched.size(), std::vector<bool>(touched.size()));  // when it runs
  for (std::size_t i = 0; i < touched.size(); ++i) {
    for (std::size_t j = i; j-- > 0;) {  // from the latest, which cover most
      const bool is_asked_for = i < device.also.size() && device.also[i] == static_cast<int32_t>(j);
      if (complete[i][j] || (!is_asked_for && !conflict(touched[i], touched[j]))) continue;
      needed[i].push_back(static_cast<int32_t>(j));
      complete[i][j] = true;
      for (std::size_t k = 0; k < j; ++k) complete[i][k] = complete[i][k] || complete[j][k];
    }
  }
  return needed;
}

}  // namespace ark::cuda
