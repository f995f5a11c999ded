// Binding of a program to memory, channels and kernels, before the first step.
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "engine/cpu/rank.h"
#include "engine/program/unroll.h"

namespace ark {
namespace {

constexpr int64_t kLine = 64;  // cache line; vectors may read up to the end of a buffer's last one
int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

uint32_t dma_channel_of(const Program& program, int32_t channel) {
  const Channel& own = program.channels[channel];
  uint32_t number = 0;
  for (const Channel& c : program.channels) {
    if (c.peer == own.peer && c.outgoing == own.outgoing && c.name < own.name) ++number;
  }
  return number;
}

Rank::Rank(const RankSetup& setup, const ExecutorOptions& options, Mailbox& mailbox, int reader)
    : program_(*setup.program),
      options_(options),
      mailbox_(mailbox),
      reader_(reader),
      simd_(simd::table_of(options.isa)),
      phases_(program_.phases.size()),
      links_(program_.channels.size()),
      counters_(program_.phases.size()),
      readers_(program_.phases.size()),
      processors_(at(options.processors)),
      active_(options.processors) {
  ARK_CHECK(options.processors > 0, "a rank needs at least one processor");
  ARK_CHECK(setup.group || program_.channels.empty(), "a program with channels needs a group");
  // Relaxed: nobody else sees the counters yet.
  for (dma::Counter32& c : counters_) c.value.store(options.counter_base, std::memory_order_relaxed);
  schedule_phases();
  if (setup.group) bind_channels(*setup.group);
  allocate(*setup.binding, *setup.weights);
  if (setup.group) bind_sums(*setup.group);
  bind_kernels();
  if (!sums_) return;
  pump_ = &setup.group->endpoint().pump();
  pump_->look_after(sums_.get());  // last: what throws before has told it nothing
}

Rank::~Rank() {
  if (pump_) pump_->look_after(nullptr);
}

void Rank::schedule_phases() {
  for (const auto& [p, trip] : unroll(program_)) {
    Instance& instance = schedule_.emplace_back(Instance{p, trip, {}, {}, kNone});
    const Phase& phase = program_.phases[p];
    if (phase.channel != kNone) instance.sends.push_back({phase.channel, links_[phase.channel].messages++});
    for (const Operand& operand : phase.operands) {
      const BufferId b = resolve(program_, phase, operand, trip);
      if (b == kNone || program_.buffers[b].kind != BufferKind::kInbox) continue;
      const int32_t channel = program_.buffers[b].channel;
      instance.receives.push_back({channel, links_[channel].messages++});
    }
  }
}

void Rank::bind_channels(dma::Group& group) {
  for (std::size_t c = 0; c < links_.size(); ++c) {
    const Channel& channel = program_.channels[c];
    const uint32_t number = dma_channel_of(program_, static_cast<int32_t>(c));
    if (channel.outgoing) {
      links_[c].sender = group.sender(channel.peer, number);
    } else {
      links_[c].receiver = group.receiver(channel.peer, number);
    }
  }
}

// Where the own part of the sum `n` was last sent to one of its peers, if it is still in the outbox, as it is, when the
// sum is made; else `n`.
std::size_t Rank::sent_before(std::size_t n) const {
  const auto own_part = [&](const Instance& i) {
    const Phase& phase = program_.phases[i.phase];
    return resolve(program_, phase, phase.operands[0], i.trip);
  };
  const BufferId own = own_part(schedule_[n]);
  std::vector<uint32_t> sent(links_.size());  // messages since
  for (std::size_t s = n; s-- > 0;) {
    const Instance& i = schedule_[s];
    for (const Instance::Message& m : i.sends) {
      const bool is_peer = std::ranges::any_of(schedule_[n].receives, [&](const auto& received) {
        return program_.channels[received.channel].peer == program_.channels[m.channel].peer;
      });
      const bool is_whole = program_.variants[program_.phases[i.phase].variant].code == OpCode::kSend;
      if (is_peer && is_whole && own_part(i) == own)
        return sent[m.channel] < links_[m.channel].sender.slots ? s : n;
      ++sent[m.channel];
    }
    for (const Access& access : accesses(program_, {i.phase, i.trip}))
      if (access.writes && access.buffer == root(program_, own)) return n;
  }
  return n;
}

// All-reduces by posted links alone. What every processor writes behind them is written behind a pump that adds, too:
// so the outbox slots of the own part stay as they are.
void Rank::bind_sums(dma::Group& group) {
  // Processors with a core each look for long: they are awake when the parts come, and a pump that takes some sums from
  // them made steps slower (docs/dma.md).
  const bool look_long =
      dma::SpinPolicy::adapted(processors_here(program_, options_)).spins > dma::Foresight::kBrief;
  if (options_.sums == dma::SumsBy::kProcessors || (options_.sums == dma::SumsBy::kDepth && look_long))
    return;
  std::vector<dma::ArrivalSums::Sum> sums;
  const auto commits = static_cast<uint64_t>(options_.processors);
  const auto is_posted = [](const auto& end) { return end.link == dma::Link::kPosted; };
  for (std::size_t n = 0; n < schedule_.size(); ++n) {
    Instance& own = schedule_[n];
    const Phase& phase = program_.phases[own.phase];
    if (program_.variants[phase.variant].code != OpCode::kRecvReduce || own.receives.empty()) continue;
    const std::size_t sent = sent_before(n);
    if (sent == n || !is_posted(links_[schedule_[sent].sends[0].channel].sender)) continue;
    if (!std::ranges::all_of(own.receives,
                             [&](const auto& m) { return is_posted(links_[m.channel].receiver); }))
      continue;
    const auto messages = [&](const Instance::Message& m) {
      return static_cast<uint64_t>(links_[m.channel].messages);
    };
    const Instance::Message& to = schedule_[sent].sends[0];
    const auto own_part = dma::ArrivalSums::Part::of(
        links_[to.channel].sender, group.endpoint().pump().taken(links_[to.channel].sender.route),
        static_cast<uint64_t>(to.ordinal), messages(to), commits);
    dma::ArrivalSums::Sum sum;
    for (const Instance::Message& m : own.receives) {
      const int peer = program_.channels[m.channel].peer;
      if (peer > program_.rank && sum.parts.size() == static_cast<std::size_t>(&m - own.receives.data()))
        sum.parts.push_back(own_part);
      sum.parts.push_back(dma::ArrivalSums::Part::of(links_[m.channel].receiver,
                                                     static_cast<uint64_t>(m.ordinal), messages(m), commits));
      sum.counts_arrivals = sum.counts_arrivals && group.endpoint().counts_arrivals(peer);
    }
    if (sum.parts.size() == own.receives.size()) sum.parts.push_back(own_part);
    own.sum = static_cast<int32_t>(sums.size());
    sums.push_back(std::move(sum));
    summed_.push_back(resolve(program_, phase, phase.operands[0], own.trip));
  }
  if (sums.empty()) return;
  // The tree that recv_reduce has, by the same code.
  const dma::Adder adder{
      [](const void* simd, const float* const* parts, int count, float* sum, int64_t floats) {
        static_cast<const simd::Table*>(simd)->add_parts(parts, count, {}, sum, floats);
      },
      &simd_};
  sums_ = std::make_unique<dma::ArrivalSums>(std::move(sums), adder, options_.sums);
}

Dims Rank::dims_of(const Buffer& buffer, bool greatest) const {
  Dims dims;
  for (ValId v : buffer.dims) dims.push_back(greatest ? program_.vals[v].max : vals_[v]);
  if (buffer.kind == BufferKind::kKvPage) dims[0] = options_.limits.pages;
  return dims;
}

void Rank::allocate(const Binding& binding, const WeightStore& weights) {
  // Activations first, then what has no place in the binding, each at its greatest size. Keys and values lie apart:
  // of their memory only what sequences have filled is ever touched.
  views_.resize(program_.buffers.size());
  std::vector<int64_t> own(views_.size(), -1);
  int64_t total = aligned(binding.act_bytes), paged = 0;
  for (std::size_t b = 0; b < views_.size(); ++b) {
    const Buffer& buffer = program_.buffers[b];
    if (buffer.alias != kNone || (buffer.kind != BufferKind::kKvPage && buffer.kind != BufferKind::kIo))
      continue;
    int64_t& end = buffer.kind == BufferKind::kKvPage ? paged : total;
    own[b] = end;
    const bool is_paged = buffer.kind == BufferKind::kKvPage;
    end += aligned(is_paged ? ark::page_bytes(program_, buffer) * options_.limits.pages
                            : bytes_of(buffer.dtype, element_count(dims_of(buffer, true))));
  }
  memory_ = dma::allocate_private(static_cast<uint64_t>(total + kLine), "activations");
  pages_ =
      dma::allocate_private(static_cast<uint64_t>(paged + kLine), "keys and values", dma::PageSize::kSmall);
  for (std::size_t b = 0; b < views_.size(); ++b) {
    const BufferId owner = root(program_, static_cast<BufferId>(b));
    const Buffer& buffer = program_.buffers[owner];
    ARK_CHECK(buffer.dims.size() <= 8, "buffer " + escaped(buffer.name) + " has more than 8 axes");
    TensorView& view = views_[b];
    view.dtype = buffer.dtype;
    if (buffer.kind == BufferKind::kWeight) view.data = weights.address(buffer.weight);
    if (buffer.kind == BufferKind::kAct) view.data = memory_.region.base + binding.offsets[owner];
    const dma::Region& region = buffer.kind == BufferKind::kKvPage ? pages_.region : memory_.region;
    if (own[owner] >= 0) view.data = region.base + own[owner];
    if (buffer.kind != BufferKind::kKvPage || static_cast<std::size_t>(owner) != b) continue;
    page_buffers_.push_back({view.data, ark::page_bytes(program_, buffer)});
    page_bytes_ += page_buffers_.back().bytes;
  }
  const RunnerLimits& limits = options_.limits;
  if (limits.page_size <= 0) return;  // plain
  state_.page_size = limits.page_size;
  state_.pages_per_slot = (limits.max_length + limits.page_size - 1) / limits.page_size;
  state_.page_tables.assign(at(limits.max_slots) * at(state_.pages_per_slot), 0);
  state_.last_tokens.assign(at(limits.max_slots), 0);
  state_.page_tokens.assign(at(limits.pages) * at(limits.page_size), 0);
}

KvPages Rank::kv_pages(BufferId pages) const {
  const Buffer& buffer = program_.buffers[pages];
  return {views_[pages].sized(dims_of(buffer, true)), buffer.is_value};
}

// Whether what the instance's processors share is free again when the next one that shares comes: a phase from then on,
// which all processors pass in order, waits for it. A step's last one has its end behind it.
bool Rank::is_awaited_in_time(std::size_t n) const {
  const Instance& own = schedule_[n];
  for (std::size_t next = n + 1; next < schedule_.size(); ++next) {
    const Instance& i = schedule_[next];
    for (const Wait& wait : program_.phases[i.phase].waits) {
      if (wait.kind == WaitKind::kPhase && wait.phase == own.phase &&
          awaited(program_, wait, {i.phase, i.trip}, 0) >= own.trip)
        return true;
    }
    if (find_step_kernel(program_.variants[program_.phases[i.phase].variant].code).join) return false;
  }
  return true;
}

void Rank::bind_kernels() {
  int64_t scratch = 0;
  for (std::size_t p = 0; p < phases_.size(); ++p) {
    const Phase& phase = program_.phases[p];
    const Variant& variant = program_.variants[phase.variant];
    PhaseInfo& info = phases_[p];
    info.first_wait = std::exchange(waits_, waits_ + phase.waits.size());
    info.kernel = &find_step_kernel(variant.code);
    info.facts = VariantFacts::of(variant);
    if (variant.code == OpCode::kGeneric) {
      if (!find_kernel(variant.op)) {
        throw Error(Code::kUnsupported, "node " + escaped(phase.name) + ": no CPU kernel for operator " +
                                            std::string(name_of(variant.op)));
      }
      info.outputs = variant.outputs;
      if (variant.attributes.has_symbols()) info.attributes = variant.attributes;
    }
    if (!info.kernel->scratch) continue;
    std::vector<TensorView> views;
    for (const Operand& operand : phase.operands) {
      const BufferId b = resolve(program_, phase, operand, 0);
      TensorView view;
      if (b != kNone) {
        view.dtype = program_.buffers[b].dtype;
        view = view.sized(dims_of(program_.buffers[b], true));
      }
      views.push_back(view);
    }
    const PhaseLimits limits{&variant, &info.facts, views, int64_t{state_.pages_per_slot} * state_.page_size,
                             options_.processors};
    scratch = std::max(scratch, info.kernel->scratch(limits));
    info.joins = info.kernel->join != nullptr;
    if (info.joins) shared_floats_ = std::max(shared_floats_, info.kernel->shared(limits));
  }
  for (std::size_t n = 0; n < schedule_.size(); ++n)
    if (phases_[schedule_[n].phase].joins && !is_awaited_in_time(n))
      phases_[schedule_[n].phase].joins = false;
  if (shared_floats_ > 0) {
    shared_ = dma::allocate_private(static_cast<uint64_t>(shared_floats_) * sizeof(float),
                                    "parts of attention", dma::PageSize::kSmall);
  }
  const char* naps = std::getenv("ARK_NAPS");
  for (Processor& processor : processors_) {
    processor.scratch = Scratch(std::max<int64_t>(scratch, kLine));
    processor.foresight =
        dma::Foresight(waits_ + summed_.size(), naps == nullptr || std::string_view(naps) != "off");
  }
}

}  // namespace ark
