#include "engine/cuda/cost/rates.h"

#include <array>
#include <string>

#include "base/error.h"

namespace ark::cuda::cost {
namespace {

constexpr Source kMeasured = Source::kMeasured, kFitted = Source::kFitted, kDatasheet = Source::kDatasheet,
                 kPaper = Source::kPaper, kDerived = Source::kDerived;

// Others have the H100's cycles at their own clock.
Rates derived(std::string_view arch, std::string_view card, int32_t processors, int32_t shared,
              int64_t l2_mib, double ghz, double bytes_a_nanosecond, double sent, const Rates& like) {
  Rates r = like;
  r.arch = arch, r.card = card, r.processors = processors, r.shared_per_block = shared;
  r.l2_bytes = l2_mib << 20;
  r.clock = {ghz, kDatasheet};
  r.peak = {bytes_a_nanosecond, kDatasheet};
  r.stream = {bytes_a_nanosecond * like.stream.value / like.peak.value, kDerived};
  const double slower = like.clock.value / ghz;
  r.sent = {sent, kDerived};
  r.link = {like.link.value / slower, kDerived};
  r.share = {like.share.value / slower, kDerived};
  for (Rate* rate : {&r.l2, &r.memory, &r.barrier, &r.release, &r.hop, &r.trip, &r.raise, &r.cold, &r.enter,
                     &r.skip, &r.hold})
    *rate = {rate->value * slower, kDerived};
  r.open.source = r.close.source = kDerived;  // the bus and the host: as they are there
  return r;
}

std::vector<Rates> make() {
  // Fitted to GPT-2's phases at batch 1, of which each shows another: norms cold and memory, append l2, the head
  // stream, q beside k and v release. Measured by themselves: hop, and raise as what a barrier of 132 blocks takes
  // longer than a hop. Enter and hold were one number of 900: all released then, and thread 0, which does, keeps the
  // others waiting at the next barrier. What is done before a wait is what an instance without tiles is; the rest is
  // the release's. The border of steps was measured as a whole: 20-25 us. Between GPUs nothing of ours was measured: a
  // trip is a hop through two L2s and the links between; of the links' 450 bytes a nanosecond 83 % were seen, of which
  // others are thought to have as much.
  const Rates h100 = {.arch = "sm_90a",
                      .card = "H100 SXM5 80GB",
                      .processors = 132,
                      .shared_per_block = 232448,
                      .l2_bytes = 50 << 20,
                      .clock = {1.98, kMeasured},
                      .peak = {3350, kDatasheet},
                      .stream = {2850, kFitted},
                      .link = {126, kPaper},
                      .share = {42, kDerived},
                      .sent = {376, kPaper},
                      .l2 = {200, kFitted},
                      .memory = {800, kFitted},
                      .barrier = {20, kPaper},
                      .release = {600, kFitted},
                      .hop = {620, kMeasured},
                      .trip = {1000, kDerived},
                      .raise = {3, kMeasured},
                      .cold = {900, kFitted},
                      .enter = {450, kDerived},
                      .skip = {450, kFitted},
                      .hold = {450, kDerived},
                      .open = {12000, kMeasured},
                      .close = {10000, kMeasured}};
  return {derived("sm_80", "A100 SXM4 80GB", 108, 166912, 40, 1.41, 2039, 250, h100),
          derived("sm_89", "L40S", 142, 101376, 96, 2.52, 864, 26, h100), h100,
          derived("sm_100", "B200", 148, 232448, 126, 1.965, 8000, 750, h100),
          derived("sm_120", "RTX PRO 6000", 188, 101376, 128, 2.6, 1792, 53, h100)};
}

}  // namespace

std::string_view name_of(Source source) {
  constexpr std::array<std::string_view, 5> kNames = {"measured", "fitted", "data sheet", "paper", "derived"};
  return kNames[static_cast<std::size_t>(source)];
}

std::vector<RateRow> rows_of(const Rates& r) {
  return {{"clock", "GHz", r.clock},
          {"memory at its peak", "GB/s", r.peak},
          {"memory as weights are streamed", "GB/s", r.stream},
          {"L2 to a processor", "GB/s", r.link},
          {"L2 to a processor, while all read", "GB/s", r.share},
          {"GPU to other GPUs", "GB/s", r.sent},
          {"load from L2", "ns", r.l2},
          {"load from memory", "ns", r.memory},
          {"barrier of a block", "ns", r.barrier},
          {"stores, until others see them", "ns", r.release},
          {"release to acquire, block to block", "ns", r.hop},
          {"the same, GPU to GPU", "ns", r.trip},
          {"word raised, one block after the other", "ns", r.raise},
          {"instructions that the cache has lost", "ns", r.cold},
          {"instance, before its wait", "ns", r.enter},
          {"instance without tiles", "ns", r.skip},
          {"instance held up by a release", "ns", r.hold},
          {"post to the first instance", "ns", r.open},
          {"last instance to the host", "ns", r.close}};
}

const std::vector<Rates>& all_rates() {
  static const auto* const kAll = new std::vector<Rates>(make());
  return *kAll;
}

const Rates& rates_of(std::string_view arch) {
  if (arch == "sm_100a") arch = "sm_100";  // as code for it is named
  std::string known;
  for (const Rates& r : all_rates()) {
    if (r.arch == arch) return r;
    known += (known.empty() ? "" : ", ") + std::string(r.arch);
  }
  throw Error(Code::kUsage, "--arch '" + escaped(std::string(arch)) + "' is none of " + known);
}

}  // namespace ark::cuda::cost
