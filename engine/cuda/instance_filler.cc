#include "engine/cuda/instance_filler.h"

#include <algorithm>

#include "base/index.h"
#include "engine/cuda/block_layout.h"
#include "engine/cuda/device_ops.h"

namespace ark::cuda {

InstanceFiller::InstanceFiller(const RankImage& image, const RankPlaces& places)
    : image_(image),
      places_(places),
      program_(image.program()),
      schedule_(unroll(program_)),
      messages_(program_.channels.size(), 0),
      ordinals_(program_.channels.size(), 0) {}

uint64_t InstanceFiller::address(BufferId id) const {
  if (id == kNone) return 0;
  const BufferId owner = root(program_, id);
  const Buffer& b = program_.buffers[owner];
  if (b.kind == BufferKind::kWeight)
    return places_.weights + static_cast<uint64_t>(image_.weights_.offsets[at(b.weight)]);
  return b.kind == BufferKind::kInbox ? 0 : places_.arena + image_.buffers_[owner];
}

void InstanceFiller::run() {
  instances.reserve(schedule_.size());
  aux.resize(schedule_.size() * kAuxSizes);
  for (std::size_t i = 0; i < schedule_.size(); ++i) {  // messages of a step, before their numbers
    phase_ = &program_.phases[schedule_[i].phase];
    if (phase_->channel != kNone) ++messages_[phase_->channel];
    for (const Operand& operand : phase_->operands) {
      const BufferId id = resolve(program_, *phase_, operand, schedule_[i].trip);
      if (id != kNone && program_.buffers[id].kind == BufferKind::kInbox)
        ++messages_[program_.buffers[id].channel];
    }
  }
  for (std::size_t i = 0; i < schedule_.size(); ++i) {
    if (!image_.is_gone(schedule_[i].phase)) fill(i, instances.emplace_back());
  }
  fill_quiet();
  if (image_.skipped_count_ > 0) fill_few();
  for (std::vector<Instance>* all : {&instances, &few_instances}) {
    for (std::size_t i = 0; i + kFetchAhead < all->size(); ++i) {
      const Instance& ahead = (*all)[i + kFetchAhead];
      Instance& own = (*all)[i];
      own.ahead_waits = ahead.waits;
      own.ahead_messages = ahead.messages;
      own.ahead_first_wait = ahead.first_wait;
      own.ahead_first_message = ahead.first_message;
    }
  }
}

void InstanceFiller::fill(std::size_t number, Instance& to) {
  const ark::Instance& own = schedule_[number];
  phase_ = &program_.phases[own.phase];
  operands_.emplace(program_, *phase_, own.trip, &image_.variants_.parts(image_.number_));
  to = {};
  to.variant = image_.variants_.of(image_.number_, own.phase);
  to.phase = own.phase;
  to.trip = own.trip;
  to.grid = phase_->grid == kNone ? 0 : operands_->size(phase_->grid);
  to.base = image_.bases_[number];
  const Wait complete = wait_for(number);
  to.counter = complete.counter;
  to.complete_offset = static_cast<u32>(complete.offset);
  to.complete_stride = static_cast<u32>(complete.stride);
  to.readers = places_.arena + image_.rank_.readers + at(own.phase) * kLineBytes;
  if (image_.rank_parts_.pitch > 0) {
    to.parts_at = image_.rank_parts_.place[number];
    to.settles = static_cast<i16>(image_.rank_parts_.settles[number]);
    const int32_t taker = image_.rank_parts_.taker[number];
    to.by_norm = taker != kNone;
    if (taker != kNone) rank_sums_[taker] = number;
  }
  if (const RankShares& shares = image_.rank_shares_; shares.elements > 0) {
    to.share = static_cast<i16>(shares.number[number]);
    to.share_parts_at = static_cast<i32>(shares.parts_at[number] / 16);
  }
  fill_messages(to);
  fill_operands(number, to);
  fill_waits(number, to);
}

// ---- waits and messages

// Each instance has a counter, so that those of a phase need not wait for each other.
Wait InstanceFiller::wait_for(std::size_t instance) const {
  const auto processors = static_cast<u32>(image_.options_.processors);
  Wait w{};
  w.counter = places_.arena + image_.counters_ + instance * kLineBytes;
  w.stride = processors;
  w.offset = uint64_t{image_.options_.counter_base} + processors;
  return w;
}

void InstanceFiller::fill_waits(std::size_t number, Instance& to) {
  to.first_wait = static_cast<i32>(waits.size());
  // Of steps that tell alone; of both; of the others alone.
  const std::vector<int32_t>& needed = image_.needed_[number];
  const std::vector<int32_t>& by_few = image_.lamport_.floats > 0 ? image_.lamport_.needed[number] : needed;
  const auto add = [&](const std::vector<int32_t>& all, const std::vector<int32_t>& others, bool in_both) {
    const std::size_t before = waits.size();
    for (const int32_t n : all) {
      if ((std::ranges::count(others, n) > 0) == in_both) waits.push_back(wait_for(at(n)));
    }
    return static_cast<i32>(waits.size() - before);
  };
  to.few_waits = static_cast<i16>(add(by_few, needed, false));
  const std::size_t before_channels = waits.size();
  std::vector<ark::Wait> of_channels;
  const auto collect = [&](const Phase& phase) {
    for (const ark::Wait& wait : phase.waits)
      if (wait.kind != WaitKind::kPhase) of_channels.push_back(wait);  // others: by instance
  };
  collect(*phase_);
  for (const PhaseId also : image_.sends_.also_of(to.phase)) collect(program_.phases[also]);
  for (const ark::Wait& wait : of_channels) {
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
  const auto of_others = static_cast<std::ptrdiff_t>(before_channels),
             channel_waits = std::ssize(waits) - of_others;
  add(needed, by_few, true);
  to.more_waits = static_cast<i16>(add(needed, by_few, false));
  if (to.parts_at != 0) {  // messages are left out in steps that tell
    std::rotate(waits.begin() + of_others, waits.begin() + of_others + channel_waits, waits.end());
    to.more_waits = static_cast<i16>(to.more_waits + channel_waits);
  }
  to.waits = static_cast<i32>(waits.size()) - to.first_wait;
  if (to.waits > kMaxWaits) operands_->refuse("more than " + std::to_string(kMaxWaits) + " waits");
}

// Whose counters nobody waits for in steps that tell.
void InstanceFiller::fill_quiet() {
  std::vector<bool> is_awaited(schedule_.size());
  for (const std::vector<int32_t>& needed : image_.lamport_.needed) {
    for (const int32_t n : needed) is_awaited[at(n)] = true;
  }
  std::size_t filled = 0;
  for (std::size_t i = 0; i < schedule_.size(); ++i) {
    if (image_.is_gone(schedule_[i].phase)) continue;
    Instance& own = instances[filled++];
    own.is_quiet = image_.lamport_.floats > 0 && !is_awaited[i] && (own.messages == 0 || own.parts_at != 0);
  }
}

void InstanceFiller::fill_few() {
  std::size_t filled = 0;
  for (std::size_t i = 0; i < schedule_.size(); ++i) {
    if (image_.is_gone(schedule_[i].phase)) continue;
    const Instance& own = instances[filled++];
    if (image_.is_skipped(i)) {
      skipped.push_back(own.counter);
    } else {
      few_instances.push_back(own);
    }
  }
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
    to.links = static_cast<i16>(to.links | 1 << static_cast<int>(place.link));
    messages.push_back(m);
  };
  if (phase_->channel != kNone) add(phase_->channel);
  for (const PhaseId also : image_.sends_.also_of(to.phase)) add(program_.phases[also].channel);
  for (const BufferId id : operands_->ids()) {
    if (id == kNone || program_.buffers[id].kind != BufferKind::kInbox) continue;
    add(program_.buffers[id].channel);
    to.readers_period = image_.options_.processors;
  }
  to.messages = static_cast<i32>(messages.size()) - to.first_message;
  if (to.messages > kMaxMessages) operands_->refuse("more than " + std::to_string(kMaxMessages) + " peers");
}

// ---- operands and sizes

void InstanceFiller::fill_operands(std::size_t number, Instance& to) {
  const DeviceOp& op = device_op(operands_->variant().code);
  InstancePlaces places;
  for (const BufferId id : operands_->ids()) places.operands.push_back(address(id));
  if (!op.orders_operands) {
    if (places.operands.size() > kOperands)
      operands_->refuse("more than " + std::to_string(kOperands) + " operands");
    std::copy(places.operands.begin(), places.operands.end(), to.operands);
  }
  if (const auto heads = image_.heads_at_.find(phase_->variant); heads != image_.heads_at_.end()) {
    places.heads = places_.arena + image_.heads_offset_ + at(heads->second) * 4;
    places.partials = image_.attention_partials_ ? places_.arena + image_.attention_partials_ : 0;
    places.arrivals = places_.arena + image_.attention_arrivals_;
  }
  places.aux = places_.arena + image_.aux_ + number * kAuxSizes * sizeof(Size);
  places.aux_sizes = &aux[number * kAuxSizes];
  if (op.fill) op.fill(*operands_, places, to);
  if (image_.lamport_.floats > 0) {
    to.lamport_x = lamport_place(image_.lamport_.x[number]);
    to.lamport_out = lamport_place(image_.lamport_.out[number]);
  }
  if (const auto taken = image_.taken_up_.find(static_cast<int32_t>(number)); taken != image_.taken_up_.end())
    fill_shared(taken->second, to);
  if (const auto sum = rank_sums_.find(static_cast<int32_t>(number)); sum != rank_sums_.end())
    fill_rank_sum(sum->second, to);
  if (!is_product(op.code)) return;
  fill_appended(to);
  fill_sums(stream_, to);
  to.stream = image_.stream_at(stream_++, places_);
  to.stream.m = operands_->one_size(0, 0, operands_->rank(0) - 1, "the number of rows");
  streams.push_back(to.stream);
}

// Floats behind the first ones of all that is exchanged so.
uint64_t InstanceFiller::lamport_place(int64_t floats) const {
  return floats == kNone ? 0 : places_.arena + image_.lamport_rows_ + static_cast<uint64_t>(floats) * 4;
}
void InstanceFiller::fill_sums(std::size_t stream, Instance& to) const {
  if (image_.lamport_.floats == 0) return;
  to.lamport_sums = lamport_place(image_.lamport_.sums[stream]);
  to.sums_rows = static_cast<i16>(image_.lamport_.sums_rows[stream]);
}

// Of a product: what it does with its tiles instead of a phase behind it.
void InstanceFiller::fill_appended(Instance& to) {
  const Appended::Part* part = image_.appended().of(to.phase);
  if (!part) return;
  const PhaseOperands append(program_, program_.phases[part->append], operands_->trip());
  InstancePlaces places;
  for (const BufferId id : append.ids()) places.operands.push_back(address(id));
  cuda::fill_appended(append, places, *part, image_.variants_.of(image_.number_, part->append), to);
}

// Of a norm: what it takes up, whose last operands are bias, residual and output.
PhaseOperands InstanceFiller::fill_taken_up(std::size_t instance, Instance& to) {
  const ark::Instance& own = schedule_[instance];
  const PhaseOperands taken(program_, program_.phases[own.phase], own.trip);
  const std::size_t residual = taken.count() - 2, bias = residual - 1;
  to.norm.taken_bias = taken.has(bias) ? address(taken.id(bias)) : 0;
  to.norm.taken_residual = taken.has(residual) ? address(taken.id(residual)) : 0;
  to.norm.taken_epilogue = static_cast<Size>(taken.variant().epilogue);
  return taken;
}
// What the tiles of a product share.
void InstanceFiller::fill_shared(std::size_t stream, Instance& to) {
  const PhaseOperands product = fill_taken_up(at(image_.stream_instances_[stream]), to);
  fill_sums(stream, to);
  to.stream = image_.stream_at(stream, places_);
  to.stream.m = product.one_size(0, 0, product.rank(0) - 1, "the number of rows");
}
// A sum over ranks, in steps that tell.
void InstanceFiller::fill_rank_sum(std::size_t instance, Instance& to) {
  fill_taken_up(instance, to);
  to.parts_at = image_.rank_parts_.place[instance];
  to.by_norm = 1;
}

}  // namespace ark::cuda
