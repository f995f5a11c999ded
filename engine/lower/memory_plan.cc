#include <algorithm>
#include <map>

#include "base/index.h"
#include "engine/lower/complete.h"
#include "engine/program/unroll.h"

namespace ark {
namespace {

constexpr int64_t kBufferAlign = 64;

int64_t aligned_buffer(int64_t bytes) { return (bytes + kBufferAlign - 1) / kBufferAlign * kBufferAlign; }

struct Life {
  int64_t first = -1, last = -1;  // instances of the step
};

std::vector<Life> lives(const Program& program, const std::vector<Instance>& instances) {
  std::vector<Life> lives(program.buffers.size());
  for (std::size_t i = 0; i < instances.size(); ++i) {
    for (const Access& access : accesses(program, instances[i])) {
      Life& life = lives[access.buffer];
      if (life.first < 0) life.first = static_cast<int64_t>(i);
      life.last = static_cast<int64_t>(i);
    }
  }
  // What becomes of queries may be written where they are computed (engine/cuda/appended.h), while others still read
  // what they are computed from.
  for (const Instance& instance : instances) {
    const Phase& phase = program.phases[instance.phase];
    if (program.variants[phase.variant].code != OpCode::kRotaryAppend) continue;
    const auto buffer = [&](std::size_t operand) {
      return root(program, resolve(program, phase, phase.operands[operand], instance.trip));
    };
    Life &out = lives[at(buffer(rotary_append::kOut))], &queries = lives[at(buffer(rotary_append::kQueries))];
    if (queries.first >= 0) out.first = std::min(out.first, queries.first);
  }
  return lives;
}

// Per instance: the last one that is complete when it starts, if it waits for nothing but its operands.
std::vector<int64_t> complete(const Program& program, const std::vector<Instance>& instances) {
  std::vector<int64_t> writer(program.buffers.size(), -1), complete;
  int64_t last = -1;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const std::vector<Access> touched = accesses(program, instances[i]);
    for (const Access& access : touched) {
      if (!access.writes) last = std::max(last, writer[access.buffer]);
    }
    for (const Access& access : touched) {
      if (access.writes) writer[access.buffer] = static_cast<int64_t>(i);
    }
    complete.push_back(last);
  }
  return complete;
}

void plan_activations(const Program& program, Binding& binding) {
  const std::vector<Instance> instances = unroll(program);
  const std::vector<Life> life = lives(program, instances);
  const std::vector<int64_t> done = complete(program, instances);
  std::vector<BufferId> order;
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.kind == BufferKind::kAct && buffer.alias == kNone) order.push_back(static_cast<BufferId>(b));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](BufferId a, BufferId b) { return life[a].first < life[b].first; });
  struct Placed {
    int64_t end, last;
  };
  std::map<int64_t, Placed> live;  // by offset
  for (const BufferId b : order) {
    // Memory is free once its last reader is known to be complete: reuse never adds a wait.
    const int64_t known = life[b].first < 0 ? -1 : done[life[b].first];
    std::erase_if(live, [&](const auto& entry) { return entry.second.last <= known; });
    const int64_t bytes = aligned_buffer(max_bytes(program, b));
    int64_t offset = 0;
    for (const auto& [begin, placed] : live) {
      if (offset + bytes <= begin) break;
      offset = std::max(offset, placed.end);
    }
    binding.offsets[b] = offset;
    binding.act_bytes = std::max(binding.act_bytes, offset + bytes);
    if (bytes > 0) live[offset] = {offset + bytes, life[b].last};
  }
}

void plan_inboxes(const Program& program, Binding& binding) {
  std::vector<int64_t> offset_of(program.channels.size(), -1);
  for (std::size_t c = 0; c < program.channels.size(); ++c) {
    if (program.channels[c].outgoing) continue;
    offset_of[c] = binding.inbox_bytes;
    binding.inbox_bytes += 2 * inbox_half(program.channels[c]);
  }
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.kind == BufferKind::kInbox) binding.offsets[b] = offset_of[buffer.channel];
  }
}

}  // namespace

Binding plan_memory(const Program& program) {
  Binding binding{.offsets = std::vector<int64_t>(program.buffers.size(), -1)};
  plan_activations(program, binding);
  plan_inboxes(program, binding);
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    if (program.buffers[b].alias != kNone) binding.offsets[b] = binding.offsets[program.buffers[b].alias];
  }
  return binding;
}

}  // namespace ark
