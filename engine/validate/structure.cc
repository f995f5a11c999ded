// Indices, sizes, arenas, repeats, channels.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "engine/program/expr_bound.h"
#include "engine/program/kv_codec.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"
#include "engine/validate/validate.h"

namespace ark::validation {
namespace {

template <typename T>
bool in(int32_t index, const std::vector<T>& items) {
  return index >= 0 && at(index) < items.size();
}
std::string named(const char* what, std::size_t i) { return what + std::to_string(i); }

void check_vals(const Program& p, Report& report) {
  const SymbolValues most = greatest_symbols(p);
  for (std::size_t i = 0; i < p.vals.size(); ++i) {
    const bool known = p.vals[i].e.try_evaluate(most).has_value();
    if (!report.check(known, named("val $", i), "uses a symbol that has no val of its own")) continue;
    report.check(p.vals[i].max == upper_bound(p.vals[i].e, most), named("val $", i),
                 "its maximum is not that of its expression");
  }
}

// The weight's part has the buffer's sizes.
void check_weight(const Program& p, const Buffer& b, const std::string& place, Report& report) {
  if (!report.check(in(b.weight, p.weights), place, "no such weight")) return;
  const WeightUse& w = p.weights[b.weight];
  const bool is_panels = w.layout == Layout::kPanels;
  report.check(w.constant >= 0 && w.stored == b.dtype && bits_of(w.stored) > 0, place,
               "constant or element type of its weight");
  report.check(is_panels ? w.panel == kPanelWidth && w.ranges.size() == 2 : w.panel == 0 && !w.transposed,
               place, "layout of its weight");
  const WeightCodec* codec = codec_of(w.stored);
  report.check(is_panels ? codec && codec->allows(w.block, w.terms) : w.block == 0, place,
               "blocks of its weight");
  if (!report.check(w.ranges.size() == b.dims.size(), place, "rank of its weight")) return;
  for (std::size_t axis = 0; axis < w.ranges.size(); ++axis) {
    const Range r = w.ranges[w.transposed && w.ranges.size() == 2 ? 1 - axis : axis];
    report.check(r.begin >= 0 && r.begin <= r.end && p.vals[b.dims[axis]].e.is_constant(r.size()), place,
                 "sizes differ from its weight's part");
  }
}

void check_alias(const Program& p, const Binding& binding, std::size_t i, const std::string& place,
                 Report& report) {
  const Buffer& b = p.buffers[i];
  const bool exists = in(b.alias, p.buffers) && p.buffers[b.alias].alias == kNone;
  if (!report.check(exists, place, "alias of no buffer, or of an alias")) return;
  const Buffer& owner = p.buffers[b.alias];
  report.check(b.kind == BufferKind::kAct && owner.kind == b.kind && owner.dtype == b.dtype, place,
               "kind or type differs from its alias");
  report.check(element_count(sizes(p, b)) == element_count(sizes(p, owner)), place,
               "size differs from its alias");
  report.check(binding.offsets[i] == binding.offsets[b.alias], place, "offset differs from its alias");
}

void check_place(const Program& p, const Binding& binding, std::size_t i, const std::string& place,
                 Report& report) {
  const Buffer& b = p.buffers[i];
  const int64_t offset = binding.offsets[i], bytes = max_bytes(p, static_cast<BufferId>(i));
  if (b.kind == BufferKind::kAct) {
    report.check(offset >= 0 && offset % 64 == 0 && offset + bytes <= binding.act_bytes, place,
                 "outside the activation arena");
  } else if (b.kind == BufferKind::kInbox) {
    const Channel& c = p.channels[b.channel];
    report.check(offset >= 0 && offset % 64 == 0 && offset + 2 * inbox_half(c) <= binding.inbox_bytes, place,
                 "outside the inbox arena");
    report.check(bytes <= c.bytes, place, "larger than its channel's messages");
  } else {
    report.check(offset == -1, place, "has an offset but no arena");
  }
}

void check_buffer(const Program& p, const Binding& binding, std::size_t i, Report& report) {
  const Buffer& b = p.buffers[i];
  const std::string place = named("buffer %", i);
  const auto kind = b.kind;
  if (!report.check(std::all_of(b.dims.begin(), b.dims.end(), [&](ValId v) { return in(v, p.vals); }), place,
                    "no such val"))
    return;
  report.check(bits_of(b.dtype) > 0, place, "element type has no size");
  for (const ValId v : b.dims) report.check(p.vals[v].max >= 0, place, "negative size");
  const bool has_cache =
      kind == BufferKind::kKvPage || kind == BufferKind::kInput || kind == BufferKind::kOutput;
  report.check((b.weight != kNone) == (kind == BufferKind::kWeight), place,
               "weight index does not fit its kind");
  report.check((b.cache >= 0) == has_cache, place, "cache or graph index does not fit its kind");
  const bool is_pages = kind == BufferKind::kKvPage;
  if (!report.check(is_pages ? b.dims.size() == 4 : !b.is_value, place, "not the shape of pages") ||
      !report.check(!is_pages || kv_codec_of(b.dtype), place, "no element type of pages"))
    return;
  if (!report.check((b.channel != kNone) == (kind == BufferKind::kInbox), place,
                    "channel does not fit its kind"))
    return;
  if (kind == BufferKind::kInbox &&
      !report.check(in(b.channel, p.channels) && !p.channels[b.channel].outgoing, place,
                    "its channel does not come in"))
    return;
  if (kind == BufferKind::kWeight) check_weight(p, b, place, report);
  if (b.alias != kNone) check_alias(p, binding, i, place, report);
  check_place(p, binding, i, place, report);
}

// Arenas are as large as needed, inboxes of channels apart, weights and symbols' buffers not doubled.
void check_arenas(const Program& p, const Binding& binding, Report& report) {
  int64_t act = 0;
  std::map<int64_t, int32_t> inbox_at;  // offset -> channel
  std::set<int32_t> weights;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& b = p.buffers[i];
    const int64_t end = binding.offsets[i] + max_bytes(p, static_cast<BufferId>(i));
    if (b.kind == BufferKind::kAct) act = std::max(act, (end + 63) / 64 * 64);
    if (b.kind == BufferKind::kWeight)
      report.check(weights.insert(b.weight).second, named("buffer %", i), "shares its weight with another");
    // What takes no memory lies nowhere: parts that are empty.
    if (b.kind != BufferKind::kInbox || p.channels[b.channel].bytes == 0) continue;
    const auto [it, is_new] = inbox_at.try_emplace(binding.offsets[i], b.channel);
    report.check(it->second == b.channel, named("buffer %", i), "lies in the inbox of another channel");
  }
  int64_t inbox = 0;
  std::set<int32_t> channels;
  for (const auto& [offset, channel] : inbox_at) {
    report.check(channels.insert(channel).second, "inbox", "two places for one channel");
    report.check(offset >= inbox, "inbox", "channels overlap");
    inbox = offset + 2 * inbox_half(p.channels[channel]);
  }
  report.check(act == binding.act_bytes && inbox == binding.inbox_bytes, "binding",
               "arena sizes differ from what is used");
  report.check(weights.size() == p.weights.size(), "weights", "a weight has no buffer");
}

void check_repeats(const Program& p, Report& report) {
  PhaseId next = 0;
  std::vector<int32_t> repeat_of(p.phases.size(), kNone);
  for (std::size_t r = 0; r < p.repeats.size(); ++r) {
    const Repeat& repeat = p.repeats[r];
    const std::string place = named("repeat *", r);
    const bool fits = repeat.first >= next && repeat.count >= 1 && repeat.trips >= 1 &&
                      repeat.count <= static_cast<int64_t>(p.phases.size()) - repeat.first;
    if (!report.check(fits, place, "phases out of range or shared")) return;
    next = repeat.first + repeat.count;
    for (PhaseId i = repeat.first; i < next; ++i) repeat_of[i] = static_cast<int32_t>(r);
    report.check(repeat.table.size() == at(repeat.trips), place, "the table has not one row a trip");
    for (const auto& row : repeat.table) {
      report.check(row.size() == repeat.table[0].size(), place, "rows of different length");
      report.check(std::all_of(row.begin(), row.end(), [&](BufferId b) { return in(b, p.buffers); }), place,
                   "no such buffer");
    }
  }
  for (std::size_t i = 0; i < p.phases.size(); ++i) {
    report.check(p.phases[i].repeat == repeat_of[i], named("phase ", i), "its repeat does not hold it");
  }
}

// One phase serves all trips: what its operands are must not change.
bool is_alike(const Program& p, const Buffer& a, const Buffer& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.dims != b.dims || a.channel != b.channel ||
      a.is_value != b.is_value)
    return false;
  if (a.weight == kNone) return true;
  const WeightUse &wa = p.weights[a.weight], &wb = p.weights[b.weight];
  return wa.layout == wb.layout && wa.panel == wb.panel && wa.block == wb.block && wa.terms == wb.terms;
}

void check_phase(const Program& p, std::size_t i, std::vector<std::set<int32_t>>& slots, Report& report) {
  const Phase& phase = p.phases[i];
  const std::string place = named("phase ", i);
  if (!report.check(in(phase.variant, p.variants), place, "no such variant")) return;
  const OpCode code = p.variants[phase.variant].code;
  report.check(phase.grid == kNone ? code == OpCode::kGeneric : in(phase.grid, p.vals), place,
               "no such grid");
  report.check(is_send(code) ? in(phase.channel, p.channels) && p.channels[phase.channel].outgoing
                             : phase.channel == kNone,
               place, "its channel does not go out");
  for (const Operand& o : phase.operands) {
    if (o.slot == kNone) {
      report.check(o.buffer == kNone || in(o.buffer, p.buffers), place, "no such buffer");
      continue;
    }
    const bool exists = o.buffer == kNone && phase.repeat != kNone && o.slot >= 0 &&
                        at(o.slot) < p.repeats[phase.repeat].table[0].size();
    if (!report.check(exists, place, "no such column of the operand table")) continue;
    slots[phase.repeat].insert(o.slot);
    const auto& table = p.repeats[phase.repeat].table;
    for (const auto& row : table) {
      report.check(is_alike(p, p.buffers[row[o.slot]], p.buffers[table[0][o.slot]]), place,
                   "an operand changes its kind, type or size between trips");
    }
  }
  for (const Wait& w : phase.waits) {
    if (w.kind == WaitKind::kPhase) {
      report.check(in(w.phase, p.phases) && w.channel == kNone && (w.trip_offset == 0 || w.trip_offset == -1),
                   place, "bad wait");
    } else {
      report.check(in(w.channel, p.channels) && w.phase == kNone && w.trip_offset == 0, place,
                   "waits on no channel");
    }
  }
}

void check_roles(const Program& p, Report& report) {
  const bool is_decoder = p.token_ids != kNone;
  const auto is_io = [&](BufferId b) { return in(b, p.buffers) && p.buffers[b].kind == BufferKind::kIo; };
  if (is_decoder) {
    report.check(is_io(p.token_ids) && is_io(p.positions) && is_io(p.logits) && p.token_ids != p.positions,
                 "program", "token ids, positions or logits are no buffers of the host");
  } else {
    report.check(p.positions == kNone && p.logits == kNone, "program",
                 "a plain program has no token buffers");
  }
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const auto b = static_cast<BufferId>(i);
    if (p.buffers[i].kind != BufferKind::kIo) continue;
    report.check(b == p.token_ids || b == p.positions || b == p.logits, named("buffer %", i),
                 "belongs to the host, but has no role");
    if (b == p.logits)
      report.check(p.buffers[i].dtype == DType::kF32 && p.buffers[i].dims.size() == 2, named("buffer %", i),
                   "logits are not f32 [R, V]");
    else
      report.check(p.buffers[i].dtype == DType::kI32 && p.buffers[i].dims.size() == 1, named("buffer %", i),
                   "not i32 [T]");
  }
}

}  // namespace

void check_structure(const Program& p, const Binding& binding, Report& report) {
  check_vals(p, report);
  if (!report.check(binding.offsets.size() == p.buffers.size(), "binding", "not one offset a buffer")) return;
  for (std::size_t i = 0; i < p.channels.size(); ++i) {
    const Channel& c = p.channels[i];
    report.check(c.peer >= 0 && c.peer < p.ranks && c.peer != p.rank && c.bytes >= 0, named("channel ~", i),
                 "peer or size");
  }
  if (!report.is_clean()) return;
  for (std::size_t i = 0; i < p.buffers.size(); ++i) check_buffer(p, binding, i, report);
  check_repeats(p, report);
  if (!report.is_clean()) return;
  check_arenas(p, binding, report);
  std::vector<std::set<int32_t>> slots(p.repeats.size());
  std::set<int32_t> variants;
  for (std::size_t i = 0; i < p.phases.size(); ++i) {
    check_phase(p, i, slots, report);
    variants.insert(p.phases[i].variant);
  }
  for (std::size_t r = 0; r < slots.size(); ++r) {
    report.check(slots[r].size() == p.repeats[r].table[0].size(), named("repeat *", r),
                 "a column of its table is not used");
  }
  report.check(variants.size() == p.variants.size(), "variants", "a variant is not used");
  check_roles(p, report);
}

void check_channels(std::span<const Program> programs, std::vector<std::string>& errors) {
  for (const Program& p : programs) {
    Report report(errors, p.rank);
    std::set<std::pair<int32_t, bool>> seen;
    for (std::size_t i = 0; i < p.channels.size(); ++i) {
      const Channel& c = p.channels[i];
      const std::string place = named("channel ~", i);
      report.check(seen.emplace(c.peer, c.outgoing).second, place, "a second channel between the same ranks");
      const auto& others = programs[c.peer].channels;
      const auto end = std::find_if(others.begin(), others.end(), [&](const Channel& o) {
        return o.peer == p.rank && o.outgoing != c.outgoing;
      });
      report.check(end != others.end() && end->bytes == c.bytes && end->link == c.link && end->name == c.name,
                   place, "no equal other end at rank " + std::to_string(c.peer));
    }
  }
}

}  // namespace ark::validation
