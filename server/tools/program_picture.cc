#include "server/tools/program_picture.h"

#include <map>
#include <set>

#include "base/index.h"
#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "engine/run/weight_store.h"

namespace ark {
namespace {

// The phases that send or receive each channel's messages in one step, message by message.
std::map<std::string, std::vector<PhaseId>> messages(const Program& p, bool outgoing) {
  std::map<std::string, std::vector<PhaseId>> result;
  for (const Instance& instance : unroll(p)) {
    const Phase& phase = p.phases[instance.phase];
    std::set<int32_t> channels;
    if (phase.channel != kNone) channels.insert(phase.channel);
    for (const Operand& operand : phase.operands) {
      const BufferId b = resolve(p, phase, operand, instance.trip);
      if (b != kNone && p.buffers[b].kind == BufferKind::kInbox) channels.insert(p.buffers[b].channel);
    }
    for (const int32_t c : channels)
      if (p.channels[c].outgoing == outgoing) result[p.channels[c].name].push_back(instance.phase);
  }
  return result;
}

// Bytes of what a phase sends, as an expression of the step's sizes.
std::string sent_bytes(const Program& p, const Phase& phase) {
  const Buffer& buffer = p.buffers[resolve(p, phase, phase.operands[0], 0)];
  Expr bytes = bytes_of(buffer.dtype, 1);
  for (const ValId v : buffer.dims) bytes = bytes * p.vals[v].e;
  return bytes.str() + " B";
}

Family family_of_phase(const Variant& variant) {
  switch (variant.code) {
    case OpCode::kGeneric:
    case OpCode::kRowwise:
      return family_of(variant.op);
    case OpCode::kPointwise:
      return Family::kPointwise;
    case OpCode::kNorm:
      return Family::kNorm;
    case OpCode::kMatMul:
    case OpCode::kGatedMatMul:
    case OpCode::kExpertMatMul:
      return Family::kProduct;
    case OpCode::kRotary:
    case OpCode::kKvAppend:
    case OpCode::kRotaryAppend:
    case OpCode::kAttention:
      return Family::kAttention;
    case OpCode::kEmbed:
    case OpCode::kSelectRows:
    case OpCode::kSample:
      return Family::kLookup;
    case OpCode::kSend:
    case OpCode::kRecvReduce:
    case OpCode::kRecvConcat:
    case OpCode::kSendRows:
    case OpCode::kRecvRows:
      return Family::kExchange;
  }
  return Family::kControl;
}

std::string type_text(const Program& p, BufferId buffer) {
  Shape shape;
  for (const ValId v : p.buffers[buffer].dims) shape.push_back(p.vals[v].e);
  return std::string(name_of(p.buffers[buffer].dtype)) + str(shape);
}

class ProgramPicture {
 public:
  ProgramPicture(const std::vector<Program>& programs, std::string name, bool is_plan)
      : programs_(programs), is_plan_(is_plan) {
    picture_.name = std::move(name);
    for (std::size_t r = 0; r < programs.size(); ++r) draw_rank(r);
    for (std::size_t r = 0; r < programs.size(); ++r) draw_messages(r);
  }
  Picture finish() && { return std::move(picture_); }

 private:
  // The plan is what differs between ranks; a program that has nothing of that is shown whole.
  bool is_shown(const Program& p, PhaseId phase) const {
    if (!is_plan_) return true;
    const Family family = family_of_phase(p.variants[p.phases[phase].variant]);
    return family != Family::kNorm && family != Family::kPointwise && family != Family::kMovement &&
           family != Family::kReduce;
  }

  void draw_rank(std::size_t rank) {
    const Program& p = programs_[rank];
    picture_.groups.push_back({"rank " + std::to_string(rank)});
    const auto column = static_cast<int32_t>(picture_.groups.size()) - 1;
    std::vector<int32_t> groups;
    for (const Repeat& repeat : p.repeats) {
      groups.push_back(static_cast<int32_t>(picture_.groups.size()));
      picture_.groups.push_back({"x " + std::to_string(repeat.trips), column});
    }
    std::vector<std::string> names;
    for (const Phase& phase : p.phases)
      if (phase.name.find('/') != std::string::npos) names.push_back(phase.name);
    const std::string prefix = common_prefix(names);
    PhaseId last = kNone;
    for (PhaseId i = 0; i < static_cast<PhaseId>(p.phases.size()); ++i) {
      if (!is_shown(p, i)) continue;
      const Phase& phase = p.phases[i];
      boxes_[{rank, i}] = static_cast<int32_t>(picture_.boxes.size());
      picture_.boxes.push_back(box_of(p, i, prefix));
      picture_.boxes.back().group = phase.repeat == kNone ? column : groups[phase.repeat];
      if (last != kNone) draw_order(rank, last, i);
      last = i;
    }
    if (!is_plan_)
      for (PhaseId i = 0; i < static_cast<PhaseId>(p.phases.size()); ++i) draw_waits(rank, i);
  }

  Picture::Box box_of(const Program& p, PhaseId id, const std::string& prefix) {
    const Phase& phase = p.phases[id];
    const Variant& variant = p.variants[phase.variant];
    const int64_t trips = phase.repeat == kNone ? 1 : p.repeats[phase.repeat].trips;
    Picture::Box box{"r" + std::to_string(p.rank) + "_" + std::to_string(id), family_of_phase(variant)};
    box.title = variant.code == OpCode::kGeneric ? name_of(variant.op) : name_of(variant.code);
    if (variant.epilogue != 0) box.title += " + " + epilogue_text(variant.epilogue);
    box.count = trips;
    box.lines.push_back(phase.name.starts_with(prefix) ? phase.name.substr(prefix.size()) : phase.name);
    for (const Operand& operand : phase.operands) {
      if (const int32_t weight = weight_of(p, phase, operand, 0); weight != kNone)
        box.lines.push_back(weight_text(p, weight));
      for (int64_t trip = 0; trip < trips; ++trip) {
        const int32_t weight = weight_of(p, phase, operand, static_cast<int32_t>(trip));
        if (weight != kNone && weights_.insert({p.rank, weight}).second)
          box.bytes += packed_bytes(p.weights[weight]);
      }
    }
    const BufferId out = phase.operands.empty() || phase.channel != kNone
                             ? kNone
                             : resolve(p, phase, phase.operands.back(), 0);
    if (out != kNone) box.lines.push_back("-> " + type_text(p, out));
    if (!is_plan_ && phase.grid != kNone) box.lines.push_back(p.vals[phase.grid].e.str() + " tiles");
    return box;
  }

  static int32_t weight_of(const Program& p, const Phase& phase, const Operand& operand, int32_t trip) {
    const BufferId b = resolve(p, phase, operand, trip);
    return b == kNone ? kNone : p.buffers[b].weight;
  }

  std::string weight_text(const Program& p, int32_t weight) const {
    const WeightUse& use = p.weights[weight];
    return "W " + std::string(name_of(use.stored)) + "[" + ranges_text(use.ranges, ", ") + "] " +
           size_text(packed_bytes(use));
  }

  // Of two phases in a row: dark where the second waits for the first, light where it goes on at once.
  void draw_order(std::size_t rank, PhaseId from, PhaseId to) {
    bool waits = is_plan_;
    for (const Wait& wait : programs_[rank].phases[to].waits)
      waits |= wait.kind == WaitKind::kPhase && wait.phase == from && wait.trip_offset == 0;
    add_edge(rank, from, rank, to, "", waits ? Picture::Line::kData : Picture::Line::kOrder);
  }

  void draw_waits(std::size_t rank, PhaseId to) {
    for (const Wait& wait : programs_[rank].phases[to].waits) {
      if (wait.kind != WaitKind::kPhase || (wait.phase == to - 1 && wait.trip_offset == 0)) continue;
      add_edge(rank, wait.phase, rank, to, wait.trip_offset ? "last trip" : "", Picture::Line::kWait);
    }
  }

  void add_edge(std::size_t rank, PhaseId from, std::size_t peer, PhaseId to, std::string label,
                Picture::Line line) {
    const auto a = boxes_.find({rank, from}), b = boxes_.find({peer, to});
    if (a != boxes_.end() && b != boxes_.end())
      picture_.edges.push_back({a->second, b->second, std::move(label), line});
  }

  // Each message from its send to the phase that reads it; the trips of a repeat are one edge.
  void draw_messages(std::size_t rank) {
    const Program& p = programs_[rank];
    for (const auto& [channel, sends] : messages(p, true)) {
      std::size_t peer = 0;
      for (const Channel& c : p.channels)
        if (c.outgoing && c.name == channel) peer = at(c.peer);
      const auto incoming = messages(programs_.at(peer), false);
      const auto reads = incoming.find(channel);
      std::set<std::pair<PhaseId, PhaseId>> drawn;
      for (std::size_t m = 0; reads != incoming.end() && m < sends.size() && m < reads->second.size(); ++m)
        if (drawn.insert({sends[m], reads->second[m]}).second)
          add_edge(rank, sends[m], peer, reads->second[m], sent_bytes(p, p.phases[sends[m]]),
                   Picture::Line::kMessage);
    }
  }

  const std::vector<Program>& programs_;
  const bool is_plan_;
  Picture picture_;
  std::map<std::pair<std::size_t, PhaseId>, int32_t> boxes_;
  std::set<std::pair<int32_t, int32_t>> weights_;  // that are counted, by rank
};

}  // namespace

std::string ranges_text(const std::vector<Range>& ranges, const char* between) {
  std::string text;
  for (const Range& r : ranges)
    text += (text.empty() ? "" : between) + std::to_string(r.begin) + ":" + std::to_string(r.end);
  return text;
}

Picture plan_picture(const std::vector<Program>& programs, std::string name) {
  return ProgramPicture(programs, std::move(name), true).finish();
}

Picture program_picture(const std::vector<Program>& programs, std::string name) {
  return ProgramPicture(programs, std::move(name), false).finish();
}

}  // namespace ark
