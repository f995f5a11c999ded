#include "engine/cpu/processor_meter.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/machine.h"

namespace ark {
namespace {

// Nanoseconds between two questions to the system, which take half a microsecond each.
constexpr int64_t kLook = 1'000'000;
constexpr int64_t kCoarse = 20'000;  // ns: less is what clocks are apart

int64_t nanoseconds(const timeval& t) { return t.tv_sec * 1'000'000'000 + t.tv_usec * 1'000; }

}  // namespace

ProcessorMeter::Usage ProcessorMeter::usage(int64_t now_ns) const {
  rusage thread{};
  ::getrusage(RUSAGE_THREAD, &thread);
  return {now_ns,
          nanoseconds(thread.ru_utime) + nanoseconds(thread.ru_stime),
          waits.slept_ns,
          coreless_ns(),
          thread.ru_majflt,
          thread.ru_nivcsw,
          thread.ru_nvcsw - waits.sleeps};
}

void ProcessorMeter::begin() {
  waits = {};
  last_ = usage(dma::steady_ns());
}

ProcessorCost ProcessorMeter::step_done() {
  ProcessorCost cost;
  cost.waited_ns = std::exchange(waits.peers_ns, 0);
  cost.longest_ns = std::exchange(waits.longest_ns, 0);
  cost.longest_peer = std::exchange(waits.longest_peer, -1);
  const int64_t now = dma::steady_ns();
  if (now - last_.at_ns < kLook) return cost;
  const Usage then = std::exchange(last_, usage(now));
  cost.delayed_ns = last_.delayed_ns - then.delayed_ns;
  const int64_t off = (now - then.at_ns) - (last_.cpu_ns - then.cpu_ns) - (last_.slept_ns - then.slept_ns);
  if (off < kCoarse) return cost;
  cost.off_ns = off;
  cost.faults = static_cast<int32_t>(last_.faults - then.faults);
  cost.stops = static_cast<int32_t>(std::max<int64_t>(0, last_.stops - then.stops));
  cost.switches = static_cast<int32_t>(last_.switches - then.switches);
  return cost;
}

}  // namespace ark
