// How fast a GPU's architecture is: the numbers that a replay of a step (replay.h) is made with, few and each with its
// source. What instructions take in cycles stands at the bodies' work (work.cc).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ark::cuda::cost {

// Where a number comes from.
enum class Source : uint8_t {
  kMeasured,   // by this loop on the card (docs/gpu-results.md)
  kFitted,     // so that a replay gives a figure measured there
  kDatasheet,  // NVIDIA's
  kPaper,  // micro-benchmarks: arXiv:2402.13499 (Hopper), arXiv:2208.11174 (Ampere), arXiv:2507.10789 (Blackwell);
           // between GPUs: p2pBandwidthLatencyTest of eight H100s, github.com/NVIDIA/nccl/issues/1264
  kDerived,  // of the H100's by clock or bandwidth: no card was there
};
std::string_view name_of(Source source);

struct Rate {
  double value = 0;
  Source source = Source::kDerived;
};

struct Rates {
  std::string_view arch, card;
  int32_t processors = 0;        // SMs
  int32_t shared_per_block = 0;  // bytes
  int64_t l2_bytes = 0;
  Rate clock;   // GHz
  Rate peak;    // bytes a nanosecond from memory: the byte floor
  Rate stream;  // the same, as the ring of weights gets them
  Rate link;    // bytes a nanosecond from L2 to one processor, at most
  Rate share;   // the same, while all read
  Rate sent;    // bytes a nanosecond from the GPU to others
  // Nanoseconds.
  Rate l2, memory;   // a dependent load that L2 has; that comes from memory, which weights are streamed from
  Rate barrier;      // of a block's consumers
  Rate release;      // of a block's stores, until they are where others see them: before a word is raised
  Rate hop;          // from then to whom its acquire lets go on, block to block
  Rate trip;         // the same to another GPU
  Rate raise;        // of one word by several blocks: one after the other
  Rate cold;         // instructions that the cache has lost since they ran last: of a body, of a join
  Rate enter, skip;  // an instance up to its wait; one in which the processor takes no part
  Rate hold;         // of the block's own next instance, by a release
  Rate open, close;  // from the host's post to the first instance; from the last one to the host
};

// Every number of the table, with its unit.
struct RateRow {
  std::string_view name, unit;
  Rate rate;
};
std::vector<RateRow> rows_of(const Rates& rates);

// sm_80, sm_89, sm_90a, sm_100, sm_120: a card of each.
const std::vector<Rates>& all_rates();
// Throws Error(kUsage) naming those that are known.
const Rates& rates_of(std::string_view arch);

}  // namespace ark::cuda::cost
