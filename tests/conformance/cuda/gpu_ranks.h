// Ranks with an emulated GPU each, whose launches know nothing of each other: they exchange in each other's memory,
// through memory of the host, by stores of the GPUs or by requests that the groups' pumps serve, or by a NIC. All run
// in one world, so that its schedules interleave them and its detector sees what both do to memory that they share.
//
// ARK_GPU=1: launches of few blocks side by side on the machine's GPU. Each rank opens it for itself, as
// loops of one Gpu park for each other, and all are prepared, on a thread each, before any runs, as context work would
// wait.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "dma/faults.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "dma/transports.h"
#include "engine/compile.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/nic_boxes.h"
#include "engine/run/runner.h"
#include "engine/run/weight_store.h"
#include "tests/dma/fake_nic.h"
#include "tests/emulator/emulated_gpu.h"

namespace ark::test {

// The local transport with regions in memory that the emulator knows, so that its detector sees what devices
// do there.
class WatchedTransport final : public dma::Transport {
 public:
  WatchedTransport(std::unique_ptr<dma::Transport> local, emulator::World& world)
      : local_(std::move(local)), world_(world) {}
  std::string_view name() const override { return local_->name(); }
  dma::Memory allocate(const std::string& name, uint64_t bytes) override {
    return adopt(name, world_.memory().allocate(bytes, emulator::kHost, name), bytes);
  }
  dma::Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    return local_->adopt(name, base, bytes);
  }
  std::string describe(const dma::Memory& memory) override { return local_->describe(memory); }
  dma::Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    return local_->attach(peer, description, bytes);
  }
  void connected() override { local_->connected(); }
  std::unique_ptr<dma::Wire> open_wire(const dma::WireMap& map, dma::Bootstrap& bootstrap,
                                       dma::Deadline deadline) override {
    return local_->open_wire(map, bootstrap, deadline);
  }

 private:
  std::unique_ptr<dma::Transport> local_;
  emulator::World& world_;
};

enum class Way {
  kGpu,     // stores into the peer's memory
  kHost,    // stores into memory of the host
  kPosted,  // requests
  kNic,     // requests that a NIC serves, which reads and writes the GPUs' memory
};

inline const char* name_of(Way way) {
  return way == Way::kGpu ? "Gpu" : way == Way::kHost ? "Direct" : way == Way::kNic ? "Nic" : "Posted";
}

struct GpusOptions {
  std::shared_ptr<emulator::World> world;  // whose schedule they run in
  std::vector<int> processors;             // of each rank's GPU
  Way way = Way::kHost;
  uint64_t first_count = 0;
  bool seeded_bugs = false;
  std::chrono::milliseconds step_deadline{60'000};
  std::optional<dma::FaultPlan> faults = {};  // of the wires that pumps use
  int64_t lease = 0;
  bool barrier = false;
  bool flushes = true;  // of kNic: what the NIC has written is ever seen
  int32_t told_rows = cuda::kFewRows, part_rows = cuda::kFewRows;  // DeviceOptions
  int64_t shares_from = 0;
};

// Executors of one rank each, driven together.
class GpuRanks final : public StepRunner {
 public:
  static constexpr int32_t kMaxTokens = 16, kPageSize = 4, kPages = 64;

  GpuRanks(const DecoderModel& model, const GpusOptions& o) : world_(o.world) {
    const auto ranks = static_cast<int>(o.processors.size());
    compiled_ = compile_decoder(model, {.ranks = ranks,
                                        .max_tokens = kMaxTokens,
                                        .max_rows = 4,
                                        .max_items = kMaxTokens,
                                        .page_size = kPageSize,
                                        .pages = kPages});
    limits_ = {kMaxTokens, 4, 8, 64, kPageSize, kPages, static_cast<int32_t>(model.vocabulary), 2};
    for (std::size_t r = 0; r < o.processors.size(); ++r) {
      nics_.push_back(std::make_unique<dma::test::FakeNic>());
      nics_[r]->flushes = o.flushes;
      gpus_.push_back(make_gpu(r, o));
    }
    join(ranks, o);
    ExecutorOptions options;
    options.limits = limits_;
    options.max_items = kMaxTokens;
    // Of a card, whose steps take microseconds, nothing waits for long: what hangs costs its lease.
    options.step_deadline =
        std::getenv("ARK_GPU") ? std::min(o.step_deadline, std::chrono::milliseconds(5000)) : o.step_deadline;
    options.lease = o.lease;
    options.barrier = o.barrier;
    for (std::size_t r = 0; r < groups_.size(); ++r) {
      weights_.push_back(std::make_unique<WeightStore>(compiled_.programs[r], compiled_.constants, 1));
      const cuda::DeviceOptions device{.processors = o.processors[r],
                                       .peer_links = o.way == Way::kGpu,
                                       .told_rows = o.told_rows,
                                       .part_rows = o.part_rows,
                                       .shares_from = o.shares_from};
      executors_.push_back(cuda::make_device_executor(gpus_[r], device));
    }
    prepare(options);
  }

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override {
    uint64_t number = 0;
    for (const auto& executor : executors_) number = executor->post(step);
    return number;
  }
  // Rank 0's, when all have it.
  std::optional<StepResult> poll(std::chrono::microseconds) override {
    // In turn: a loop that has left with a step in flight is launched again by whoever polls it.
    std::vector<std::optional<StepResult>> results(executors_.size());
    for (bool all = false; !all;) {
      all = true;
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (!results[r]) results[r] = executors_[r]->poll(std::chrono::milliseconds(1));
        all = all && results[r];
      }
    }
    return std::move(results[0]);
  }
  void abort(const std::string& why) override { executors_[0]->abort(why); }

  cuda::DeviceExecutor& executor(int rank) { return *executors_[rank]; }
  // Ends a rank's executor, as its process's end would.
  void end(int rank) { executors_[rank].reset(); }
  dma::Group& group(int rank) { return *groups_[rank]; }
  const dma::test::FakeNic& nic(int rank) const { return *nics_[rank]; }

 private:
  // Collective.
  void prepare(const ExecutorOptions& options) {
    std::vector<std::exception_ptr> errors(executors_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < executors_.size(); ++r) {
        threads.emplace_back([&, r] {
          try {
            executors_[r]->prepare(
                {{&compiled_.programs[r], &compiled_.bindings[r], weights_[r].get(), groups_[r].get()}},
                options);
          } catch (const Error& error) {
            errors[r] = std::current_exception();
            groups_[r]->report_dead(static_cast<int>(r), error.what());
          }
        });
      }
    }
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  std::shared_ptr<cuda::Gpu> make_gpu(std::size_t rank, const GpusOptions& o) {
    if (std::getenv("ARK_GPU")) return cuda::open_gpu();
    emulator::EmulatedGpuOptions options{.processors = o.processors[rank], .seeded_bugs = o.seeded_bugs};
    if (o.way == Way::kNic) options.flush = [nic = nics_[rank].get()] { return nic->flush(); };
    return std::make_shared<emulator::EmulatedGpu>(world_, options);
  }

  void join(int ranks, const GpusOptions& o) {
    dma::EndpointSpec spec;
    spec.force_posted = o.way == Way::kPosted;
    spec.first_count = o.first_count;
    if (o.faults) spec.pump.attempts = o.faults->cut_after == UINT64_MAX ? 10 : 2;
    for (const Program& program : compiled_.programs) {
      for (std::size_t c = 0; c < program.channels.size(); ++c) {
        const uint32_t number = dma_channel_of(program, static_cast<int32_t>(c));
        while (spec.channels.size() <= number)
          spec.channels.push_back({.name = "exchange", .by_devices = o.way == Way::kNic});
        uint64_t& bytes = spec.channels[number].slot_bytes;
        bytes = std::max(bytes, static_cast<uint64_t>(inbox_half(program.channels[c])));
      }
    }
    auto transports = o.way == Way::kNic ? dma::transport_named("socket").make(0, ranks)
                                         : dma::make_local_transports(ranks);
    for (std::size_t r = 0; r < transports.size(); ++r) {
      auto& t = transports[r];
      if (!std::getenv("ARK_GPU")) t = std::make_unique<WatchedTransport>(std::move(t), *world_);
      if (o.way == Way::kNic) t = std::make_unique<dma::test::FakeNicTransport>(std::move(t), *nics_[r]);
      if (o.faults) t = dma::with_faults(std::move(t), *o.faults);
    }
    groups_ = dma::make_local_groups(
        ranks,
        [&](int r) {
          dma::EndpointSpec own = spec;
          if (o.way == Way::kNic) own.device = cuda::nic_boxes(gpus_[r], true);
          return own;
        },
        dma::Deadline::after(std::chrono::seconds(20)), std::move(transports));
  }

  std::shared_ptr<emulator::World> world_;
  Compiled compiled_;
  RunnerLimits limits_;
  std::vector<std::unique_ptr<dma::test::FakeNic>> nics_;  // by rank, as all here
  std::vector<std::shared_ptr<cuda::Gpu>> gpus_;
  std::vector<std::unique_ptr<dma::Group>> groups_;
  std::vector<std::unique_ptr<WeightStore>> weights_;
  std::vector<std::unique_ptr<cuda::DeviceExecutor>> executors_;
};

}  // namespace ark::test
