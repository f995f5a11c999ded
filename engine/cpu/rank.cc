#include "engine/cpu/rank.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/index.h"
#include "engine/cpu/kernels.h"
#include "engine/program/unroll.h"

namespace ark {

// ---- between steps

int32_t Rank::most_processors(uint64_t n) const {
  const auto asked = static_cast<int32_t>(mailbox_.record(n).processors);
  return asked > 0 ? std::min(asked, options_.processors) : options_.processors;
}

void Rank::begin_step(uint64_t n, int32_t active) {
  active_ = active;
  frame_.step = static_cast<int64_t>(n) - 1;
  const PlainStep* plain = mailbox_.plain(n);
  frame_.is_plain = plain != nullptr;
  if (plain) {
    read_plain(*plain);
  } else {
    read_descriptor(mailbox_.record(n));
  }
  for (std::size_t s = 0; s < summed_.size(); ++s)
    sums_->open(s, static_cast<uint64_t>(frame_.step), views_[summed_[s]].size());
}

void Rank::read_plain(const PlainStep& step) {
  set_sizes(step.symbols);
  for (std::size_t b = 0; b < views_.size(); ++b) {
    const Buffer& buffer = program_.buffers[root(program_, static_cast<BufferId>(b))];
    if (buffer.kind == BufferKind::kInput) views_[b].data = step.inputs[buffer.cache].data;
    if (buffer.kind == BufferKind::kOutput) views_[b].data = step.outputs[buffer.cache].data;
  }
}

void Rank::read_descriptor(const StepRecord& record) {
  for (const PageDelta& d : array_of<PageDelta>(record, StepArray::kPageDeltas)) {
    state_.page_tables[at(d.slot) * at(state_.pages_per_slot) + at(d.index)] = d.page;
  }
  copy_pages(array_of<PageCopy>(record, StepArray::kPageCopies));
  frame_.rows = array_of<StepRow>(record, StepArray::kRows);
  frame_.bias = array_of<BiasEntry>(record, StepArray::kBias);
  frame_.masks = array_of<uint32_t>(record, StepArray::kMasks);
  const auto tokens = array_of<int32_t>(record, StepArray::kTokens);
  frame_.positions.resize(tokens.size());
  frame_.slots.resize(tokens.size());
  frame_.items.clear();
  auto* ids = views_[program_.token_ids].as<int32_t>();
  for (const StepSequence& s : array_of<StepSequence>(record, StepArray::kSequences)) {
    const int32_t* table = state_.table(s.slot);
    for (int32_t i = 0; i < s.count; ++i) {
      const int32_t token = tokens[s.first + i], position = s.kv_length + i;
      // Fed back: the slot's last sample, written in an earlier step that all processors have left.
      const int32_t id = token == kFeedbackToken ? state_.last_tokens[s.slot] : token;
      ids[s.first + i] = id;
      frame_.positions[s.first + i] = position;
      frame_.slots[s.first + i] = s.slot;
      state_.page_tokens[at(table[position / state_.page_size]) * at(state_.page_size) +
                         at(position % state_.page_size)] = id;
    }
    for (int32_t i = 0, count = 0; i < s.count; i += count) {
      count = item_tokens(s.kv_length + i, s.count - i, kItemTokens);
      frame_.items.push_back({s.slot, s.first + i, count, s.kv_length + i});
    }
  }
  if (program_.positions != kNone) {
    std::copy(frame_.positions.begin(), frame_.positions.end(), views_[program_.positions].as<int32_t>());
  }
  set_sizes({{"items", static_cast<int64_t>(frame_.items.size())},
             {"pages", options_.limits.pages},
             {"rows", static_cast<int64_t>(frame_.rows.size())},
             {"tokens", static_cast<int64_t>(tokens.size())}});
}

std::byte* Rank::page_part(const PageBuffer& buffer, int32_t page) const {
  ARK_CHECK(page >= 0 && page < options_.limits.pages, "no such page: " + std::to_string(page));
  return buffer.start + page * buffer.bytes;
}

void Rank::copy_pages(std::span<const PageCopy> copies) {
  const auto tokens_of = [&](int32_t page) {
    return state_.page_tokens.begin() + std::ptrdiff_t{page} * state_.page_size;
  };
  for (const PageCopy& copy : copies) {
    for (const PageBuffer& buffer : page_buffers_)
      std::memcpy(page_part(buffer, copy.to), page_part(buffer, copy.from), at(buffer.bytes));
    std::copy_n(tokens_of(copy.from), state_.page_size, tokens_of(copy.to));
  }
}

void Rank::read_page(int32_t page, std::byte* to) const {
  for (const PageBuffer& buffer : page_buffers_) {
    std::memcpy(to, page_part(buffer, page), at(buffer.bytes));
    to += buffer.bytes;
  }
}

void Rank::write_page(int32_t page, std::span<const int32_t> tokens, const std::byte* from) {
  ARK_CHECK(std::ssize(tokens) == state_.page_size, "a page has as many tokens as fit in it");
  for (const PageBuffer& buffer : page_buffers_) {
    std::memcpy(page_part(buffer, page), from, at(buffer.bytes));
    from += buffer.bytes;
  }
  std::ranges::copy(tokens, state_.page_tokens.begin() + std::ptrdiff_t{page} * state_.page_size);
}

void Rank::set_sizes(const SymbolValues& symbols) {
  if (!vals_.empty() && symbols == symbols_) return;
  symbols_ = symbols;
  vals_.resize(program_.vals.size());
  for (std::size_t v = 0; v < vals_.size(); ++v) vals_[v] = program_.vals[v].e.evaluate(symbols);
  for (std::size_t b = 0; b < views_.size(); ++b)
    views_[b] = views_[b].sized(dims_of(program_.buffers[b], false));
  for (std::size_t p = 0; p < phases_.size(); ++p) {
    const Phase& phase = program_.phases[p];
    PhaseInfo& info = phases_[p];
    if (info.attributes) info.attributes = program_.variants[phase.variant].attributes.evaluated(symbols);
    info.grid = phase.grid == kNone ? generic_grid(static_cast<PhaseId>(p)) : vals_[phase.grid];
  }
}

int64_t Rank::generic_grid(PhaseId p) const {
  const Phase& phase = program_.phases[p];
  const Variant& variant = program_.variants[phase.variant];
  const PhaseInfo& info = phases_[p];
  std::vector<TensorView> views;
  for (const Operand& operand : phase.operands) {
    const BufferId b = resolve(program_, phase, operand, 0);
    views.push_back(b == kNone ? TensorView{} : views_[b]);
  }
  const std::span<const TensorView> all(views);
  const std::size_t inputs = views.size() - at(info.outputs);
  const Attributes& attributes = info.attributes ? *info.attributes : variant.attributes;
  return find_cpu_kernel(variant.op)->grid({variant.op, &attributes, all.first(inputs), all.subspan(inputs)});
}

void Rank::end_step(uint64_t n) {
  ARK_CHECK(frame_.step + 1 == static_cast<int64_t>(n), "the end of a step that did not run");
  // Release: pairs with the host's acquire in Mailbox::is_done.
  mailbox_.done_counter(reader_).raise();
}

// ---- waits

int64_t Rank::own_instance(const Instance& i) const {
  return frame_.step * trips_of(program_, i.phase) + i.trip;
}

template <typename F>
auto Rank::with_target(const Instance& i, const Wait& wait, F&& f) const {
  using Result = decltype(f(counters_[0], uint32_t{}, "", 0));
  if (wait.kind == WaitKind::kPhase) {
    const int64_t instance = awaited(program_, wait, {i.phase, i.trip}, frame_.step);
    return instance < 0 ? Result{} : f(counters_[wait.phase], target(instance), "earlier phase", -1);
  }
  const Link& link = links_[wait.channel];
  const int peer = program_.channels[wait.channel].peer;
  const bool arrival = wait.kind == WaitKind::kArrived;
  for (const Instance::Message& m : arrival ? i.receives : i.sends) {
    if (m.channel != wait.channel) continue;
    const uint64_t number = message(link, m.ordinal);
    if (arrival) {
      const uint64_t commits = (number + 1) * static_cast<uint64_t>(options_.processors);
      return f(*link.receiver.arrived, link.receiver.first_count + commits, "message", peer);
    }
    if (number < link.sender.slots) break;
    return f(*link.sender.credit, link.sender.first_count + number + 1 - link.sender.slots, "credit", peer);
  }
  return Result{};
}

bool Rank::is_ready(const Instance& i) const {
  const auto is_behind = [](auto& counter, auto value, const char*, int) {
    return !counter.has_reached(value);
  };
  const std::vector<Wait>& waits = phase_of(i).waits;
  return std::none_of(waits.begin(), waits.end(),
                      [&](const Wait& w) { return with_target(i, w, is_behind); });
}

dma::Fault Rank::wait(const Instance& i, int32_t processor, bool barrier, const dma::WaitContext& context) {
  const auto step = static_cast<uint64_t>(frame_.step);
  const bool is_one = i.sum != kNone && sums_->awaits_arrivals(at(i.sum), step);
  std::size_t place = phases_[i.phase].first_wait;
  for (const Wait& wait : phase_of(i).waits) {
    const std::size_t own = place++;
    if ((barrier && wait.kind == WaitKind::kPhase) || (is_one && wait.kind == WaitKind::kArrived)) continue;
    const auto until = [&](auto& counter, auto value, const char* what, int peer) {
      return dma::wait_foreseen(counter.reached(value), point(what, i, processor, peer), context,
                                processors_[processor].foresight, own);
    };
    if (dma::Fault fault = with_target(i, wait, until)) return fault;
  }
  if (i.sum == kNone) return {};
  return sums_->await(at(i.sum), step, point("message", i, processor), context,
                      processors_[processor].foresight, waits_ + at(i.sum));
}

dma::Fault Rank::wait_all(const Instance& i, int32_t processor, const dma::WaitContext& context) {
  return dma::wait_reached(counters_[i.phase], target(own_instance(i)), point("barrier", i, processor),
                           context);
}

// ---- work

void Rank::gather_operands(const Instance& i, std::vector<TensorView>& views) const {
  const Phase& phase = phase_of(i);
  views.clear();
  for (const Operand& operand : phase.operands) {
    const BufferId b = resolve(program_, phase, operand, i.trip);
    views.push_back(b == kNone ? TensorView{} : views_[b]);
    if (b == kNone || program_.buffers[b].kind != BufferKind::kInbox) continue;
    for (const Instance::Message& m : i.receives) {
      if (m.channel != program_.buffers[b].channel) continue;
      const Link& link = links_[m.channel];
      views.back().data = const_cast<std::byte*>(link.receiver.slot(message(link, m.ordinal)));
    }
  }
}

void Rank::run(const Instance& i, int32_t processor) {
  const PhaseInfo& info = phases_[i.phase];
  const Range tiles = tiles_of(info.grid, processor, active_);
  processors_[processor].sent = {};
  // A plain graph's operands are looked at even where they make nothing.
  if (tiles.size() == 0 && !info.kernel->deals && !frame_.is_plain) return;
  const Phase& phase = phase_of(i);
  Processor& own = processors_[processor];
  gather_operands(i, own.views);
  own.scratch.reset();
  PhaseCall call;
  call.variant = &program_.variants[phase.variant];
  call.facts = &info.facts;
  call.operands = own.views;
  if (phase.operands.size() > 1) {
    const BufferId b = resolve(program_, phase, phase.operands[1], i.trip);
    if (b != kNone && program_.buffers[b].weight != kNone)
      call.weight = &program_.weights[program_.buffers[b].weight];
  }
  call.attributes = info.attributes ? &*info.attributes : &call.variant->attributes;
  call.outputs = info.outputs;
  call.rank = program_.rank;
  call.ranks = program_.ranks;
  if (!i.receives.empty()) {  // those whose parts it has, in rank order
    call.ranks = static_cast<int32_t>(i.receives.size()) + 1;
    call.rank = static_cast<int32_t>(std::count_if(i.receives.begin(), i.receives.end(), [&](const auto& m) {
      return program_.channels[m.channel].peer < program_.rank;
    }));
  }
  if (i.sum != kNone) call.sum = sums_->in_place(at(i.sum), static_cast<uint64_t>(frame_.step));
  if (!i.sends.empty()) {
    const Link& link = links_[i.sends[0].channel];
    call.outbox = link.sender.slot(message(link, i.sends[0].ordinal));
    call.sent = &own.sent;
  }
  call.simd = &simd_;
  call.frame = &frame_;
  call.state = &state_;
  if (reader_ == 0 && call.variant->code == OpCode::kSample) {
    const uint64_t n = static_cast<uint64_t>(frame_.step) + 1;
    call.results = mailbox_.result_rows(n);
    call.logits = mailbox_.result_logits(n, 0);
  }
  call.scratch = &own.scratch;
  call.grid = info.grid;
  call.first = tiles.begin;
  call.last = tiles.end;
  call.processor = processor;
  call.processors = active_;
  if (info.joins && active_ > 1)
    call.shared = {reinterpret_cast<float*>(shared_.region.base), at(shared_floats_)};
  try {
    info.kernel->run(call);
    if (!call.shared.empty()) {
      // Acquire-release: the last one's join() stands behind what the others wrote.
      const auto last = static_cast<uint32_t>(active_) - 1;
      if (joining_.count.fetch_add(1, std::memory_order_acq_rel) == last) {
        joining_.count.store(0, std::memory_order_relaxed);  // the next one to add waits for this phase
        info.kernel->join(call);
      }
    }
  } catch (const Error& error) {
    throw Error(error.code(), "node " + escaped(phase.name) + ": " + error.what());
  }
}

dma::Fault Rank::finish(const Instance& i, int32_t processor, const dma::WaitContext& context) {
  for (const Instance::Message& m : i.sends) {
    // Each processor commits the bytes of its own tiles; the receiver waits for all commits.
    const Range sent = processors_[processor].sent;
    const Link& link = links_[m.channel];
    if (dma::Fault fault = link.sender.commit(message(link, m.ordinal), static_cast<uint64_t>(sent.begin),
                                              static_cast<uint64_t>(sent.size()), context)) {
      return fault;
    }
    for (int32_t more = signals_of(processor); --more > 0;) {
      if (dma::Fault fault = link.sender.commit(message(link, m.ordinal), 0, 0, context)) return fault;
    }
    const TensorView& x = views_[resolve(program_, phase_of(i), phase_of(i).operands[0], i.trip)];
    const Range tiles = tiles_of(phases_[i.phase].grid, processor, active_);
    const int64_t all = bytes_of(x.dtype, x.size());
    const int64_t own = std::min(tiles.end * kSendTile, all) - std::min(tiles.begin * kSendTile, all);
    processors_[processor].sent_bytes += {sent.size(), own - sent.size()};
  }
  if (!i.receives.empty()) {
    if (processor == 0 && program_.variants[phase_of(i).variant].code != OpCode::kRecvConcat) {
      const bool by_pump = i.sum != kNone && sums_->in_place(at(i.sum), static_cast<uint64_t>(frame_.step));
      reduced_ += {by_pump, !by_pump};
    }
    // The last processor that has read the inboxes returns their credits. Acquire-release: its release()
    // stands behind the others' reads.
    const auto own = static_cast<uint32_t>(signals_of(processor));
    const uint32_t before = readers_[i.phase].count.fetch_add(own, std::memory_order_acq_rel);
    if ((before + own) % static_cast<uint32_t>(options_.processors) == 0) {
      for (const Instance::Message& m : i.receives) {
        if (dma::Fault fault = links_[m.channel].receiver.release(context)) return fault;
      }
    }
  }
  // Release: publishes this processor's tiles; pairs with the acquire in wait().
  counters_[i.phase].raise(static_cast<uint32_t>(signals_of(processor)));
  return {};
}

}  // namespace ark
