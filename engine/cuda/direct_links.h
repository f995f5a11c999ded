// Channels among the ranks of one launch: in the memory of their device.
#pragma once

#include <span>

#include "engine/cuda/make_image.h"

namespace ark::cuda {

// `images` are all ranks, in rank order: fills all but weights and arenas.
void connect(std::span<const RankImage* const> images, std::span<RankPlaces> places);

}  // namespace ark::cuda
