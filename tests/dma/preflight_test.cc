#include "dma/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "dma/faults.h"
#include "dma/local/setup.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Pair> all_try(int size, bool posted) {
  EndpointSpec spec;
  spec.channels = {preflight_channel(Priority::kDecode)};
  spec.force_posted = posted;
  auto groups = make_local_groups(
      size, [&](int) { return spec; }, soon());
  std::vector<std::vector<Pair>> told(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] { told[rank] = preflight(*groups[rank], 0, soon()); });
  }
  for (const auto& pairs : told) EXPECT_EQ(text_of(pairs), text_of(told[0])) << "all are told the same";
  return told[0];
}

TEST(Preflight, EachPairIsTriedOnceWhateverTheNumberOfRanks) {
  for (const int size : {2, 3, 4, 7}) {
    const std::vector<Pair> pairs = all_try(size, size % 2 == 1);
    std::set<std::pair<int, int>> seen;
    for (const Pair& pair : pairs) {
      EXPECT_LT(pair.low, pair.high);
      seen.emplace(pair.low, pair.high);
      EXPECT_EQ(pair.transport, "local");
      EXPECT_GT(pair.latency_us, 0);
      EXPECT_GT(pair.gigabytes_per_s, 0);
    }
    EXPECT_EQ(std::ssize(seen), size * (size - 1) / 2);
    EXPECT_EQ(seen.size(), pairs.size());
  }
}

TEST(Preflight, APairThatDoesNotReachEachOtherIsNamed) {
  EndpointSpec spec;
  spec.channels = {preflight_channel(Priority::kDecode)};
  spec.force_posted = true;
  auto transports = make_local_transports(2);
  transports[0] = with_faults(std::move(transports[0]), {});
  transports[1] = with_faults(std::move(transports[1]), {.cut_after = 0});
  auto groups = make_local_groups(
      2, [&](int) { return spec; }, soon(), std::move(transports));
  std::string errors[2];
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        errors[rank] =
            error_of([&] { preflight(*groups[rank], 0, Deadline::after(std::chrono::milliseconds(300))); });
      });
  }
  EXPECT_THAT(errors[0], HasSubstr("ranks 0 and 1 do not reach each other by local+faults: "));
}

TEST(Preflight, TellsByTransportAndNamesWhoIsFarBehind) {
  std::vector<Pair> pairs = {{0, 1, "shm", 2, 8},     {0, 2, "socket", 50, 1.1}, {0, 3, "socket", 60, 1},
                             {1, 2, "socket", 55, 1}, {1, 3, "socket", 52, 1},   {2, 3, "shm", 2.4, 8.4}};
  EXPECT_EQ(text_of(pairs),
            "by shm 0-1, 2-3: 2.0 to 2.4 us, 8.0 to 8.4 GB/s; by socket 0-2, 0-3, 1-2, 1-3: 50 to 60 us, 1.0 "
            "to 1.1 GB/s");
  EXPECT_TRUE(outliers(pairs).empty());
  pairs[4].latency_us = 900;
  EXPECT_THAT(outliers(pairs), ElementsAre(HasSubstr("ranks 1 and 3 are slow to reach each other by socket: "
                                                     "900 us and 1.0 GB/s, where 60 us")));
  pairs[2].gigabytes_per_s = 0.05;
  EXPECT_EQ(outliers(pairs).size(), 2u);
  pairs[0].gigabytes_per_s = 0.05;
  EXPECT_EQ(outliers(pairs).size(), 2u) << "of two pairs nobody can tell which is the odd one";
}

}  // namespace
}  // namespace ark::dma
