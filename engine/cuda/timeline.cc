#include "engine/cuda/timeline.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/error.h"

namespace ark::cuda {
namespace {

const char* const kKinds[] = {"wait", "run", "publish"};
constexpr i32 kDone = 3;

// Calls f(event, ticks) for every event that another one of the same block ends.
template <typename F>
void for_spans(const std::vector<TraceEvent>& events, F&& f) {
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const TraceEvent& e = events[i];
    if (e.kind < kDone) f(e, static_cast<double>(events[i + 1].clock - e.clock));
  }
}

// A name inside JSON's quotes; what is not plain ASCII becomes '?'.
std::string quoted(const std::string& name) {
  std::string out;
  for (char c : name) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

void append_event(std::string& out, const std::string& name, const char* kind, int32_t rank,
                  int32_t processor, double start_us, double us) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, R"("cat":"%s","ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})",
                kind, rank, processor, start_us, us);
  out += R"({"name":")" + quoted(name) + R"(",)" + numbers + ",\n";
}

}  // namespace

Timeline make_timeline(std::span<const TraceEvent> events, int32_t events_each, int32_t processors,
                       double nanoseconds_per_tick) {
  ARK_CHECK(events_each > 0 && processors > 0 && events.size() % static_cast<std::size_t>(events_each) == 0,
            "a timeline that is no ring per block");
  Timeline timeline{processors, nanoseconds_per_tick, {}};
  for (std::size_t at = 0; at < events.size(); at += static_cast<std::size_t>(events_each)) {
    std::vector<TraceEvent> block;
    for (const TraceEvent& e : events.subspan(at, static_cast<std::size_t>(events_each)))
      if (e.clock != 0) block.push_back(e);
    // A ring's oldest event lies somewhere in its middle.
    std::stable_sort(block.begin(), block.end(),
                     [](const TraceEvent& a, const TraceEvent& b) { return a.clock < b.clock; });
    timeline.blocks.push_back(std::move(block));
  }
  return timeline;
}

std::string perfetto_json(const Timeline& timeline, const PhaseName& name) {
  u64 first = ~u64{0};
  for (const auto& block : timeline.blocks)
    if (!block.empty()) first = std::min(first, block.front().clock);
  const double us = timeline.nanoseconds_per_tick / 1000;
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  for (std::size_t b = 0; b < timeline.blocks.size(); ++b) {
    const auto rank = static_cast<int32_t>(b) / timeline.processors;
    const auto processor = static_cast<int32_t>(b) % timeline.processors;
    for_spans(timeline.blocks[b], [&](const TraceEvent& e, double ticks) {
      const std::string label = e.phase < 0 ? "step" : name(rank, e.phase);
      append_event(out, e.kind == 0 ? "wait: " + label : label, kKinds[e.kind], rank, processor,
                   static_cast<double>(e.clock - first) * us, ticks * us);
    });
  }
  const int32_t ranks = static_cast<int32_t>(timeline.blocks.size()) / timeline.processors;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    out += R"({"name":"process_name","ph":"M","pid":)" + std::to_string(rank) + R"(,"args":{"name":"rank )" +
           std::to_string(rank) + R"("}})" + (rank + 1 < ranks ? ",\n" : "\n");
  }
  return out + "]}\n";
}

std::vector<PhaseTimes> phase_times(const Timeline& timeline) {
  std::map<int32_t, PhaseTimes> phases;
  const double us = timeline.nanoseconds_per_tick / 1000;
  const auto blocks = std::min(timeline.blocks.size(), static_cast<std::size_t>(timeline.processors));
  for (std::size_t b = 0; b < blocks; ++b) {
    for_spans(timeline.blocks[b], [&](const TraceEvent& e, double ticks) {
      if (e.phase < 0) return;
      PhaseTimes& p = phases[e.phase];
      p.phase = e.phase;
      p.instances += e.kind == 1;
      (e.kind == 0 ? p.wait_us : e.kind == 1 ? p.run_us : p.publish_us) += ticks * us;
    });
  }
  std::vector<PhaseTimes> out;
  for (auto& [phase, p] : phases) {
    const double count = static_cast<double>(std::max<int64_t>(1, p.instances));
    p.wait_us /= count, p.run_us /= count, p.publish_us /= count;
    out.push_back(p);
  }
  return out;
}

}  // namespace ark::cuda
