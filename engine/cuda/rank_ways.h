// What ranks do in each other's memory, as far as all plan the same.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/make_image.h"
#include "engine/cuda/peer_links.h"

namespace ark::cuda {

using RankImages = std::vector<std::unique_ptr<RankImage>>;

// Collective, if there are `peers`; else ranks of one launch agree. `processors`: of a rank. `wanted`:
// alike on all ranks but for the flags.
RankWays agree_on_ways(const RankImages& images, PeerLinks* peers, int32_t processors, RankWays wanted);
// Of a rank's memory: parts and sums that ranks exchange so, where they go the ways that are chosen by cost.
uint64_t exchanged_bytes(const Program& program);
// Whether one of the images goes other ways than these.
bool takes_more(const RankImages& images, const RankWays& ways);

}  // namespace ark::cuda
