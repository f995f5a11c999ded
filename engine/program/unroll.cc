#include "engine/program/unroll.h"

#include "base/index.h"
#include "engine/program/kv_codec.h"
#include "engine/program/opcodes.h"

namespace ark {

std::vector<Instance> unroll(const Program& program) {
  std::vector<Instance> instances;
  const auto phases = static_cast<PhaseId>(program.phases.size());
  for (PhaseId p = 0; p < phases;) {
    const int32_t r = program.phases[p].repeat;
    if (r == kNone) {
      instances.push_back({p++, 0});
      continue;
    }
    const Repeat& repeat = program.repeats[r];
    for (int32_t trip = 0; trip < repeat.trips; ++trip) {
      for (int32_t i = 0; i < repeat.count; ++i) instances.push_back({p + i, trip});
    }
    p += repeat.count;
  }
  return instances;
}

BufferId resolve(const Program& program, const Phase& phase, const Operand& operand, int32_t trip) {
  if (operand.slot == kNone) return operand.buffer;
  return program.repeats[phase.repeat].table[trip][operand.slot];
}

BufferId root(const Program& program, BufferId buffer) {
  const BufferId alias = program.buffers[buffer].alias;
  return alias == kNone ? buffer : alias;
}

OpCode code_of(const Program& program, const Instance& instance) {
  return program.variants[program.phases[instance.phase].variant].code;
}
BufferId resolve(const Program& program, const Instance& instance, std::size_t n) {
  const Phase& phase = program.phases[instance.phase];
  return resolve(program, phase, phase.operands[n], instance.trip);
}

int64_t max_bytes(const Program& program, BufferId buffer) {
  const Buffer& b = program.buffers[buffer];
  if (b.kind == BufferKind::kKvPage) return program.vals[b.dims[0]].max * page_bytes(program, b);
  int64_t elements = 1;
  for (const ValId v : b.dims) elements *= program.vals[v].max;
  return bytes_of(b.dtype, elements);
}

Shape sizes(const Program& program, const Buffer& buffer) {
  Shape shape;
  for (const ValId v : buffer.dims) shape.push_back(program.vals[v].e);
  return shape;
}

int64_t page_bytes(const Program& program, const Buffer& pages) {
  const auto dim = [&](std::size_t axis) { return program.vals[pages.dims[axis]].max; };
  return dim(1) * kv_codec_of(pages.dtype)->format.head_bytes(dim(2), dim(3));
}

int64_t page_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::kKvPage && buffer.alias == kNone) bytes += page_bytes(program, buffer);
  return bytes;
}

std::string kv_name(const Program& program) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::kKvPage) return std::string(kv_codec_of(buffer.dtype)->name);
  return "";
}

int32_t trips_of(const Program& program, PhaseId phase) {
  const int32_t repeat = program.phases[phase].repeat;
  return repeat == kNone ? 1 : program.repeats[repeat].trips;
}

int64_t awaited(const Program& program, const Wait& wait, const Instance& instance, int64_t step) {
  const int32_t repeat = program.phases[instance.phase].repeat, trips = trips_of(program, wait.phase);
  const bool is_same =
      wait.phase == instance.phase || (repeat != kNone && program.phases[wait.phase].repeat == repeat);
  if (is_same) return step * trips + instance.trip + wait.trip_offset;
  return (step + (wait.phase < instance.phase ? 1 : 0)) * trips - 1;
}

std::vector<Access> accesses(const Program& program, const Instance& instance) {
  const Phase& phase = program.phases[instance.phase];
  const Variant& variant = program.variants[phase.variant];
  std::vector<Access> result;
  for (std::size_t i = 0; i < phase.operands.size(); ++i) {
    const BufferId buffer = resolve(program, phase, phase.operands[i], instance.trip);
    if (buffer == kNone || program.buffers[buffer].kind == BufferKind::kWeight) continue;
    result.push_back({root(program, buffer), is_written(variant, i, phase.operands.size())});
  }
  if (variant.code == OpCode::kSample && program.token_ids != kNone)
    result.push_back({program.token_ids, true});
  return result;
}

Range memory_of(const Program& program, const Binding& binding, BufferId root) {
  if (program.buffers[root].kind != BufferKind::kAct) return {-1 - root, -root};
  return {binding.offsets[root], binding.offsets[root] + max_bytes(program, root)};
}

std::vector<int32_t> channels_of(const Program& program, const Phase& phase) {
  if (is_send(program.variants[phase.variant].code)) return {phase.channel};
  std::vector<int32_t> channels;
  for (const Operand& operand : phase.operands) {
    const BufferId b = resolve(program, phase, operand, 0);
    if (b != kNone && program.buffers[b].kind == BufferKind::kInbox)
      channels.push_back(program.buffers[b].channel);
  }
  return channels;
}

}  // namespace ark
