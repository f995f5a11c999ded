#include <chrono>
#include <thread>

#include "base/error.h"
#include "tests/emulator/core.h"

namespace ark::emulator {

Machine::Machine(const Options& options) : core_(std::make_unique<Core>(options)) {}
Machine::~Machine() = default;

Memory& Machine::memory() { return core_->memory; }
const Options& Machine::options() const { return core_->options; }
const Counts& Machine::counts() const { return core_->counts; }

void Machine::set_options(const Options& options) {
  ARK_CHECK(core_->grids.empty(), "emulator: options change between launches only");
  core_->options = options;
}

Machine::LaunchId Machine::launch(LaunchRequest request) { return core_->launch(std::move(request)); }

bool Machine::is_running(LaunchId id) const {
  for (const auto& grid : core_->grids) {
    if (grid->id == id) return true;
  }
  return false;
}

void Machine::host_acquires(const void* word) { core_->host_acquires(word); }
void Machine::host_reads(const void* p, uint64_t bytes) { core_->host_reads(p, bytes); }

Machine::Progress Machine::advance(uint64_t switches) { return core_->advance(switches); }

void Machine::nap() {
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  core_->time_ns += static_cast<uint64_t>((std::chrono::steady_clock::now() - start).count());
}

void Machine::run() {
  for (;;) {
    const Progress progress = advance(1 << 20);
    if (progress == Progress::kDone) return;
    if (progress == Progress::kIdle) nap();
  }
}

}  // namespace ark::emulator
