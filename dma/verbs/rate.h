// How soon, and how fast, a session of transport `verbs-ud` sends: from the times that datagrams and their
// acknowledgements take together. All times are nanoseconds that the caller gives.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ark::dma {

// After which time without an answer a datagram is sent again (RFC 6298), and the least round trip of late.
class RoundTrips {
 public:
  // A pump that sleeps answers after a millisecond; one without a processor after some. The most: networks for RDMA
  // take microseconds, so that what takes longer is a rank that does not look.
  static constexpr int64_t kLeastTimeOut = 5'000'000, kMostTimeOut = 250'000'000;

  void add(int64_t time, int64_t now) {
    if (smooth_ == 0) {
      smooth_ = time;
      deviation_ = time / 2;
    } else {
      deviation_ += ((time > smooth_ ? time - smooth_ : smooth_ - time) - deviation_) / 4;
      smooth_ += (time - smooth_) / 8;
    }
    if (now - since_ > kMemory) {  // ways change: what was least long ago is forgotten
      before_ = recent_;
      recent_ = INT64_MAX;
      since_ = now;
    }
    recent_ = std::min(recent_, time);
  }

  int64_t time_out() const {
    return smooth_ == 0 ? 4 * kLeastTimeOut
                        : std::clamp(smooth_ + 4 * deviation_, kLeastTimeOut, kMostTimeOut);
  }
  int64_t least() const { return std::min(before_, recent_); }

 private:
  static constexpr int64_t kMemory = 2'000'000'000;

  int64_t smooth_ = 0, deviation_ = 0;
  int64_t since_ = 0, before_ = INT64_MAX, recent_ = INT64_MAX;
};

// Bytes a second, by round trips (Timely, SIGCOMM'15): a queue on the way shows as a round trip that is longer than the
// least, before anything is dropped. Losses say nothing: networks for which this is drop without being full.
class SendingRate {
 public:
  // `window`: bytes that are under way at most. What these take at full rate is no queue of others.
  SendingRate(double most, double window) : most_(most), window_(window), rate_(most) {}

  // Once a round trip; `delivered`: bytes a second that have arrived meanwhile; 0: of fewer than might have, as nothing
  // waited to be sent, so that a long round trip is not this session's doing.
  void change(int64_t round_trip, int64_t shortest, double delivered) {
    const auto now = static_cast<double>(round_trip), base = static_cast<double>(shortest);
    slope_ += kWeight * ((last_ == 0 ? 0 : now - last_) - slope_);
    last_ = now;
    const double low = 1.5 * base + kNaps + 1e9 * window_ / most_, high = low + 3 * base + 5 * kNaps;
    const bool falls = now < low || (now <= high && slope_ <= low / 16);
    calm_ = falls ? calm_ + 1 : 0;
    if (falls) {
      rate_ = std::min(rate_ + (calm_ >= kPatience ? kPatience : 1) * kStep * most_, most_);
    } else if (delivered > 0) {
      const double by = now > high ? 1 - high / now : std::min(slope_ / low, 1.0);
      // Round trips through a long queue are long: what comes through it is known sooner than they have taught it.
      // A part of the window is no queue, whatever makes round trips long.
      const double least = std::min(std::max(kLeast * most_, kShare * 1e9 * window_ / now), rate_);
      rate_ = std::max(std::min(rate_, delivered) * (1 - kDecrease * by), least);
    }
  }

  double rate() const { return rate_; }
  // At full rate there is nothing to pace.
  bool may_send(int64_t now) const { return now >= next_at_ || rate_ >= most_; }
  void sent(uint32_t bytes, int64_t now) {
    // A pump that comes late makes up for it, by as much.
    const auto late = static_cast<int64_t>(1e9 * kShare * window_ / rate_);
    next_at_ = std::max(next_at_, now - late) + static_cast<int64_t>(1e9 * bytes / rate_);
  }

 private:
  static constexpr double kNaps = 100e3;  // what pumps may sleep (wire_times.h), and answers wait
  static constexpr double kWeight = 0.125, kStep = 1.0 / 512, kDecrease = 0.5, kLeast = 1.0 / 1024,
                          kShare = 0.125;
  static constexpr int kPatience = 5;  // round trips in a row found too low a rate: it grows so much faster

  const double most_, window_;
  double rate_;
  double last_ = 0, slope_ = 0;  // round trip, and how it changes
  int calm_ = 0;
  int64_t next_at_ = 0;
};

}  // namespace ark::dma
