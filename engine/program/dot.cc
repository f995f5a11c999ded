#include "engine/program/dot.h"

#include <map>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"

namespace ark {
namespace {

std::string phase_id(std::size_t rank, PhaseId phase) {
  return "r" + std::to_string(rank) + "_" + std::to_string(phase);
}

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

std::string label(const Program& p, const Phase& phase) {
  const Variant& variant = p.variants[phase.variant];
  std::string text(variant.code == OpCode::kGeneric ? name_of(variant.op) : name_of(variant.code));
  if (variant.epilogue != 0) text += " + " + epilogue_text(variant.epilogue);
  text += "\\n" + escaped(phase.name, 60);
  if (!phase.operands.empty() && phase.channel == kNone) {
    const BufferId out = resolve(p, phase, phase.operands.back(), 0);
    if (out != kNone) {
      Shape shape;
      for (const ValId v : p.buffers[out].dims) shape.push_back(p.vals[v].e);
      text += "\\n" + std::string(name_of(p.buffers[out].dtype)) + str(shape);
    }
  }
  return text;
}

// One rank's column: its phases from top to bottom, repeats boxed.
std::string column(const Program& p, std::size_t rank) {
  const std::string name = std::to_string(rank);
  std::string text =
      "  subgraph cluster_rank" + name + " {\n    label=\"rank " + name + "\"; style=rounded;\n";
  int32_t open = kNone;
  for (std::size_t i = 0; i < p.phases.size(); ++i) {
    const Phase& phase = p.phases[i];
    if (phase.repeat != open) {
      if (open != kNone) text += "    }\n";
      open = phase.repeat;
      if (open != kNone)
        text += "    subgraph cluster_rank" + name + "_" + std::to_string(open) + " {\n      label=\"" +
                std::to_string(p.repeats[open].trips) + " times\"; style=dashed;\n";
    }
    text += "      " + phase_id(rank, static_cast<PhaseId>(i)) + " [label=\"" + label(p, phase) + "\"" +
            (phase.channel != kNone ? ", shape=cds" : "") + "];\n";
  }
  if (open != kNone) text += "    }\n";
  for (std::size_t i = 1; i < p.phases.size(); ++i)
    text += "    " + phase_id(rank, static_cast<PhaseId>(i - 1)) + " -> " +
            phase_id(rank, static_cast<PhaseId>(i)) + " [color=gray60, weight=10];\n";
  return text + "  }\n";
}

// Each message from its send to the phase that reads it; the trips of a repeat are one edge.
std::string crossings(const std::vector<Program>& programs) {
  std::string text;
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const Program& p = programs[r];
    for (const auto& [channel, sends] : messages(p, true)) {
      std::size_t peer = 0;
      for (const Channel& c : p.channels)
        if (c.outgoing && c.name == channel) peer = at(c.peer);
      const auto incoming = messages(programs.at(peer), false);
      const auto reads = incoming.find(channel);
      std::set<std::pair<PhaseId, PhaseId>> drawn;
      for (std::size_t m = 0; reads != incoming.end() && m < sends.size() && m < reads->second.size(); ++m) {
        if (!drawn.insert({sends[m], reads->second[m]}).second) continue;
        text += "  " + phase_id(r, sends[m]) + " -> " + phase_id(peer, reads->second[m]) + " [label=\"" +
                sent_bytes(p, p.phases[sends[m]]) + "\", color=blue, fontcolor=blue];\n";
      }
    }
  }
  return text;
}

}  // namespace

std::string dot(const std::vector<Program>& programs) {
  std::string text =
      "digraph plan {\n  rankdir=TB; node [shape=box, fontname=\"sans-serif\", fontsize=10];\n"
      "  edge [fontname=\"sans-serif\", fontsize=9];\n";
  for (std::size_t r = 0; r < programs.size(); ++r) text += column(programs[r], r);
  return text + crossings(programs) + "}\n";
}

}  // namespace ark
