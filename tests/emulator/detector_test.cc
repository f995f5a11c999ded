// The race detector against a plain one that forgets nothing: both find the first race of random accesses of all sizes
// by actors that sometimes hear of each other.
#include "tests/emulator/detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace ark::test {
namespace {

using namespace ark::emulator;

constexpr int kActors = 5, kBytes = 32;

// Keeps every access of each two bytes, the least that the detector tells apart.
class PlainDetector {
 public:
  PlainDetector() {
    for (int a = 0; a < kActors; ++a) known_[a][a] = 1;
  }
  // Whether it races with one before.
  bool access(int actor, int offset, int bytes, bool writes) {
    bool races = false;
    for (int pair = offset / 2; pair <= (offset + bytes - 1) / 2; ++pair) {
      for (const Access& earlier : accesses_[pair])
        races |= (earlier.writes || writes) && known_[actor][earlier.actor] < earlier.count;
      accesses_[pair].push_back({actor, known_[actor][actor], writes});
    }
    return races;
  }
  // What `from` has done is known to `to`.
  void tell(int from, int to) {
    for (int a = 0; a < kActors; ++a) known_[to][a] = std::max(known_[to][a], known_[from][a]);
    ++known_[from][from];
  }

 private:
  struct Access {
    int actor;
    int count;
    bool writes;
  };
  std::array<std::array<int, kActors>, kActors> known_{};  // [of][about]
  std::array<std::vector<Access>, kBytes / 2> accesses_;
};

TEST(Detector, FindsTheFirstRaceOfAccessesOfAnySize) {
  Memory memory;
  Detector detector(memory);
  const std::byte* bytes = memory.allocate(kBytes, 0, "bytes");
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
  int races = 0, alone = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    detector.restart();
    detector.forget(bytes, kBytes);
    const ActorId first = detector.add_actors(kActors * 32, -1);
    std::vector<Actor> actors;  // in warps of their own: lanes of one share an entry
    for (int a = 0; a < kActors; ++a)
      actors.push_back(detector.make_actor(static_cast<ActorId>(first + 32 * a)));
    PlainDetector plain;
    const uint32_t one_in = 1 + random() % 6, writes_in = 2 + random() % 8;
    bool expected = false;
    for (int step = 0; step < 60 && !expected; ++step) {
      const int actor = below(kActors);
      if (random() % one_in != 0) {
        const int other = below(kActors);
        if (other == actor) continue;
        const Message message = release(actors[actor]);
        acquire(actors[other], message);
        plain.tell(actor, other);
        continue;
      }
      const int size = 1 << below(5), offset = below(kBytes / size) * size;
      const bool writes = random() % writes_in == 0;
      expected = plain.access(actor, offset, size, writes);
      const Race* race = writes ? detector.write(actors[actor], bytes + offset, size, 1)
                                : detector.read(actors[actor], bytes + offset, size, 1);
      ASSERT_EQ(race != nullptr, expected) << "trial " << trial << ", step " << step;
    }
    for (const Actor& actor : actors) detector.retire(actor);
    races += expected, alone += !expected;
  }
  EXPECT_GT(races, 1000);
  EXPECT_GT(alone, 100);
}

}  // namespace
}  // namespace ark::test
