// When a receiver of messages sleeps by the clock.
#include "dma/message.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ark::dma {
namespace {

// Naps of `waits` waits that follow one another closely, one message each; `there` messages have come after each.
// A thread that is held up between two waits naps less often, never more.
int naps_of(int waits, uint64_t there) {
  BatchNap nap;
  int naps = 0;
  for (int i = 0; i < waits; ++i) {
    const uint64_t received = static_cast<uint64_t>(i) + 1;
    nap.before_wait(received, [&](uint64_t n) {
      naps += n == received + 1;
      return n <= received + there;
    });
  }
  return naps;
}

TEST(BatchNap, GoesOnWhereSeveralMessagesComeMeanwhile) {
  constexpr int kWaits = 400, kFirst = static_cast<int>(BatchNap::kFirst);
  const int naps = naps_of(kWaits, BatchNap::kWorth);
  EXPECT_GT(naps, 0);
  EXPECT_LE(naps, kWaits - kFirst);
}

TEST(BatchNap, IsSeldomWhereEachMessageIsAnAnswer) {
  // After 32 waits, 64, 128, ...: one more each time that twice as many are over.
  EXPECT_LE(naps_of(1000, 1), 4);
}

TEST(BatchNap, IsNotWhereMessagesAreFarApart) {
  BatchNap nap;
  int looks = 0;
  for (uint64_t i = 1; i <= 3 * BatchNap::kFirst; ++i) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(BatchNap::kClose));
    nap.before_wait(i, [&](uint64_t) { return ++looks > 0; });
  }
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace ark::dma
