// How a request lies in the ring (docs/dma.md), for hosts and for device code that posts there: no std here.
#pragma once

namespace ark::dma {

// The first word, from bit 0: commit bit, route, source region, target region; its upper half: bytes.
inline constexpr unsigned kCommitBits = 1, kRouteBits = 11, kSourceBits = 10, kTargetBits = 10;
static_assert(kCommitBits + kRouteBits + kSourceBits + kTargetBits == 32);
inline constexpr unsigned kRouteShift = kCommitBits, kSourceShift = kRouteShift + kRouteBits,
                          kTargetShift = kSourceShift + kSourceBits, kBytesShift = 32;
// The second word: offsets in source and target region, in units.
inline constexpr unsigned kOffsetUnit = 4, kTargetOffsetShift = 32;

// The ring: requests, and where its words lie.
inline constexpr unsigned kRingSlots = 512, kRequestBytes = 16;
inline constexpr unsigned kRingConsumedOffset = 2 * 64, kRingSlotsOffset = 3 * 64;

}  // namespace ark::dma
