#include "engine/cuda/dependencies.h"

#include <algorithm>

#include "base/index.h"
#include "engine/program/unroll.h"

namespace ark::cuda {
namespace {

// What an instance touches, and the channels whose messages it sends or takes, which are counted in order.
struct Touched {
  struct Piece {
    int64_t begin, end;
    bool writes;
  };
  PhaseId phase;
  std::vector<Piece> pieces;
  std::vector<int32_t> channels;
};

Touched touched_by(const Program& p, const Binding& binding, const ark::Instance& instance) {
  const Phase& phase = p.phases[instance.phase];
  Touched all{.phase = instance.phase, .pieces = {}, .channels = {}};
  for (const Access& access : accesses(p, instance)) {
    const Buffer& buffer = p.buffers[access.buffer];
    // Memory that is not planned is the buffer's alone: a byte below 0 stands for it.
    const int64_t begin =
        buffer.kind == BufferKind::kAct ? binding.offsets[access.buffer] : -1 - access.buffer;
    const int64_t end = buffer.kind == BufferKind::kAct ? begin + max_bytes(p, access.buffer) : begin + 1;
    all.pieces.push_back({begin, end, access.writes});
  }
  if (phase.channel != kNone) all.channels.push_back(phase.channel);
  for (const Operand& operand : phase.operands) {
    const BufferId id = resolve(p, phase, operand, instance.trip);
    if (id != kNone && p.buffers[id].kind == BufferKind::kInbox)
      all.channels.push_back(p.buffers[id].channel);
  }
  return all;
}

bool conflict(const Touched& a, const Touched& b) {
  if (a.phase == b.phase) return true;  // the counter's sum would not tell them apart
  for (const int32_t channel : a.channels) {
    if (std::find(b.channels.begin(), b.channels.end(), channel) != b.channels.end()) return true;
  }
  for (const Touched::Piece& x : a.pieces) {
    for (const Touched::Piece& y : b.pieces) {
      if ((x.writes || y.writes) && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::vector<int32_t>> dependencies(const Program& program, const Binding& binding,
                                               const std::vector<int32_t>& also) {
  std::vector<Touched> touched;
  for (const ark::Instance& instance : unroll(program))
    touched.push_back(touched_by(program, binding, instance));
  std::vector<std::vector<int32_t>> needed(touched.size());
  std::vector<std::vector<bool>> complete(touched.size(), std::vector<bool>(touched.size()));  // when it runs
  for (std::size_t i = 0; i < touched.size(); ++i) {
    for (std::size_t j = i; j-- > 0;) {  // from the latest, which cover most
      if (complete[i][j] || (also[i] != static_cast<int32_t>(j) && !conflict(touched[i], touched[j])))
        continue;
      needed[i].push_back(static_cast<int32_t>(j));
      complete[i][j] = true;
      for (std::size_t k = 0; k < j; ++k) complete[i][k] = complete[i][k] || complete[j][k];
    }
  }
  return needed;
}

}  // namespace ark::cuda
