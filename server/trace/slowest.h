// The slowest requests of the last minutes, however many there were: a few of each minute are kept, of each the slowest
// of its sequences.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "server/schedule/record.h"

namespace ark::trace {

using RecordPtr = std::shared_ptr<const schedule::Record>;

enum class By : uint8_t { kTotal, kFirstToken, kPause };
inline constexpr std::size_t kOrders = 3;
// Nanoseconds; 0 where the request came to no token.
int64_t slowness(const schedule::Record& record, By by);
// And what they went to.
const schedule::Shares& shares_of(const schedule::Record& record, By by);

// Any thread.
class Slowest {
 public:
  using Clock = schedule::Record::Clock;
  static constexpr int64_t kMinutes = 15;   // that are kept
  static constexpr std::size_t kEach = 20;  // of each of them, in each order

  void add(const RecordPtr& record, Clock::time_point now = Clock::now());
  // Of those that ended in the last `minutes` and whose id begins with `id`, the slowest first.
  std::vector<RecordPtr> find(By by, int64_t minutes, std::size_t count, std::string_view id,
                              Clock::time_point now = Clock::now()) const;

 private:
  struct Minute {
    int64_t number = -1;
    std::array<std::vector<RecordPtr>, kOrders> records;  // heaps, the fastest first
  };

  mutable std::mutex mutex_;
  std::array<Minute, kMinutes + 1> minutes_;  // by number, modulo
};

}  // namespace ark::trace
