// Before anything is served each pair of ranks tries its way out: what carries it, how soon and how much of it arrives,
// and whether it arrives as it was sent.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dma/group.h"

namespace ark::dma {

struct Pair {
  int low = 0, high = 0;
  std::string transport;
  double latency_us = 0;       // of 8 bytes one way, the least that was seen
  double gigabytes_per_s = 0;  // one way, the most that was seen
};

// For a channel of the spec that nothing else uses.
ChannelSpec preflight_channel(Priority priority);
// Collective; all get all pairs. Takes less than a second, however slow the pairs are that are through at all. Throws
// Error(kUnavailable) that names a pair through which nothing comes, or not what was sent.
std::vector<Pair> preflight(Group& group, uint32_t channel, Deadline deadline);

// "by shm 0-1, 2-3: 2.1 to 2.4 us, 8.1 to 8.3 GB/s; by socket ...".
std::string text_of(std::span<const Pair> pairs);
// A line for each pair that is far behind the others that the same carries.
std::vector<std::string> outliers(std::span<const Pair> pairs);

}  // namespace ark::dma
