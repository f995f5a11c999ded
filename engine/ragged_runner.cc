#include "engine/ragged_runner.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"
#include "dma/message.h"
#include "dma/preflight.h"
#include "dma/transports.h"
#include "engine/cuda/nic_boxes.h"
#include "engine/program/unroll.h"
#include "engine/run/mailbox.h"
#include "engine/run/step_words.h"

namespace ark {
namespace {

// One dma channel for each kind that the programs use, then, among processes, the one that carries step
// records. Names say what all ranks must have alike: groups refuse each other by them.
dma::EndpointSpec endpoint_spec(const Compiled& compiled, const RaggedOptions& options, bool processes) {
  dma::EndpointSpec spec;
  const bool on_gpu = options.gpu != nullptr;
  // Every rank samples for itself: GPUs of two kinds could take different tokens of a near tie.
  const char* numerics = options.device.numerics == cuda::Numerics::kExact ? ", exact" : ", fast";
  const std::string place = on_gpu ? " of " + options.gpu->info().arch + " GPUs" + numerics : "";
  for (const Program& program : compiled.programs) {
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      const uint32_t number = dma_channel_of(program, static_cast<int32_t>(c));
      while (spec.channels.size() <= number)
        spec.channels.push_back({.name = "exchange " + std::to_string(spec.channels.size()) + place,
                                 .by_devices = on_gpu && processes});
      uint64_t& bytes = spec.channels[number].slot_bytes;
      bytes = std::max(bytes, static_cast<uint64_t>(inbox_half(program.channels[c])));
      if (program.channels[c].link == Link::kPosted) spec.force_posted = true;
    }
  }
  if (on_gpu && processes) spec.device = cuda::nic_boxes(options.gpu, options.device.peer_links);
  if (processes) {
    // A GPU posts on the ring of kDecode, which is its own then.
    const dma::Priority priority = on_gpu ? dma::Priority::kBulk : dma::Priority::kDecode;
    // GPUs try their memory on it (try_nic_boxes); and a rank on a CPU is to be told apart from them.
    spec.channels.push_back(StepWords::channel(priority));
    spec.channels.back().by_devices = on_gpu;
    spec.channels.push_back(dma::preflight_channel(priority));
    spec.channels.push_back(
        {.name = "steps for " + std::to_string(options.limits.pages) + " pages",
         .priority = priority,
         .slots = Mailbox::kDepth,
         .slot_bytes = dma::message_slot_bytes(record_bytes(StepCapacity::of(options.limits)))});
  }
  return spec;
}

// The ranks of this process, ready to run.
class Engine {
 public:
  // `group` empty: all ranks, local.
  Engine(Compiled compiled, const RaggedOptions& options, std::unique_ptr<dma::Group> group)
      : compiled_(std::move(compiled)), limits_(options.limits) {
    ARK_CHECK(limits_.pages > 0, "a runner without pages");
    const int ranks = static_cast<int>(compiled_.programs.size());
    std::vector<int> own;
    if (group) {
      own.push_back(group->rank());
      groups_.push_back(std::move(group));
    } else {
      for (int r = 0; r < ranks; ++r) own.push_back(r);
      if (ranks > 1) make_groups(options);
    }
    for (int r : own) {
      std::shared_ptr<WeightStore> packed;
      if (!compiled_.packed.empty()) packed = compiled_.packed[static_cast<std::size_t>(r)];
      if (!packed)
        packed = std::make_shared<WeightStore>(compiled_.programs[r], compiled_.constants,
                                               options.here.threads(options.threads, ranks),
                                               options.here.node(r, ranks, options.threads));
      weights_.push_back(std::move(packed));
      if (options.on_packed) options.on_packed(r, *weights_.back());
    }
    // The payloads are packed: files close, folded constants go.
    compiled_.packed.clear();
    compiled_.constants.clear();
    compiled_.graph = {};
    std::vector<RankSetup> setups;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto r = static_cast<std::size_t>(own[i]);
      setups.push_back({&compiled_.programs[r], &compiled_.bindings[r], weights_[i].get(),
                        groups_.empty() ? nullptr : groups_[i].get()});
    }
    executor_ = make_executor(options);
    try {
      executor_->prepare(std::move(setups), executor_options(options, own[0]));
    } catch (const Error& error) {
      if (own.size() == 1 && !groups_.empty()) tell_peers(error.what());
      throw;
    }
    limits_.processors = device_ ? 0 : executor_options(options, own[0]).processors;
    if (!device_) return;
    for (const auto& store : weights_) store->release();  // the GPU has them
  }

  Executor& executor() { return *executor_; }
  cuda::DeviceExecutor* device() { return device_; }
  const Program& program() const { return compiled_.programs[0]; }

  // Calls f(executor, place, first element in `heads`, elements) for every head of a cached token.
  template <typename F>
  void for_heads(const RaggedRunner::CachedToken& token, F&& f) const {
    if (!host_) throw Error(Code::kUnsupported, "caches of a GPU cannot be reached");
    if (weights_.size() != compiled_.programs.size())
      throw Error(Code::kUnsupported, "caches of ranks in other processes cannot be reached");
    for (std::size_t r = 0; r < compiled_.programs.size(); ++r) {
      const Program& program = compiled_.programs[r];
      for (std::size_t b = 0; b < program.buffers.size(); ++b) {
        const Buffer& buffer = program.buffers[b];
        if (buffer.kind != BufferKind::kKvPage || buffer.cache != token.cache || buffer.alias != kNone ||
            buffer.is_value != token.values)
          continue;
        const int64_t dim = program.vals[buffer.dims[3]].max;
        const Range own = compiled_.kv_heads.at(static_cast<std::size_t>(token.cache))[r];
        for (int64_t h = own.begin; h < own.end; ++h)
          f(*host_, {r, static_cast<BufferId>(b), token.page, token.at, static_cast<int32_t>(h - own.begin)},
            at(h * dim), at(dim));
      }
    }
  }
  const RunnerLimits& limits() const { return limits_; }
  // The executor, where it has all ranks' pages in this process's memory; else null.
  HostExecutor* reachable() const { return weights_.size() == compiled_.programs.size() ? host_ : nullptr; }
  dma::Group& group() { return *groups_[0]; }
  std::string_view transport() const { return groups_.empty() ? "memory" : groups_[0]->transport(); }
  // Among processes: why this rank ends, for the messages of the others, unless a peer's death is the cause.
  void tell_peers(const std::string& why) {
    if (group().death().empty()) group().report_dead(group().rank(), why);
  }

  RunnerMemory memory() const {
    const bool is_alone = weights_.size() == 1 && compiled_.programs.size() > 1;
    return memory_of(compiled_, limits_.pages, is_alone ? groups_[0]->rank() : -1);
  }

 private:
  std::unique_ptr<Executor> make_executor(const RaggedOptions& options) {
    if (options.gpu) {
      std::unique_ptr<cuda::DeviceExecutor> executor =
          cuda::make_device_executor(options.gpu, options.device);
      device_ = executor.get();
      return executor;
    }
    std::unique_ptr<HostExecutor> executor =
        options.lockstep ? make_lockstep_executor() : make_loop_executor();
    host_ = executor.get();
    return executor;
  }

  void make_groups(const RaggedOptions& options) {
    dma::EndpointSpec spec = endpoint_spec(compiled_, options, false);
    spec.force_posted = spec.force_posted || options.force_posted;
    if (options.gpu && !spec.force_posted) return;  // ranks of a launch exchange in the GPU's memory
    const int ranks = static_cast<int>(compiled_.programs.size());
    const std::string& asked = dma::transport_wish().transport;
    std::vector<std::unique_ptr<dma::Transport>> transports;
    if (!asked.empty() && ranks > 1) transports = dma::transport_named(asked).make(0, ranks);
    groups_ = dma::make_local_groups(
        ranks, [&](int) { return spec; }, dma::Deadline::after(options.join_deadline), std::move(transports));
  }

  ExecutorOptions executor_options(const RaggedOptions& options, int first_rank) const {
    ExecutorOptions e = options;
    const auto ranks = static_cast<int>(compiled_.programs.size());
    e.processors = processors_of(options.threads, ranks);
    e.seats = options.here.seats(first_rank, static_cast<int>(weights_.size()), ranks, options.threads);
    return e;
  }

  Compiled compiled_;
  RunnerLimits limits_;
  std::vector<std::unique_ptr<dma::Group>> groups_;
  std::vector<std::shared_ptr<WeightStore>> weights_;
  cuda::DeviceExecutor* device_ = nullptr;  // executor_, if it is one
  HostExecutor* host_ = nullptr;            // executor_, if it is not
  std::unique_ptr<Executor> executor_;      // last: its threads use all of the above
};

// Of a wait that ended with `fault`.
std::string why_stopped(const dma::Group& group, const dma::Fault& fault) {
  const std::string trouble = group.trouble();
  return trouble.empty() ? fault.text() : trouble;
}

struct ProcessEngine {
  // The last one; in front of it that of preflight(), and in front of that the one of words.
  uint32_t steps_channel = 0;
  std::vector<dma::Pair> pairs;
  std::unique_ptr<Engine> engine;
};

ProcessEngine make_process_engine(Compiled compiled, RaggedOptions options,
                                  std::unique_ptr<dma::Bootstrap> bootstrap) {
  if (bootstrap->size() != static_cast<int>(compiled.programs.size())) {
    throw Error(Code::kUsage, "the model is compiled for " + std::to_string(compiled.programs.size()) +
                                  " ranks, but the group has " + std::to_string(bootstrap->size()));
  }
  const dma::EndpointSpec spec = endpoint_spec(compiled, options, true);
  ProcessEngine made{.steps_channel = static_cast<uint32_t>(spec.channels.size()) - 1};
  const auto deadline = dma::Deadline::after(options.join_deadline);
  auto group = dma::join_group(std::move(bootstrap), dma::transport_wish().transport, spec, deadline);
  made.pairs = dma::preflight(*group, made.steps_channel - 1, deadline);
  if (options.gpu) cuda::try_nic_boxes(*options.gpu, *group, made.steps_channel - 2, deadline);
  if (!options.gpu) options.words_channel = made.steps_channel - 2;
  made.engine = std::make_unique<Engine>(std::move(compiled), options, std::move(group));
  return made;
}

class LocalRunner : public RaggedRunner {
 public:
  explicit LocalRunner(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const RunnerLimits& limits() const override { return engine_->limits(); }
  uint64_t post(const StepDescriptor& step) override {
    ARK_CHECK(posted_ - polled_ < static_cast<uint64_t>(limits().depth),
              "more steps in flight than the runner's depth");
    posted_ = start(step);
    return posted_;
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    std::optional<StepResult> result = engine_->executor().poll(timeout);
    if (result) polled_ = result->step;
    return result;
  }
  void abort(const std::string& why) override { engine_->executor().abort(why); }
  RunnerMemory memory() const override { return engine_->memory(); }
  std::string_view transport() const override { return engine_->transport(); }
  bool is_parked() const override { return engine_->executor().is_parked(); }
  Timeline timeline() override { return engine_->executor().timeline(); }
  const Program& program() const override { return engine_->program(); }
  cuda::DeviceExecutor* device() override { return engine_->device(); }
  void read_cache(const CachedToken& token, std::span<float> heads) const override {
    engine_->for_heads(token, [&](HostExecutor& host, HostExecutor::CachePlace from, size_t first,
                                  size_t dim) { host.read_cached(from, heads.subspan(first, dim)); });
  }
  int64_t page_bytes() const override {
    return engine_->reachable() ? engine_->reachable()->page_bytes() : 0;
  }
  void read_page(int32_t page, std::span<std::byte> to) const override { pages().read_page(page, to); }
  void write_page(int32_t page, std::span<const int32_t> tokens, std::span<const std::byte> from) override {
    pages().write_page(page, tokens, from);
  }
  void write_cache(const CachedToken& token, std::span<const float> heads) override {
    engine_->for_heads(token, [&](HostExecutor& host, HostExecutor::CachePlace to, size_t first, size_t dim) {
      host.write_cached(to, heads.subspan(first, dim));
    });
  }

 protected:
  virtual uint64_t start(const StepDescriptor& step) { return engine_->executor().post(step); }
  HostExecutor& pages() const {
    ARK_CHECK(engine_->reachable(), "pages that cannot be reached");
    return *engine_->reachable();
  }
  std::unique_ptr<Engine> engine_;
  uint64_t posted_ = 0, polled_ = 0;
};

// Rank 0 of several processes: each step goes to the others as an ordinary message, an empty one ends them.
class ProcessRunner final : public LocalRunner {
 public:
  ProcessRunner(ProcessEngine made, const RaggedOptions& options)
      : LocalRunner(std::move(made.engine)), pairs_(std::move(made.pairs)), deadline_(options.step_deadline) {
    for (int peer = 1; peer < engine_->group().size(); ++peer)
      peers_.emplace_back(engine_->group().sender(peer, made.steps_channel));
  }
  ~ProcessRunner() override {
    if (engine_->group().abort().raised()) return;  // Group tells the others
    // Lets the others finish what was posted; whoever cannot take the message has died.
    for (dma::MessageSender& peer : peers_) {
      if (peer.send({}, context())) engine_->group().abort().raise(dma::AbortReason::kFault);
    }
    // In the middle of a step others wait for this rank: they are to know that it has gone.
    if (posted_ == polled_) engine_->group().part();
  }

  std::string failure() const override { return engine_->group().trouble(); }
  std::string silence() const override { return engine_->group().silence(); }
  std::span<const dma::Pair> pairs() const override { return pairs_; }

 private:
  uint64_t start(const StepDescriptor& step) override {
    const uint64_t number = engine_->executor().post(step);
    const std::span<const std::byte> record = engine_->executor().posted_record();
    for (dma::MessageSender& peer : peers_) {
      if (dma::Fault fault = peer.send(record, context())) {
        const std::string why = why_stopped(engine_->group(), fault);
        abort(why);
        throw Error(Code::kUnavailable, why);
      }
    }
    return number;
  }

  dma::WaitContext context() { return {&engine_->group().abort(), dma::Deadline::after(deadline_), {}}; }

  const std::vector<dma::Pair> pairs_;
  std::chrono::milliseconds deadline_;
  std::vector<dma::MessageSender> peers_;
};

// A rank that runs the steps which rank 0 sends, until an empty one.
void serve_steps(Engine& engine, uint32_t channel) {
  Executor& executor = engine.executor();
  dma::Group& group = engine.group();
  dma::MessageReceiver steps(group.receiver(0, channel));
  const dma::WaitContext forever{&group.abort(), dma::Deadline::never(), {}};
  uint64_t posted = 0, done = 0;
  const auto drain = [&](uint64_t most) {
    while (posted - done > most) done += executor.poll(std::chrono::seconds(1)) ? 1 : 0;
  };
  for (;;) {
    // The loop of a GPU may have parked just in front of a step: whoever polls launches it again.
    while (engine.device() && posted != done && !steps.has_message())
      done += executor.poll(std::chrono::microseconds(200)) ? 1 : 0;
    std::span<const std::byte> record;
    dma::Fault fault = steps.receive(record, forever);
    if (fault) {
      executor.poll(std::chrono::microseconds(0));  // throws what the executor knows
      throw Error(Code::kUnavailable, why_stopped(group, fault));
    }
    if (record.empty()) {
      drain(0);
      group.part();
      return;
    }
    drain(Mailbox::kDepth - 1);
    posted = executor.post_record(record);
    if ((fault = steps.release(forever))) throw Error(Code::kUnavailable, why_stopped(group, fault));
  }
}

}  // namespace

// Places where splits grow are whole items apart: only before the first one and behind the last one may an item be
// short. Steps of kItemTokens tokens and fewer may have shorter ones (engine/cuda/dealing.h).
int32_t most_items(int32_t tokens, int32_t sequences) {
  return std::min(tokens, std::max(kItemTokens, 2 * sequences + tokens / kItemTokens));
}

int64_t page_bytes(const std::vector<Program>& programs) {
  int64_t bytes = 0;
  for (const Program& program : programs) bytes += page_bytes(program);
  return bytes;
}

RunnerMemory memory_of(const Compiled& compiled, int64_t pages, int rank) {
  RunnerMemory m;
  for (std::size_t r = 0; r < compiled.programs.size(); ++r) {
    if (rank >= 0 && static_cast<int>(r) != rank) continue;
    for (const WeightUse& use : compiled.programs[r].weights) m.weights += packed_bytes(use);
    m.pages += page_bytes(compiled.programs[r]) * pages;
    m.other += compiled.bindings[r].act_bytes + compiled.bindings[r].inbox_bytes;
  }
  return m;
}

void settle_pages(RunnerLimits& limits, const std::vector<Program>& programs, int64_t kv_bytes) {
  const int64_t page = std::max<int64_t>(1, page_bytes(programs));
  const int64_t each = (int64_t{limits.max_length} + limits.page_size - 1) / limits.page_size;
  // Memory that can never be used is not asked for.
  const int64_t pages = std::min(kv_bytes / page, each * limits.max_slots);
  if (pages < 1) {
    throw Error(Code::kUsage, "the memory for keys and values (" + std::to_string(kv_bytes) +
                                  " bytes) does not hold one page of " + std::to_string(page) +
                                  " bytes; give more with --kv-memory");
  }
  limits.pages = static_cast<int32_t>(std::min<int64_t>(pages, 1 << 30));
  limits.max_length =
      static_cast<int32_t>(std::min<int64_t>(limits.max_length, int64_t{limits.pages} * limits.page_size));
}

std::unique_ptr<RaggedRunner> make_ragged_runner(Compiled compiled, const RaggedOptions& options) {
  return std::make_unique<LocalRunner>(std::make_unique<Engine>(std::move(compiled), options, nullptr));
}

std::unique_ptr<RaggedRunner> make_ragged_runner(Compiled compiled, const RaggedOptions& options,
                                                 std::unique_ptr<dma::Bootstrap> bootstrap) {
  return std::make_unique<ProcessRunner>(
      make_process_engine(std::move(compiled), options, std::move(bootstrap)), options);
}

void serve_rank(Compiled compiled, const RaggedOptions& options, std::unique_ptr<dma::Bootstrap> bootstrap) {
  const ProcessEngine made = make_process_engine(std::move(compiled), options, std::move(bootstrap));
  try {
    serve_steps(*made.engine, made.steps_channel);
  } catch (const Error& error) {
    made.engine->tell_peers(error.what());
    throw;
  }
}

}  // namespace ark
