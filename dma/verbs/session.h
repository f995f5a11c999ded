// Go-back-N: what makes an ordered wire of datagrams that are lost, doubled and late. Both directions between two ranks
// for one priority. Knows neither devices nor clocks: times are nanoseconds that the caller gives.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "dma/transport.h"
#include "dma/verbs/datagram.h"
#include "dma/verbs/rate.h"
#include "dma/wire_times.h"

namespace ark::dma {

class DatagramSession {
 public:
  // Near the end, so that every session of some length shows that numbers may wrap.
  static constexpr uint32_t kFirst = UINT32_MAX - 499;
  // Transfers that wait here: so few that numbers in use stay fewer than 2^32.
  static constexpr size_t kMostTransfers = 128;
  static constexpr uint32_t kLeastAttempts = 7;  // before the wire counts as cut

  struct Counts {
    uint64_t sent = 0;   // datagrams with a number
    uint64_t again = 0;  // of these, such as had been sent before
    uint64_t gaps = 0, time_outs = 0;
    int64_t longest_stall = 0;  // from one acknowledgement of something new to the next, nanoseconds
    uint32_t most_attempts = 0;
    int64_t longest_time_out = 0;
  };

  // `window`: numbers that may be under way; the receiver has posted as many receives. `payload`: most bytes of a
  // datagram. `rate`: bytes a second of the port.
  DatagramSession(uint32_t window, uint32_t payload, double rate, uint32_t first = kFirst)
      : window_(window),
        payload_(payload),
        rate_(rate, static_cast<double>(payload) * window),
        sent_at_(std::bit_ceil(window)),
        acked_(first),
        next_(first),
        highest_(first),
        end_(first),
        rated_(first),
        awaited_(first) {}

  // ---- what is sent
  bool has_room() const { return queue_.size() < kMostTransfers; }
  // The source stays in use until take() tells the transfer's id.
  void push(const Transfer& transfer) {
    const uint64_t pieces = std::max<uint64_t>(1, (transfer.bytes + payload_ - 1) / payload_);
    queue_.push_back({transfer, end_, static_cast<uint32_t>(pieces), Datagram::kTransfer});
    end_ += static_cast<uint32_t>(pieces);
  }
  void push_leaving() { queue_.push_back({{}, end_++, 1, Datagram::kLeaving}); }

  bool may_send(int64_t now) const {
    return next_ != end_ && next_ - acked_ < (is_probing_ ? 1 : window_) && rate_.may_send(now);
  }
  // The next datagram, which may_send: fills the head but for secret, sender and priority. Returns the transfer of
  // which the payload is head.bytes from `offset` on.
  const Transfer& next(Datagram& head, uint64_t& offset, int64_t now) {
    while (next_ - queue_[cursor_].first >= queue_[cursor_].pieces) ++cursor_;
    const Outgoing& out = queue_[cursor_];
    const uint32_t piece = next_ - out.first;
    offset = uint64_t{piece} * payload_;
    head.kind = out.kind;
    head.number = next_;
    head.bytes = static_cast<uint16_t>(std::min<uint64_t>(payload_, out.transfer.bytes - offset));
    head.target = out.transfer.target;
    head.target_offset = out.transfer.target_offset + offset;
    if (piece + 1 == out.pieces) {
      head.counter = static_cast<uint16_t>(out.transfer.counter);
      head.raise_by = static_cast<uint32_t>(out.transfer.raise_by);
    }
    if (highest_ == acked_) {
      timer_from_ = progress_at_ = rated_at_ = now;
      rated_ = acked_;
    }
    if (next_ == acked_ && is_probing_) timer_from_ = now;
    stamp(head, now);
    sent_at_[next_ & (sent_at_.size() - 1)] = head.sent_at;
    rate_.sent(head.bytes + static_cast<uint32_t>(sizeof head), now);
    ++counts_.sent;
    if (next_++ == highest_)
      ++highest_;
    else
      ++counts_.again;
    owed_ = 0;
    must_tell_ = false;
    return out.transfer;
  }

  // An acknowledgement alone is due: of many datagrams, or where nothing has come since nor gone out that tells it.
  bool owes(int64_t now) const {
    return must_tell_ || has_gap_ || owed_ > window_ / 4 || (owed_ != 0 && now - taken_at_ >= kAnswerAfter);
  }
  void acknowledge(Datagram& head, int64_t now) {
    head.kind = has_gap_ ? Datagram::kGap : Datagram::kTaken;
    stamp(head, now);
    owed_ = 0;
    must_tell_ = has_gap_ = false;
  }

  // ---- what comes
  // One that is allowed. True: it is the one that was awaited, and counts now. Appends to `ended` the ids of transfers
  // of ours that have arrived whole.
  bool take(const Datagram& head, int64_t now, std::vector<uint64_t>& ended) {
    hear(head, now, ended);
    if (!head.has_number()) return false;
    echo_ = head.sent_at;
    const uint32_t ahead = head.number - awaited_;
    if (ahead == 0) {
      ++awaited_;
      ++owed_;
      taken_at_ = now;
      behind_gap_ = ahead_ = 0;
      // Its sender waits for this answer before it goes, and does not hear whether it is lost.
      must_tell_ |= head.kind == Datagram::kLeaving;
      return true;
    }
    if (ahead > UINT32_MAX / 2) {
      must_tell_ = true;  // had been taken before: the acknowledgement was lost
    } else {
      // Also where the sender has gone back, and the awaited one was lost again.
      has_gap_ |= behind_gap_++ % kGapEvery == 0 || ahead <= ahead_;
      ahead_ = ahead;
    }
    return false;
  }

  // ---- time
  // Goes back where an acknowledgement is overdue: one datagram is sent again, and the rest once that is answered, so
  // that who does not look for a while is not flooded. Nor need time-outs grow at once, as they cost one datagram.
  void look_at_clock(int64_t now) {
    if (!waits() || next_ == acked_ || now - timer_from_ < time_out()) return;
    counts_.longest_time_out = std::max(counts_.longest_time_out, time_out());
    counts_.most_attempts = std::max(counts_.most_attempts, ++attempts_);
    ++counts_.time_outs;
    is_probing_ = true;
    probed_at_ = last_stamp_ + 1;
    go_to(acked_);
  }
  // Nothing has come back for so long, though it was asked for often enough.
  bool is_cut(int64_t now) const {
    return attempts_ >= kLeastAttempts &&
           now - progress_at_ > std::chrono::nanoseconds(kMostUnanswered).count();
  }
  int64_t time_out() const {
    const int64_t once = round_trips_.time_out();
    return std::min(once << (attempts_ < kPatient ? 0 : std::min(attempts_ - kPatient + 1, 10u)),
                    RoundTrips::kMostTimeOut);
  }

  bool waits() const { return highest_ != acked_; }  // for acknowledgements
  bool is_drained() const { return end_ == acked_ && owed_ == 0; }
  bool has_unsent() const { return next_ != end_; }
  uint32_t acknowledged() const { return acked_; }
  uint32_t awaited() const { return awaited_; }
  uint32_t sent() const { return highest_; }
  double rate() const { return rate_.rate(); }
  const Counts& counts() const { return counts_; }
  // All that is under way is given up: the peer has left. Appends their ids.
  void give_up(std::vector<uint64_t>& ended) {
    for (const Outgoing& out : queue_)
      if (out.transfer.id != 0) ended.push_back(out.transfer.id);
    queue_.clear();
    acked_ = next_ = highest_ = end_;
    cursor_ = 0;
    owed_ = 0;
  }

 private:
  static constexpr uint32_t kGapEvery = 8;  // of those behind a gap, one is answered
  static constexpr int64_t kAnswerAfter = 30'000;
  static constexpr uint32_t kPatient = 4;  // attempts, before time-outs double

  struct Outgoing {
    Transfer transfer;
    uint32_t first;   // number of its first datagram
    uint32_t pieces;  // and how many it has
    Datagram::Kind kind;
  };

  void stamp(Datagram& head, int64_t now) {
    head.sent_at = last_stamp_ = std::max(now, last_stamp_ + 1);
    head.echo = echo_;
    head.awaited = awaited_;
  }

  void hear(const Datagram& head, int64_t now, std::vector<uint64_t>& ended) {
    const uint32_t newly = head.awaited - acked_;
    if (newly > highest_ - acked_) return;  // older than what is known, or of what has never been sent
    const bool is_echo = head.echo > 0 && head.echo <= last_stamp_;
    if (is_echo && head.echo > echoed_) {  // each is measured once: later datagrams repeat it
      echoed_ = head.echo;
      const int64_t time = std::max<int64_t>(1, now - head.echo);
      round_trips_.add(time, now);
      if (head.echo >= rate_from_) {
        const double arrived = has_unsent() ? static_cast<double>(head.awaited - rated_) * payload_ : 0;
        rate_.change(time, round_trips_.least(),
                     1e9 * arrived / static_cast<double>(std::max<int64_t>(1, now - rated_at_)));
        rated_ = head.awaited;
        rated_at_ = now;
        rate_from_ = last_stamp_;  // what goes out from now on goes at the new rate
      }
    }
    if (newly != 0) {
      // What has been answered was sent before the time-out: that was too soon, and the others are under way, too.
      const bool was_early = is_probing_ && is_echo && head.echo < probed_at_;
      counts_.longest_stall = std::max(counts_.longest_stall, now - progress_at_);
      acked_ += newly;
      attempts_ = 0;
      is_probing_ = false;
      timer_from_ = progress_at_ = now;
      while (!queue_.empty() && acked_ - queue_.front().first >= queue_.front().pieces) {
        if (queue_.front().transfer.id != 0) ended.push_back(queue_.front().transfer.id);
        queue_.pop_front();
      }
      go_to(was_early ? highest_ : highest_ - next_ > highest_ - acked_ ? acked_ : next_);
    }
    // One that was sent after the awaited one was sent last has overtaken it: networks keep order, so it is lost.
    if (head.kind == Datagram::kGap && waits() && is_echo && next_ != acked_ &&
        head.echo > sent_at_[acked_ & (sent_at_.size() - 1)]) {
      ++counts_.gaps;
      go_to(acked_);
    }
  }

  void go_to(uint32_t number) {
    next_ = number;
    cursor_ = 0;  // next() goes on from there: a window has few transfers
  }

  const uint32_t window_, payload_;
  SendingRate rate_;
  RoundTrips round_trips_;
  std::deque<Outgoing> queue_;    // from the oldest that is not acknowledged whole
  size_t cursor_ = 0;             // in the queue: where next_ is, or before it
  std::vector<int64_t> sent_at_;  // by number: when it was sent last
  // Numbers: acknowledged before; sent next; sent at most before; queued before.
  uint32_t acked_, next_, highest_, end_;
  bool is_probing_ = false;  // since a time-out, until something new is acknowledged
  int64_t probed_at_ = 0;
  uint32_t attempts_ = 0;  // time-outs since then
  int64_t timer_from_ = 0, progress_at_ = 0;
  int64_t last_stamp_ = 0, echoed_ = 0;
  // The last change of the rate: when, up to which number, and the first stamp of what it counts for.
  int64_t rated_at_ = 0, rate_from_ = 0;
  uint32_t rated_;

  uint32_t awaited_;         // number that comes next
  uint32_t owed_ = 0;        // taken since the last acknowledgement,
  int64_t taken_at_ = 0;     // the last of them then
  uint32_t behind_gap_ = 0;  // that have come instead of the awaited one
  uint32_t ahead_ = 0;       // of that one: the last of these
  bool must_tell_ = false, has_gap_ = false;
  int64_t echo_ = 0;
  Counts counts_;
};

}  // namespace ark::dma
