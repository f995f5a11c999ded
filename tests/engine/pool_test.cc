// Threads of the loops: what is launched runs as a whole or not at all.
#include "engine/cpu/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>

namespace ark::test {
namespace {

// A body of which only so many copies can be made.
struct Scarce {
  std::shared_ptr<int> copies_left;
  std::atomic<int>* ran;

  Scarce(int copies, std::atomic<int>* counts) : copies_left(std::make_shared<int>(copies)), ran(counts) {}
  Scarce(const Scarce& other) : copies_left(other.copies_left), ran(other.ran) {
    if (--*copies_left < 0) throw std::bad_alloc();
  }
  Scarce(Scarce&&) = default;
  void operator()(int) const { ++*ran; }
};

TEST(Pool, ALaunchWithoutMemoryLeavesNoBodyBehind) {
  constexpr int kCount = 3;
  bool is_launched = false;
  int copies = 0;
  for (; !is_launched; ++copies) {
    ASSERT_LT(copies, 100);
    std::atomic<int> ran = 0;
    {
      Pool pool;
      try {
        pool.launch(kCount, {}, Scarce(copies, &ran));
        is_launched = true;
      } catch (const std::bad_alloc&) {
      }
      std::atomic<bool> is_done = false;
      pool.launch(1, {}, [&](int) { is_done = true, is_done.notify_all(); });
      is_done.wait(false);
    }  // joins: whatever was left has run
    EXPECT_EQ(ran, is_launched ? kCount : 0) << copies << " copies";
  }
  EXPECT_GT(copies, kCount);
}

}  // namespace
}  // namespace ark::test
