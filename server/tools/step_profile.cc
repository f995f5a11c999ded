#include "server/tools/step_profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/index.h"
#include "base/parallel.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "engine/run/weight_store.h"

namespace ark {
namespace {

// The last `steps` steps, or as many as the ring holds whole: what `steps` is then. The first may have lost a part.
std::span<const TraceEvent> last_steps(std::span<const TraceEvent> events, int64_t& steps) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < events.size(); ++i)
    if (events[i].kind == TraceKind::kDone) ends.push_back(i + 1);
  steps = std::min(steps, static_cast<int64_t>(ends.size()) - 1);
  if (steps <= 0) return {};
  const std::size_t begin = ends[ends.size() - 1 - at(steps)];
  return events.subspan(begin, ends.back() - begin);
}

// What a phase reads of weights and computes with them, over all its trips.
void count_work(const Program& program, const Phase& phase, const SymbolValues& sizes,
                PhaseProfile& profile) {
  const Variant& variant = program.variants[phase.variant];
  for (int32_t trip = 0; trip < profile.times; ++trip) {
    for (const Operand& operand : phase.operands) {
      const BufferId b = resolve(program, phase, operand, trip);
      if (b == kNone || program.buffers[b].weight == kNone) continue;
      if (variant.code == OpCode::kEmbed || variant.code == OpCode::kGeneric ||
          variant.code == OpCode::kExpertMatMul)
        continue;  // some of it
      profile.weight_bytes += packed_bytes(program.weights[program.buffers[b].weight]);
    }
    if (!is_product(variant.code)) continue;
    const Buffer& x = program.buffers[resolve(program, phase, phase.operands[0], trip)];
    const WeightUse& weight =
        program.weights[program.buffers[resolve(program, phase, phase.operands[1], trip)].weight];
    int64_t inputs = variant.code == OpCode::kGatedMatMul ? 2 : 1;  // whose weights are of one size
    for (const ValId v : x.dims) inputs *= program.vals[v].e.evaluate(sizes);
    profile.operations += 2 * inputs * matrix_columns(weight).size();
  }
}

}  // namespace

std::vector<PhaseProfile> step_profile(const Timeline& timeline, const Program& program, int64_t steps,
                                       const SymbolValues& sizes) {
  std::vector<PhaseProfile> phases(program.phases.size());
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const Phase& phase = program.phases[i];
    phases[i].phase = static_cast<PhaseId>(i);
    phases[i].name = phase.name;
    phases[i].code = name_of(program.variants[phase.variant].code);
    phases[i].times = phase.repeat == kNone ? 1 : program.repeats[phase.repeat].trips;
    count_work(program, phase, sizes, phases[i]);
  }
  const std::size_t processors = timeline.blocks.size() / timeline.phases.size();
  for (std::size_t b = 0; b < processors; ++b) {
    int64_t whole = steps;
    const std::span<const TraceEvent> events = last_steps(timeline.blocks[b], whole);
    if (whole <= 0) continue;
    const double ms = timeline.nanoseconds_per_tick / 1e6 / static_cast<double>(whole * at(processors));
    for (std::size_t i = 0; i + 1 < events.size(); ++i) {
      if (events[i].kind == TraceKind::kDone) continue;
      PhaseProfile& p = phases.at(at(events[i].phase));
      (events[i].kind == TraceKind::kWait ? p.wait_ms : p.run_ms) +=
          static_cast<double>(events[i + 1].clock - events[i].clock) * ms;
    }
  }
  std::ranges::stable_sort(phases, std::greater(),
                           [](const PhaseProfile& p) { return p.run_ms + p.wait_ms; });
  return phases;
}

std::string profile_text(const std::vector<PhaseProfile>& phases, double read_rate) {
  PhaseProfile all{.name = "all", .code = ""};
  for (const PhaseProfile& p : phases) {
    all.times += p.times, all.run_ms += p.run_ms, all.wait_ms += p.wait_ms;
    all.weight_bytes += p.weight_bytes, all.operations += p.operations;
  }
  const double whole = std::max(all.run_ms + all.wait_ms, 1e-9);
  std::string text = "      ms    wait  share  times     GB/s  of rate  GFLOP/s  phase\n";
  const auto line = [&](const PhaseProfile& p) {
    char numbers[96];
    const double seconds = std::max(p.run_ms, 1e-9) / 1e3,
                 rate = static_cast<double>(p.weight_bytes) / seconds;
    std::snprintf(numbers, sizeof numbers, "%8.3f %7.3f %5.1f%% %6d %8.1f %7.0f%% %8.1f  ", p.run_ms,
                  p.wait_ms, 100 * (p.run_ms + p.wait_ms) / whole, p.times, rate / 1e9,
                  read_rate > 0 ? 100 * rate / read_rate : 0,
                  static_cast<double>(p.operations) / seconds / 1e9);
    text += numbers + (p.code.empty() ? "" : p.code + " ") + escaped(p.name) + "\n";
  };
  for (const PhaseProfile& p : phases)
    if (p.run_ms + p.wait_ms >= whole / 1000) line(p);
  line(all);
  return text;
}

double read_rate(int threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // of all threads together: more than caches hold
  const std::vector<uint64_t> memory(kBytes / sizeof(uint64_t), 1);
  const std::size_t each = memory.size() / at(threads);
  std::atomic<uint64_t> sum{0};
  double best = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(threads, threads, [&](int64_t part) {
      const auto first = memory.begin() + static_cast<std::ptrdiff_t>(at(part) * each);
      sum += std::accumulate(first, first + static_cast<std::ptrdiff_t>(each), uint64_t{0});
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(each * at(threads) * sizeof(uint64_t)) / seconds.count());
  }
  ARK_CHECK(sum > 0, "memory was not read");
  return best;
}

}  // namespace ark
