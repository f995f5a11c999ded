#include "engine/cuda/instance_filler.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "engine/cpu/step_kernel.h"
#include "engine/program/text.h"

namespace ark::cuda {

InstanceFiller::InstanceFiller(const RankImage& image, const RankPlaces& places)
    : image_(image),
      places_(places),
      program_(image.program()),
      schedule_(unroll(program_)),
      trips_(program_.phases.size(), 1),
      messages_(program_.channels.size(), 0),
      ordinals_(program_.channels.size(), 0) {
  for (const Repeat& r : program_.repeats) {
    for (int32_t i = 0; i < r.count; ++i) trips_[r.first + i] = r.trips;
  }
}

void InstanceFiller::refuse(const std::string& why) const {
  throw Error(Code::kUnsupported,
              "node " + escaped(phase_->name) + " has no device code: " + why + "; run with --device cpu");
}

uint64_t InstanceFiller::address(BufferId id) const {
  if (id == kNone) return 0;
  const BufferId owner = root(program_, id);
  const Buffer& b = program_.buffers[owner];
  if (b.kind == BufferKind::kWeight) {
    const WeightStore& store = *image_.setup_.weights;
    return places_.weights + static_cast<uint64_t>(store.address(b.weight) - store.address(0));
  }
  return b.kind == BufferKind::kInbox ? 0 : places_.arena + image_.buffers_[owner];
}

const Buffer& InstanceFiller::buffer(std::size_t operand) const { return program_.buffers[ids_[operand]]; }

Size InstanceFiller::size(ValId val) const {
  const int64_t constant = constant_of(program_, val);
  if (constant > INT32_MAX) refuse("a size beyond 2^31");
  return constant >= 0 ? static_cast<Size>(constant) : ~val;
}

Size InstanceFiller::dim(std::size_t operand, std::size_t axis) const {
  return size(buffer(operand).dims[axis]);
}
Size InstanceFiller::last_dim(std::size_t operand) const {
  return buffer(operand).dims.empty() ? 1 : size(buffer(operand).dims.back());
}

void InstanceFiller::product(std::size_t operand, std::size_t first, std::size_t last, Size* to) const {
  std::size_t used = 1;
  to[0] = to[1] = to[2] = to[3] = 1;
  for (std::size_t a = first; a < last; ++a) {
    const Size s = dim(operand, a);
    if (s >= 0) {
      to[0] *= s;
    } else {
      if (used == 4) refuse("more than three sizes that change from step to step");
      to[used++] = s;
    }
  }
}

Size InstanceFiller::one_size(std::size_t operand, std::size_t first, std::size_t last,
                              const char* what) const {
  Size p[4];
  product(operand, first, last, p);
  if (p[1] == 1) return p[0];
  if (p[0] == 1 && p[2] == 1) return p[1];
  refuse(std::string(what) + " depends on a product of sizes");
}

void InstanceFiller::run() {
  instances.resize(schedule_.size());
  aux.resize(schedule_.size() * kAuxSizes);
  rows_of_stream.resize(image_.streams_.size());
  for (std::size_t i = 0; i < schedule_.size(); ++i) {  // messages of a step, before their numbers
    phase_ = &program_.phases[schedule_[i].phase];
    if (phase_->channel != kNone) ++messages_[phase_->channel];
    for (const Operand& operand : phase_->operands) {
      const BufferId id = resolve(program_, *phase_, operand, schedule_[i].trip);
      if (id != kNone && program_.buffers[id].kind == BufferKind::kInbox)
        ++messages_[program_.buffers[id].channel];
    }
  }
  for (std::size_t i = 0; i < schedule_.size(); ++i) fill(i, instances[i]);
  for (std::size_t i = 0; i < schedule_.size(); ++i) {
    const Instance& next = instances[(i + 1) % schedule_.size()];
    instances[i].next_waits = next.waits;
    instances[i].next_messages = next.messages;
    instances[i].next_first_wait = next.first_wait;
    instances[i].next_first_message = next.first_message;
  }
}

void InstanceFiller::fill(std::size_t number, Instance& to) {
  const ark::Instance& own = schedule_[number];
  phase_ = &program_.phases[own.phase];
  trip_ = own.trip;
  ids_.clear();
  for (const Operand& operand : phase_->operands)
    ids_.push_back(resolve(program_, *phase_, operand, own.trip));
  const Variant& variant = program_.variants[phase_->variant];
  to = {};
  to.variant = image_.variants_.of(image_.number_, own.phase);
  to.phase = own.phase;
  to.trip = own.trip;
  to.grid = phase_->grid == kNone ? 0 : size(phase_->grid);
  to.counter = places_.arena + image_.counters_ + at(own.phase) * 64;
  const Wait complete = phase_wait(own.phase, own.trip);
  to.complete_offset = static_cast<u32>(complete.offset);
  to.complete_stride = static_cast<u32>(complete.stride);
  to.readers = places_.arena + image_.rank_.readers + at(own.phase) * 64;
  to.stream = -1;
  fill_messages(to);
  fill_sizes(variant, number, to);
  fill_waits(number, to);
}

// ---- waits and messages

Wait InstanceFiller::phase_wait(PhaseId phase, int64_t instance) const {
  const auto processors = static_cast<uint64_t>(image_.options_.processors);
  Wait w{};
  w.counter = places_.arena + image_.counters_ + at(phase) * 64;
  w.stride = static_cast<u32>(processors * static_cast<uint64_t>(trips_[phase]));
  w.offset = image_.options_.counter_base + processors * static_cast<uint64_t>(instance + 1);
  return w;
}

void InstanceFiller::fill_waits(std::size_t number, Instance& to) {
  to.first_wait = static_cast<i32>(waits.size());
  const PhaseId own = schedule_[number].phase;
  for (const ark::Wait& wait : phase_->waits) {
    if (wait.kind == WaitKind::kPhase) {
      const Phase& other = program_.phases[wait.phase];
      const bool same = wait.phase == own || (phase_->repeat != kNone && phase_->repeat == other.repeat);
      // Relative to the step's first instance; -1 is the last of the step before.
      const int64_t instance = same               ? trip_ + wait.trip_offset
                               : wait.phase < own ? trips_[wait.phase] - 1
                                                  : -1;
      waits.push_back(phase_wait(wait.phase, instance));
      continue;
    }
    const ChannelPlace& place = places_.channels[wait.channel];
    const bool arrival = wait.kind == WaitKind::kArrived;
    // In a device's memory all processors raise an arrival, elsewhere the last one for all.
    const bool all_raise = arrival && place.link == LinkKind::kDevice;
    const uint64_t each = all_raise ? static_cast<uint64_t>(image_.options_.processors) : 1;
    uint64_t ordinal = 0;
    for (i32 m = 0; m < to.messages; ++m) {
      const Message& message = messages[to.first_message + m];
      if (message.channel == wait.channel) ordinal = message.ordinal;
    }
    Wait w{};
    w.counter = place.awaited;
    w.relay = place.relay;
    w.stride = static_cast<u32>(each * messages_[wait.channel]);
    w.offset = place.first_count + each * (ordinal + 1) - (arrival ? 0 : place.slot_count);
    w.wide = 1;
    waits.push_back(w);
  }
  const auto wait_for = [&](int32_t instance) {  // of this step
    if (instance < 0) return;
    const ark::Instance& before = schedule_[instance];
    waits.push_back(phase_wait(before.phase, before.trip));
  };
  // Device code keeps sums in memory that set_waits does not know of.
  if (to.stream >= 0) wait_for(image_.stream_after_[to.stream]);
  if (program_.variants[phase_->variant].code == OpCode::kAttention) {
    wait_for(last_attention_);
    last_attention_ = static_cast<int32_t>(number);
  }
  to.waits = static_cast<i32>(waits.size()) - to.first_wait;
  if (to.waits > kMaxWaits) refuse("more than " + std::to_string(kMaxWaits) + " waits");
}

void InstanceFiller::fill_messages(Instance& to) {
  to.first_message = static_cast<i32>(messages.size());
  const auto add = [&](int32_t channel) {
    const ChannelPlace& place = places_.channels[channel];
    Message m{};
    m.slots = place.slots;
    m.counter = place.raised;
    m.queue = place.queue;
    m.head = place.head;
    m.source = place.source;
    m.target = place.target;
    m.slot_count = static_cast<u32>(place.slot_count);
    m.slot_bytes = static_cast<u32>(place.slot_bytes);
    m.per_step = messages_[channel];
    m.ordinal = ordinals_[channel]++;
    m.first = place.first;
    m.channel = channel;
    m.link = place.link;
    messages.push_back(m);
  };
  if (phase_->channel != kNone) add(phase_->channel);
  for (const BufferId id : ids_) {
    if (id == kNone || program_.buffers[id].kind != BufferKind::kInbox) continue;
    add(program_.buffers[id].channel);
    to.readers_period = image_.options_.processors;
  }
  to.messages = static_cast<i32>(messages.size()) - to.first_message;
  if (to.messages > kMaxMessages) refuse("more than " + std::to_string(kMaxMessages) + " peers");
}

// ---- sizes; what they mean stands at the bodies

void InstanceFiller::fill_sizes(const Variant& variant, std::size_t number, Instance& to) {
  const VariantFacts facts = VariantFacts::of(variant);
  const bool is_exchange = variant.code == OpCode::kRecvReduce || variant.code == OpCode::kRecvConcat;
  if (!is_exchange) {
    if (ids_.size() > kOperands) refuse("more than " + std::to_string(kOperands) + " operands");
    for (std::size_t i = 0; i < ids_.size(); ++i) to.operands[i] = address(ids_[i]);
  }
  switch (variant.code) {
    case OpCode::kEmbed: {
      const WeightUse& use = program_.weights[buffer(1).weight];
      const bool panels = use.layout == Layout::kPanels;
      to.sizes[0] = dim(1, panels ? 0 : 1);
      to.sizes[1] = dim(1, panels ? 1 : 0);
      to.sizes[2] = panels ? use.panel : 0;
      to.sizes[3] = static_cast<Size>(facts.first);
      to.sizes[4] = use.block;
      return;
    }
    case OpCode::kNorm:
      to.sizes[0] = last_dim(0);
      to.reals[0] = facts.epsilon;
      return;
    case OpCode::kMatMul:
      to.stream = static_cast<i32>(stream_++);
      to.sizes[0] = static_cast<Size>(variant.epilogue);
      rows_of_stream[to.stream] = one_size(0, 0, buffer(0).dims.size() - 1, "the number of rows");
      return;
    case OpCode::kRotary: {
      to.sizes[0] = one_size(0, 1, buffer(0).dims.size() - 1, "the number of heads");
      to.sizes[1] = last_dim(0);
      to.sizes[2] = last_dim(1);
      to.sizes[3] = dim(1, 0);
      return;
    }
    case OpCode::kKvAppend:
      for (std::size_t a = 1; a < 4; ++a) to.sizes[a - 1] = dim(2, a);
      to.sizes[3] = dim(3, 3);
      return;
    case OpCode::kAttention:
      return fill_attention(phase_->variant, to);
    case OpCode::kSelectRows:
      to.sizes[0] = one_size(0, 1, buffer(0).dims.size(), "a row's size");
      return;
    case OpCode::kPointwise:
      return fill_pointwise(number, to);
    case OpCode::kSend:
      product(0, 0, buffer(0).dims.size(), to.sizes);
      return;
    case OpCode::kRecvReduce:
      to.sizes[5] = static_cast<Size>(variant.epilogue);
      return fill_reduce(to);
    case OpCode::kRecvConcat:
      return fill_concat(variant, to);
    case OpCode::kSample:
      to.sizes[0] = last_dim(0);
      return;
    case OpCode::kGeneric:
      return fill_copy(variant, to);
  }
}

void InstanceFiller::fill_attention(int32_t variant, Instance& to) {
  const VariantFacts facts = VariantFacts::of(program_.variants[variant]);
  to.operands[6] = places_.arena + image_.heads_offset_ + at(image_.heads_at_.at(variant)) * 4;
  to.operands[7] = image_.attention_partials_ ? places_.arena + image_.attention_partials_ : 0;
  to.operands[8] = places_.arena + image_.attention_arrivals_;
  to.sizes[0] = dim(0, 1);
  to.sizes[1] = dim(1, 1);
  to.sizes[2] = dim(1, 2);
  to.sizes[3] = static_cast<Size>(std::min<int64_t>(facts.window, INT32_MAX));
  to.reals[0] = facts.scale;
  to.reals[1] = facts.softcap;
}

// Sizes 0..3: elements; 4 + i: how input i lies, see bodies/pointwise.h.
void InstanceFiller::fill_pointwise(std::size_t number, Instance& to) {
  const std::size_t out = ids_.size() - 1, rank = buffer(out).dims.size();
  if (out > 8) refuse("more than 8 inputs of a fused expression");
  product(out, 0, rank, to.sizes);
  to.operands[kOperands - 1] = to.operands[out];
  to.sizes[12] = last_dim(out);
  Size* table = &aux[number * kAuxSizes];
  std::fill_n(table, kAuxSizes, 1);
  to.aux = places_.arena + image_.aux_ + number * kAuxSizes * sizeof(Size);
  for (std::size_t a = 0; a < std::min<std::size_t>(rank, 4); ++a) table[3 - a] = dim(out, rank - 1 - a);
  for (std::size_t i = 0; i < out; ++i) {
    const Buffer& in = buffer(i);
    const std::size_t n = in.dims.size();
    const auto is_one = [&](std::size_t a) { return constant_of(program_, in.dims[a]) == 1; };
    std::size_t ones = 0;
    while (ones < n && is_one(ones)) ++ones;
    if (in.dims == buffer(out).dims) {
      to.sizes[4 + i] = 0;
    } else if (ones == n) {
      to.sizes[4 + i] = 2;
    } else if (ones + 1 >= n && in.dims.back() == buffer(out).dims.back()) {
      to.sizes[4 + i] = 1;
    } else {
      if (rank > 4) refuse("a broadcast over more than four axes");
      to.sizes[4 + i] = 3;
      for (std::size_t a = 0; a < n; ++a) table[4 + 4 * i + 3 - a] = dim(i, n - 1 - a);
    }
  }
}

// Operand r < ranks: the own part if r is the own rank, else absent: the message of that peer.
void InstanceFiller::fill_reduce(Instance& to) {
  const std::size_t count = ids_.size(), out = count - 1;
  if (program_.ranks > kMaxMessages) refuse("more than 8 ranks");
  to.operands[program_.rank] = address(ids_[0]);
  to.operands[8] = address(ids_[count - 3]);
  to.operands[9] = address(ids_[count - 2]);
  to.operands[10] = address(ids_[out]);
  product(out, 0, buffer(out).dims.size(), to.sizes);
  to.sizes[4] = last_dim(out);
}

// Sizes 0: elements of out behind the axis; 1 + r: of rank r's part.
void InstanceFiller::fill_concat(const Variant& variant, Instance& to) {
  const auto axis = at(VariantFacts::of(variant).axis);
  const std::size_t out = ids_.size() - 1;
  if (program_.ranks > kMaxMessages) refuse("more than 8 ranks");
  to.operands[program_.rank] = address(ids_[0]);
  to.operands[10] = address(ids_[out]);
  const auto elements = [&](std::size_t operand) {
    const Size n = one_size(operand, axis, buffer(operand).dims.size(), "a part's size");
    return n;
  };
  to.sizes[0] = elements(out);
  for (int32_t r = 0; r < program_.ranks; ++r) {
    to.sizes[1 + r] = elements(r == program_.rank ? 0 : at(r < program_.rank ? r + 1 : r));
  }
}

// Parts of rows. Sizes 0..3: rows; 4: elements of an input row; then per output its first element and count.
void InstanceFiller::fill_copy(const Variant& variant, Instance& to) {
  const std::size_t rank = buffer(0).dims.size(), outputs = at(variant.outputs);
  const auto constant = [&](const Expr& e) {
    if (!e.constant()) refuse("a size that changes from step to step");
    return *e.constant();
  };
  int64_t axis = variant.op == Op::kSplit ? variant.attributes.get(key::kAxis) : 0;
  std::vector<int64_t> first(outputs, 0);
  if (variant.op == Op::kSlice) {
    const std::vector<int64_t>& axes = variant.attributes.get(key::kAxes);
    if (axes.size() != 1 || variant.attributes.get(key::kSteps)[0] != 1)
      refuse("a slice of more than one axis");
    axis = axes[0];
    first[0] = constant(variant.attributes.get(key::kStarts)[0]);
  }
  if (axis < 0) axis += static_cast<int64_t>(rank);
  const Size inner = one_size(0, at(axis) + 1, rank, "a row's size"), width = dim(0, at(axis));
  if (variant.op == Op::kIdentity) {
    product(0, 0, rank, to.sizes);
    to.sizes[4] = to.sizes[6] = 1;
  } else {
    if (inner < 0 || width < 0 || outputs > 5) refuse("parts of an axis that changes from step to step");
    if (first[0] < 0) first[0] += width;
    product(0, 0, at(axis), to.sizes);
    to.sizes[4] = width * inner;
    int64_t begin = first[0];
    for (std::size_t o = 0; o < outputs; ++o) {
      const Size n = dim(ids_.size() - outputs + o, at(axis));
      to.sizes[5 + 2 * o] = static_cast<Size>(begin * inner);
      to.sizes[6 + 2 * o] = n * inner;
      begin += n;
    }
  }
}

}  // namespace ark::cuda
