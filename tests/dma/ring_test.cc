#include "dma/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace ark::dma {
namespace {

TEST(Ring, CarriesEveryFieldAtItsLimits) {
  auto ring = std::make_unique<Ring>();
  const Request widest{Request::kRoutes - 1,      Request::kRegions - 1,     Request::kRegions - 1,
                       Request::kOffsetLimit - 4, Request::kOffsetLimit - 8, UINT32_MAX};
  ASSERT_TRUE(widest.is_packable());
  for (uint64_t turn = 0; turn < Ring::kSlots * 3; ++turn) {
    ASSERT_TRUE(ring->try_push(turn % 2 == 0 ? widest : Request{}));
    Request got;
    ASSERT_TRUE(ring->try_pop(got));
    ASSERT_EQ(got.route, turn % 2 == 0 ? widest.route : 0);
    ASSERT_EQ(got.source, turn % 2 == 0 ? widest.source : 0);
    ASSERT_EQ(got.target, turn % 2 == 0 ? widest.target : 0);
    ASSERT_EQ(got.source_offset, turn % 2 == 0 ? widest.source_offset : 0);
    ASSERT_EQ(got.target_offset, turn % 2 == 0 ? widest.target_offset : 0);
    ASSERT_EQ(got.bytes, turn % 2 == 0 ? widest.bytes : 0);
    ASSERT_FALSE(ring->try_pop(got)) << "an old lap is not a new request";
  }
}

TEST(Ring, KnowsWhatDoesNotFit) {
  EXPECT_FALSE((Request{Request::kRoutes}.is_packable()));
  EXPECT_FALSE((Request{0, Request::kRegions}.is_packable()));
  EXPECT_FALSE((Request{0, 0, Request::kRegions}.is_packable()));
  EXPECT_FALSE((Request{0, 0, 0, 2}.is_packable()));
  EXPECT_FALSE((Request{0, 0, 0, 0, Request::kOffsetLimit}.is_packable()));
}

TEST(Ring, FullAtItsSizeOnEveryLap) {
  auto ring = std::make_unique<Ring>();
  Request got;
  for (int lap = 0; lap < 5; ++lap) {
    for (uint64_t i = 0; i < Ring::kSlots; ++i)
      ASSERT_TRUE(ring->try_push({.bytes = static_cast<uint32_t>(i)}));
    EXPECT_FALSE(ring->try_push({}));
    const Fault fault =
        ring->push({}, {.what = "room"}, {nullptr, Deadline::after(std::chrono::milliseconds(5)), {}});
    EXPECT_EQ(fault.kind, FaultKind::kDeadline);
    for (uint64_t i = 0; i < Ring::kSlots; ++i) {
      ASSERT_TRUE(ring->try_pop(got));
      ASSERT_EQ(got.bytes, i);
    }
    EXPECT_TRUE(ring->is_empty());
    ASSERT_TRUE(ring->try_push({}));  // laps start at different slots
    ASSERT_TRUE(ring->try_pop(got));
  }
}

TEST(Ring, GivenToADeviceItTakesNothingFromTheHost) {
  auto ring = std::make_unique<Ring>();
  ASSERT_TRUE(ring->close_to_host());
  EXPECT_FALSE(ring->close_to_host()) << "one owner";
  EXPECT_FALSE(ring->try_push({}));
  const WaitContext soon{nullptr, Deadline::after(std::chrono::milliseconds(5)), {}};
  EXPECT_EQ(ring->push({}, {.what = "room"}, soon).kind, FaultKind::kDeadline);
  // A device's request: its second word, then the first, by the offsets that devices know.
  std::byte* slot = reinterpret_cast<std::byte*>(ring.get()) + kRingSlotsOffset;
  const Request sent{
      .route = 5, .source = 6, .target = 7, .source_offset = 8, .target_offset = 12, .bytes = 16};
  const uint64_t words[2] = {1 | sent.head() | uint64_t{16} << 32, 2 | uint64_t{3} << 32};
  std::memcpy(slot, words, sizeof words);
  Request got;
  ASSERT_TRUE(ring->try_pop(got));
  EXPECT_EQ(got.route, 5);
  EXPECT_EQ(got.source, 6);
  EXPECT_EQ(got.target, 7);
  EXPECT_EQ(got.source_offset, 8u);
  EXPECT_EQ(got.target_offset, 12u);
  EXPECT_EQ(got.bytes, 16u);
  uint64_t consumed = 0;
  std::memcpy(&consumed, reinterpret_cast<std::byte*>(ring.get()) + kRingConsumedOffset, sizeof consumed);
  EXPECT_EQ(consumed, 1u);

  auto used = std::make_unique<Ring>();
  ASSERT_TRUE(used->try_push({}));
  EXPECT_FALSE(used->close_to_host()) << "the host posts here already";
  EXPECT_TRUE(used->try_push({}));
}

TEST(Ring, ManyProducersLoseAndTearNothing) {
  constexpr uint64_t kProducers = 3, kEach = 20'000;
  auto ring = std::make_unique<Ring>();
  std::vector<std::jthread> producers;
  for (uint16_t producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const Request request{producer, 0, 0, i * uint64_t{4}, (kEach - i) * 4, i};
        if (ring->push(request, {}, WaitContext{})) return;
      }
    });
  }
  std::vector<uint32_t> next(kProducers);
  for (uint64_t taken = 0; taken < kProducers * kEach;) {
    Request got;
    if (!ring->try_pop(got)) {
      std::this_thread::yield();
      continue;
    }
    ++taken;
    ASSERT_LT(got.route, kProducers);
    ASSERT_EQ(got.bytes, next[got.route]++) << "in the producer's order";
    ASSERT_EQ(got.source_offset, got.bytes * uint64_t{4});
    ASSERT_EQ(got.target_offset, (kEach - got.bytes) * 4);
  }
}

TEST(Region, ContainsDoesNotOverflow) {
  const Region region{nullptr, 100};
  EXPECT_TRUE(region.contains(0, 100));
  EXPECT_TRUE(region.contains(100, 0));
  EXPECT_FALSE(region.contains(101, 0));
  EXPECT_FALSE(region.contains(1, 100));
  EXPECT_FALSE(region.contains(UINT64_MAX, 1));
  EXPECT_FALSE(region.contains(1, UINT64_MAX));
}

}  // namespace
}  // namespace ark::dma
