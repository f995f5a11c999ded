#include "engine/run/timeline.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "base/log.h"

namespace ark {
namespace {

const char* const kKinds[] = {"wait", "run", "publish"};

// Calls f(event, ticks) for every event that another one of the same block ends.
template <typename F>
void for_spans(const std::vector<TraceEvent>& events, F&& f) {
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const TraceEvent& e = events[i];
    if (e.kind != TraceKind::kDone) f(e, static_cast<double>(events[i + 1].clock - e.clock));
  }
}

std::size_t processors_of(const Timeline& timeline) {
  return timeline.blocks.size() / timeline.phases.size();
}

// What a block does of one instance, from its wait on.
struct BlockPart {
  int32_t phase = 0;
  uint64_t wait = 0, end = 0;
};

// In the order of their ends; of the blocks of rank 0, from when on none of them has lost events.
std::vector<BlockPart> parts_of(const Timeline& timeline) {
  std::vector<BlockPart> parts;
  uint64_t first = 0;
  for (std::size_t b = 0; b < processors_of(timeline); ++b) {
    const std::vector<TraceEvent>& events = timeline.blocks[b];
    if (!events.empty() && events.size() == timeline.most_events)
      first = std::max(first, events.front().clock);
    for (std::size_t i = 1; i + 1 < events.size(); ++i) {
      if (events[i].kind == TraceKind::kRun)
        parts.push_back({events[i].phase, events[i - 1].clock, events[i + 1].clock});
    }
  }
  std::erase_if(parts, [&](const BlockPart& part) { return part.wait < first; });
  std::stable_sort(parts.begin(), parts.end(),
                   [](const BlockPart& a, const BlockPart& b) { return a.end < b.end; });
  return parts;
}

// Ticks a step, by phase: each moment of a step is that of the part that ends next.
std::map<int32_t, double> spans_of(const Timeline& timeline) {
  const std::vector<BlockPart> parts = parts_of(timeline);
  std::map<int32_t, double> spans;
  if (parts.empty()) return spans;
  const int32_t first =
      std::min_element(parts.begin(), parts.end(), [](const BlockPart& a, const BlockPart& b) {
        return a.phase < b.phase;
      })->phase;
  // Steps begin where the first phase, which waits for nothing, does so after the end of all that was before.
  uint64_t before = 0, steps = 0;
  for (const BlockPart& part : parts) {
    const bool begins = part.phase == first && part.wait > before;
    steps += begins;
    spans[part.phase] += static_cast<double>(part.end - (begins ? part.wait : std::min(before, part.end)));
    before = std::max(before, part.end);
  }
  for (auto& [phase, ticks] : spans) ticks /= static_cast<double>(std::max<uint64_t>(1, steps));
  return spans;
}

void append_event(std::string& out, const std::string& name, const char* kind, std::size_t rank,
                  std::size_t processor, double start_us, double us) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, R"("cat":"%s","ph":"X","pid":%zu,"tid":%zu,"ts":%.3f,"dur":%.3f})",
                kind, rank, processor, start_us, us);
  out += R"({"name":)" + json_quoted(name) + "," + numbers + ",\n";
}

}  // namespace

std::vector<std::string> phase_names(const Program& program) {
  std::vector<std::string> names;
  for (const Phase& phase : program.phases) names.push_back(phase.name);
  return names;
}

Timeline make_timeline(std::span<const TraceEvent> events, int32_t events_each,
                       std::vector<std::vector<std::string>> phases, double nanoseconds_per_tick) {
  const auto each = static_cast<std::size_t>(events_each);
  ARK_CHECK(each > 0 && !phases.empty() && events.size() % (each * phases.size()) == 0,
            "a timeline that is no ring per processor");
  Timeline timeline{nanoseconds_per_tick, std::move(phases), {}, each};
  for (std::size_t at = 0; at < events.size(); at += each) {
    std::vector<TraceEvent> block;
    for (const TraceEvent& e : events.subspan(at, each))
      if (e.clock != 0) block.push_back(e);
    // A ring's oldest event lies somewhere in its middle.
    std::stable_sort(block.begin(), block.end(),
                     [](const TraceEvent& a, const TraceEvent& b) { return a.clock < b.clock; });
    timeline.blocks.push_back(std::move(block));
  }
  return timeline;
}

std::string perfetto_json(const Timeline& timeline) {
  uint64_t first = ~uint64_t{0};
  for (const auto& block : timeline.blocks)
    if (!block.empty()) first = std::min(first, block.front().clock);
  const double us = timeline.nanoseconds_per_tick / 1000;
  const std::size_t processors = processors_of(timeline);
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  for (std::size_t b = 0; b < timeline.blocks.size(); ++b) {
    const std::size_t rank = b / processors;
    for_spans(timeline.blocks[b], [&](const TraceEvent& e, double ticks) {
      const std::string& name = timeline.phases[rank].at(e.phase);
      append_event(out, e.kind == TraceKind::kWait ? "wait: " + name : name, kKinds[static_cast<int>(e.kind)],
                   rank, b % processors, static_cast<double>(e.clock - first) * us, ticks * us);
    });
  }
  for (std::size_t rank = 0; rank < timeline.phases.size(); ++rank) {
    const std::string number = std::to_string(rank);
    out += (rank > 0 ? ",\n" : "") + (R"({"name":"process_name","ph":"M","pid":)" + number) +
           R"(,"args":{"name":"rank )" + number + R"("}})";
  }
  return out + "\n]}\n";
}

std::vector<PhaseTimes> phase_times(const Timeline& timeline) {
  std::map<int32_t, PhaseTimes> phases;
  const double us = timeline.nanoseconds_per_tick / 1000;
  for (std::size_t b = 0; b < processors_of(timeline); ++b) {
    for_spans(timeline.blocks[b], [&](const TraceEvent& e, double ticks) {
      PhaseTimes& p = phases[e.phase];
      p.phase = e.phase;
      p.instances += e.kind == TraceKind::kRun;
      double* const sums[] = {&p.wait_us, &p.run_us, &p.publish_us};
      *sums[static_cast<int>(e.kind)] += ticks * us;
    });
  }
  std::map<int32_t, double> spans = spans_of(timeline);
  std::vector<PhaseTimes> out;
  for (auto& [phase, p] : phases) {
    p.span_us = spans[phase] * us;
    const double count = static_cast<double>(std::max<int64_t>(1, p.instances));
    p.wait_us /= count, p.run_us /= count, p.publish_us /= count;
    out.push_back(p);
  }
  return out;
}

}  // namespace ark
