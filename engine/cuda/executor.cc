#include "engine/cuda/executor.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cuda/block_layout.h"
#include "engine/cuda/codegen.h"
#include "engine/cuda/direct_links.h"
#include "engine/cuda/links.h"
#include "engine/cuda/loop_host.h"
#include "engine/cuda/make_image.h"
#include "engine/cuda/rank_ways.h"
#include "engine/cuda/turned_weights.h"
#include "engine/run/step_check.h"

namespace ark::cuda {
namespace {

constexpr uint64_t kUploadWindow = uint64_t{64} << 20;
constexpr int64_t kEmulatedPumpNap = 50'000;  // an emulated GPU needs the CPU itself

template <typename T>
std::span<const std::byte> bytes_of_value(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

class Device final : public DeviceExecutor {
 public:
  Device(std::shared_ptr<Gpu> gpu, const DeviceOptions& options) : gpu_(std::move(gpu)), device_(options) {}
  ~Device() override {
    // Steps in flight are lost, and who exchanges with them must not wait.
    if (host_ && host_->is_busy()) raise_aborts(dma::AbortReason::kShutdown);
    watch_pumps(false);  // they look at host_
    host_.reset();       // the loop ends
    const Gate::Work work = gpu_->gate().enter();
    kernel_.reset();
    memory_.clear();
    links_.reset();
    peers_.reset();
  }

  void prepare(std::vector<RankSetup> ranks, const ExecutorOptions& options) override {
    ARK_CHECK(!host_ && !ranks.empty(), "an executor is prepared once, with at least one rank");
    options_ = options;
    setups_ = std::move(ranks);
    check_setups();
    const Gate::Work work = gpu_->gate().enter();
    load_kernel();
    reach_peers();
    make_images();
    place();
    start_host();
    watch_pumps(true);
  }

  uint64_t post(const StepDescriptor& step) override {
    throw_if_failed();
    check_step(step, options_.limits, options_.max_items);
    write_record(step, host_->mailbox().posted() + 1, capacity_, host_->free_slot());
    return publish();
  }

  std::span<const std::byte> posted_record() const override { return host_->mailbox().posted_record(); }

  uint64_t post_record(std::span<const std::byte> bytes) override {
    throw_if_failed();
    host_->mailbox().copy_record(bytes);
    return publish();
  }

  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    throw_if_failed();
    try {
      return host_->poll(timeout);
    } catch (const Error&) {
      raise_aborts(dma::AbortReason::kFault);
      throw;
    }
  }
  void abort(const std::string& why) override {
    host_->abort(why);
    raise_aborts(dma::AbortReason::kShutdown);
  }
  bool is_parked() const override { return !host_ || host_->is_parked(); }

  const KernelFacts& kernel_facts() const override { return kernel_->facts(); }
  int32_t processors() const override { return options_.processors; }
  int64_t launches() const override { return host_->launches(); }
  std::vector<PairWay> ways() const override { return peers_ ? peers_->ways() : std::vector<PairWay>(); }
  Timeline timeline() override {
    static_assert(sizeof(cuda::TraceEvent) == sizeof(ark::TraceEvent));
    ARK_CHECK(options_.trace_events > 0, "a timeline of a loop that records none");
    std::vector<ark::TraceEvent> events(static_cast<std::size_t>(options_.trace_events) *
                                        static_cast<std::size_t>(shape_.blocks));
    const Gate::Work work = gpu_->gate().enter();
    const uint64_t counts = static_cast<uint64_t>(shape_.blocks) * sizeof(u64);
    gpu_->download(std::as_writable_bytes(std::span(events)), parameters_.trace + counts);
    std::vector<std::vector<std::string>> phases;
    for (const RankSetup& setup : setups_) phases.push_back(phase_names(*setup.program));
    return make_timeline(events, options_.trace_events, std::move(phases));
  }

 private:
  void check_setups() const {
    for (std::size_t r = 0; r < setups_.size(); ++r) {
      const Program& p = *setups_[r].program;
      const dma::Group* group = setups_[r].group;
      ARK_CHECK(p.rank == setups_[0].program->rank + static_cast<int32_t>(r), "ranks in order");
      ARK_CHECK((group == nullptr) == (setups_[0].group == nullptr), "all ranks have a group, or none");
      ARK_CHECK(group ? group->rank() == p.rank && group->size() == p.ranks
                      : p.ranks == static_cast<int32_t>(setups_.size()),
                "ranks without a group must all be here");
      if (p.token_ids == kNone)
        throw Error(Code::kUnsupported, "plain programs run on the CPU; use --device cpu");
    }
  }

  // Code, and how many processors a rank gets.
  void load_kernel() {
    std::vector<const Program*> programs;
    for (const RankSetup& setup : setups_) programs.push_back(setup.program);
    variants_ = std::make_unique<VariantSet>(programs, device_.numerics);
    tiles_ = tiles_for(gpu_->info().shared_per_block);
    kernel_ = gpu_->load(make_source(*variants_, {.trace = options_.trace_events > 0, .tiles = tiles_}));
    const auto room = static_cast<int64_t>(gpu_->info().shared_per_block) - kernel_->facts().static_shared;
    stages_ = 0;
    while (stages_ < kMaxStages && shared_layout(stages_ + 1, tiles_.scratch).total <= room) ++stages_;
    shape_.threads = kThreads;
    shape_.as_graph = device_.as_graph;
    shape_.shared_bytes = static_cast<int32_t>(shared_layout(stages_, tiles_.scratch).total);
    const int32_t ranks = static_cast<int32_t>(setups_.size());
    const int32_t resident = wide_stages(stages_, tiles_) < kMinStages
                                 ? 0
                                 : kernel_->resident_blocks(kThreads, shape_.shared_bytes);
    if (resident < ranks)
      throw Error(Code::kUnsupported, describe(gpu_->info()) + " holds " + std::to_string(resident) +
                                          " blocks of the loop at once, but there are " +
                                          std::to_string(ranks) + " ranks; use fewer, or --device cpu");
    options_.processors = device_.processors > 0 ? device_.processors : resident / ranks;
    shape_.blocks = options_.processors * ranks;
  }

  // Ranks of other launches. Those that are to post are so on all ranks.
  void reach_peers() {
    dma::Group* const group = setups_[0].group;
    if (group && setups_.size() == 1 && !group->endpoint().is_posted_by_choice())
      peers_ =
          std::make_unique<PeerLinks>(*gpu_, *setups_[0].program, *group, device_.peer_links, wanted_ways());
  }

  RankWays wanted_ways() const {
    return {
        .part_rows = device_.part_rows, .shares_from = device_.shares_from, .told_rows = device_.told_rows};
  }
  // What ranks that reach each other's memory do there, if all plan that alike: exchange sums by words in steps of
  // up to 32 rows, and add up shares in those of many, processor by processor.
  void make_images() {
    const bool may = peers_ ? peers_->reaches_all() : setups_[0].group == nullptr;
    RankWays wanted = wanted_ways();
    wanted.tells = may;
    wanted.shares = may && options_.processors <= kMostSharing;
    make_images(wanted);
    const RankWays agreed = agree_on_ways(images_, peers_.get(), options_.processors, wanted);
    if (takes_more(images_, agreed)) make_images(agreed);
  }
  void make_images(const RankWays& ways) {
    images_.clear();
    for (std::size_t r = 0; r < setups_.size(); ++r)
      images_.push_back(
          std::make_unique<RankImage>(setups_[r], options_, *variants_, r, device_.groups, tiles_, ways));
  }

  // Device memory: weights, arenas with their tables at the start, and what belongs to no rank.
  void place() {
    std::vector<const RankImage*> images;
    places_.resize(images_.size());
    for (std::size_t r = 0; r < images_.size(); ++r) {
      const std::string rank = " of rank " + std::to_string(setups_[r].program->rank);
      images.push_back(images_[r].get());
      places_[r].weights = upload_weights(*setups_[r].program, *setups_[r].weights, rank);
      places_[r].arena = zeroed(images_[r]->arena_bytes(), "pages and activations" + rank);
      const Range absent = images_[r]->absent_words();
      if (absent.begin == absent.end) continue;
      gpu_->fill(places_[r].arena + static_cast<uint64_t>(absent.begin),
                 static_cast<uint64_t>(absent.end - absent.begin), std::byte{0xff});
    }
    if (setups_[0].group) {
      links_ = std::make_unique<HostLinks>(*gpu_);
      for (std::size_t r = 0; r < images_.size(); ++r) link(r);
    } else {
      connect(images, places_);
    }
    for (std::size_t r = 0; r < images_.size(); ++r)
      gpu_->upload(places_[r].arena, images_[r]->tables(places_[r]));
  }

  void link(std::size_t r) {
    const uint64_t arena = places_[r].arena;
    if (images_[r]->rank_parts().pitch > 0) {
      places_[r].parts = peers_->parts();
      for (int peer = 0; peer < setups_[r].program->ranks; ++peer)
        places_[r].parts_to.push_back(peers_->parts_to(peer));
    }
    if (images_[r]->rank_shares().elements > 0) {
      for (int rank = 0; rank < setups_[r].program->ranks; ++rank)
        places_[r].shares.push_back(peers_->shares(rank));
    }
    places_[r].channels = links_->places(*setups_[r].program, *setups_[r].group,
                                         arena + images_[r]->tickets_offset(), peers_.get());
    for (std::size_t c = 0; c < places_[r].channels.size(); ++c) {
      // Memory of the GPU is waited for by all processors.
      if (peers_ && peers_->reaches(setups_[r].program->channels[c].peer)) continue;
      ChannelPlace& place = places_[r].channels[c];
      place.relay = arena + images_[r]->counter_offset(static_cast<int32_t>(c));
      gpu_->upload(place.relay, bytes_of_value(place.first_count));
    }
  }

  uint64_t zeroed(uint64_t bytes, const std::string& what) {
    memory_.emplace_back(*gpu_, bytes, what);
    gpu_->clear(memory_.back().address(), bytes);
    return memory_.back().address();
  }

  uint64_t upload_weights(const Program& program, const WeightStore& store, const std::string& rank) {
    memory_.emplace_back(*gpu_, store.arena().size(), "weights" + rank);
    const uint64_t address = memory_.back().address();
    for (std::size_t w = 0; w < program.weights.size(); ++w) {
      const auto number = static_cast<int32_t>(w);
      const auto offset = static_cast<uint64_t>(store.address(number) - store.address(0));
      const auto all = store.arena().subspan(offset, static_cast<uint64_t>(store.bytes(number)));
      const WeightUse& use = program.weights[w];
      TurnedWeights turned(use, static_cast<uint64_t>(matrix_rows(use).size()));
      const uint64_t unit = turned.is_turned() ? turned.unit_bytes() : 1, most = kUploadWindow / unit * unit;
      for (uint64_t at = 0; at < all.size(); at += most) {
        const std::span<const std::byte> window = all.subspan(at, std::min(most, all.size() - at));
        gpu_->upload(address + offset + at, turned.is_turned() ? turned.turn(window, at) : window);
      }
    }
    return address;
  }

  void start_host() {
    capacity_ = StepCapacity::of(options_.limits);
    uint64_t vals_each = 0;
    for (const RankSetup& setup : setups_)
      vals_each = std::max(vals_each, uint64_t{setup.program->vals.size()});
    const uint64_t tables = zeroed(images_.size() * sizeof(RankTables), "tables of ranks");
    LoopSetup setup;
    setup.kernel = kernel_.get();
    setup.shape = shape_;
    setup.ranks = static_cast<int>(setups_.size());
    setup.lease = static_cast<uint64_t>(std::max<int64_t>(0, options_.lease));
    setup.step_deadline = options_.step_deadline;
    if (gpu_->info().is_emulated) setup.last_words = std::chrono::minutes(2);  // it is slow, not lost
    setup.phase_name = [this](int rank, int phase) {
      // Records name ranks of the group.
      return setups_[rank - setups_[0].program->rank].program->phases[phase].name;
    };
    setup.interrupted = [this] { return interrupted(); };
    parameters_.ranks = tables;
    setup.parameter = [this](const LaunchTerms& terms) {
      LoopParameters p = parameters_;
      p.first_step = terms.first_step;
      p.first_turn = terms.first_turn;
      const std::span<const std::byte> bytes = bytes_of_value(p);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    host_ = std::make_unique<LoopHost>(*gpu_, capacity_, vals_each, std::move(setup));
    fill_parameters();
    for (std::size_t r = 0; r < images_.size(); ++r) {
      const RankTables t = images_[r]->rank_tables(places_[r]);
      gpu_->upload(tables + r * sizeof t, bytes_of_value(t));
    }
  }

  void fill_parameters() {
    const MailboxLayout& layout = host_->mailbox().layout();
    LoopParameters& p = parameters_;
    p.control = zeroed(sizeof(Control), "control words");
    p.record = zeroed(layout.slot_bytes, "a step's record");
    p.mailbox = host_->mailbox_address();
    p.slots = layout.slots;
    p.slot_bytes = layout.slot_bytes;
    p.vals = layout.vals;
    p.vals_each = layout.vals_each;
    p.results = layout.results;
    p.result_bytes = layout.result_bytes;
    p.logits = layout.logits;
    p.depth = Mailbox::kDepth;
    p.host = host_->control_address();
    p.lease = static_cast<u64>(std::max<int64_t>(0, options_.lease));
    p.deadline_ns = static_cast<u64>(std::chrono::nanoseconds(options_.step_deadline).count());
    p.linger_ns = static_cast<u64>(std::chrono::nanoseconds(device_.linger).count());
    p.trace_events = options_.trace_events;
    // A count of each block's events, then their rings.
    const auto events = static_cast<uint64_t>(options_.trace_events) * sizeof(TraceEvent);
    if (events > 0)
      p.trace = zeroed(static_cast<uint64_t>(shape_.blocks) * (sizeof(u64) + events), "the timeline");
    p.counter_base = options_.counter_base;
    p.rank_count = static_cast<i32>(setups_.size());
    p.processors = options_.processors;
    p.stages = stages_;
    p.leaving_rows = p.wide_from = INT32_MAX;
    for (const auto& image : images_) {
      p.leaving_rows = std::min(p.leaving_rows, image->leaving_rows(stages_));
      p.wide_from = std::min(p.wide_from, image->wide_from());
    }
    p.ahead = pieces_ahead(gpu_->info().l2, shape_.blocks);
    p.barrier = options_.barrier;
  }

  // The host evaluates every size of a step; the loop reads them beside the record.
  uint64_t publish() {
    const StepRecord& record = host_->mailbox().record(host_->mailbox().posted() + 1);
    const auto sequences = array_of<StepSequence>(record, StepArray::kSequences);
    const auto tokens = static_cast<int32_t>(record.extent(StepArray::kTokens).count);
    int32_t longest = 0;
    for (const StepSequence& s : sequences) longest = std::max(longest, s.kv_length + s.count);
    SymbolValues symbols = {{"pages", options_.limits.pages},
                            {"rows", record.extent(StepArray::kRows).count},
                            {"tokens", tokens}};
    for (std::size_t r = 0; r < setups_.size(); ++r) {
      int64_t* vals = host_->free_vals(static_cast<int>(r));
      symbols["items"] = count_items(sequences, images_[r]->item_tokens(tokens, longest));
      ARK_CHECK(symbols["items"] <= options_.max_items, "a step of more attention items than compiled for");
      for (const Val& val : setups_[r].program->vals) *vals++ = val.e.evaluate(symbols);
    }
    host_->post();
    // A sleeping pump finds out that there will be requests.
    if (links_) {
      for (dma::Group* group : links_->posting()) group->endpoint().queues().doorbell.raise();
    }
    return host_->mailbox().posted();
  }

  // ---- groups

  void watch_pumps(bool on) {
    if (!links_) return;
    for (dma::Group* group : links_->posting()) {
      std::function<bool()> may_post;
      if (on) may_post = [this] { return host_->is_busy(); };
      group->endpoint().pump().poll_while(may_post, gpu_->info().is_emulated ? kEmulatedPumpNap : 0);
    }
  }

  // Why the loop must end though it has not failed: a peer's death, or a pump that gave up.
  std::string interrupted() const {
    for (const RankSetup& setup : setups_) {
      if (!setup.group) continue;
      if (std::string why = setup.group->trouble(); !why.empty()) return why;
    }
    return "";
  }

  // Also of what happened between steps.
  void throw_if_failed() {
    host_->throw_if_failed();
    if (const std::string why = interrupted(); !why.empty()) host_->interrupt(why);
    host_->throw_if_failed();
  }

  void raise_aborts(dma::AbortReason reason) {
    for (const RankSetup& setup : setups_) {
      if (setup.group) setup.group->abort().raise(reason, setup.program->rank);
    }
  }

  const std::shared_ptr<Gpu> gpu_;
  const DeviceOptions device_;
  ExecutorOptions options_;
  std::vector<RankSetup> setups_;
  StepCapacity capacity_;
  std::unique_ptr<VariantSet> variants_;
  std::unique_ptr<Kernel> kernel_;
  TileShape tiles_{};
  LaunchShape shape_;
  int32_t stages_ = 0;  // of the ring of weights
  std::vector<std::unique_ptr<RankImage>> images_;
  std::vector<RankPlaces> places_;
  std::vector<DeviceMemory> memory_;
  std::unique_ptr<PeerLinks> peers_;  // if the rank has a group, and posts only where it must
  std::unique_ptr<HostLinks> links_;  // if the ranks have groups
  LoopParameters parameters_{};
  std::unique_ptr<LoopHost> host_;
};

}  // namespace

std::string describe(const GpuInfo& info) {
  return info.name + " (" + info.arch + ", " + std::to_string(info.processors) + " processors, " +
         std::to_string(info.memory >> 20) + " MiB, " + info.versions + ")";
}

std::unique_ptr<DeviceExecutor> make_device_executor(std::shared_ptr<Gpu> gpu, const DeviceOptions& options) {
  return std::make_unique<Device>(std::move(gpu), options);
}

}  // namespace ark::cuda
