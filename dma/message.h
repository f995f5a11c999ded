// Messages of any length up to a slot over one channel: step descriptors and results (the mailbox).
//
// Who receives more quickly than the other sends would sleep, and have to be woken, before each message. Where that
// goes on for a while it sleeps by the clock, and takes what has come meanwhile: nobody is woken (NAPI, Enso).
//
// A slot holds the length (64 bits), padding to 64 bytes, then the message. Either end is used by one thread. Credits
// come for half of the slots at once: a sender that waits for room is woken once for all of these.
#pragma once

#include <cstring>
#include <span>

#include "dma/channel.h"

namespace ark::dma {

inline constexpr uint64_t kMessageHeader = 64;
// ChannelSpec::slot_bytes for messages of up to `capacity` bytes.
constexpr uint64_t message_slot_bytes(uint64_t capacity) { return kMessageHeader + capacity; }

namespace detail {
// Messages that a credit stands for.
inline uint64_t messages_per_credit(uint32_t slots) { return slots < 2 ? 1 : slots / 2; }
}  // namespace detail

class MessageSender {
 public:
  explicit MessageSender(const Sender& sender) : sender_(sender) {}

  uint64_t capacity() const { return sender_.slot_bytes - kMessageHeader; }

  // Waits for a free slot; the bytes are copied, `message` may be reused. kBadRequest if it is too long.
  Fault send(std::span<const std::byte> message, const WaitContext& context) {
    if (message.size() > capacity()) {
      return {FaultKind::kBadRequest, sender_.at("message longer than its slot"), capacity(), message.size()};
    }
    if (Fault fault = wait_for_slot(context)) return fault;
    std::byte* slot = sender_.slot(sent_);
    const uint64_t length = message.size();
    std::memcpy(slot, &length, sizeof length);
    if (length != 0) std::memcpy(slot + kMessageHeader, message.data(), length);
    const uint64_t bytes = (kMessageHeader + length + Request::kOffsetUnit - 1) & ~(Request::kOffsetUnit - 1);
    if (Fault fault = sender_.commit(sent_, 0, bytes, context)) return fault;
    ++sent_;
    return {};
  }

 private:
  Fault wait_for_slot(const WaitContext& context) const {
    if (sent_ < sender_.slots) return {};
    const uint64_t each = detail::messages_per_credit(sender_.slots);
    const uint64_t credits = (sent_ - sender_.slots) / each + 1;
    return wait_reached(*sender_.credit, sender_.first_count + credits, sender_.at("credit of message slots"),
                        context);
  }

  Sender sender_;
  uint64_t sent_ = 0;
};

// When a receiver that has nothing to read sleeps by the clock. It tries so after some waits that were short, and goes
// on as long as several messages come meanwhile; where one answers another, so that there is one each time, it seldom
// tries again.
class BatchNap {
 public:
  static constexpr int64_t kClose = 50'000;             // ns from message to message, at the most
  static constexpr int64_t kLongest = 400'000;          // ns
  static constexpr uint64_t kMessages = 16;             // that a nap is long enough for
  static constexpr uint64_t kWorth = 4;                 // that come in one that is worth it
  static constexpr uint32_t kFirst = 32, kRare = 4096;  // waits without a nap

  // `received`: messages so far; has_arrived(n): whether the n-th is there.
  template <class HasArrived>
  void before_wait(uint64_t received, const HasArrived& has_arrived) {
    const int64_t now = steady_ns();
    const uint64_t messages = received - received_;
    const int64_t gap = messages == 0 ? kClose : (now - began_) / static_cast<int64_t>(messages);
    began_ = now;
    received_ = received;
    if (gap >= kClose) return;
    if (left_ > 0) {
      --left_;
      return;
    }
    detail::blind_sleep(std::min(gap * static_cast<int64_t>(kMessages), kLongest));
    if (!has_arrived(received + 1)) return;  // it has held up nothing
    const bool was_worth = has_arrived(received + kWorth);
    between_ = was_worth ? kFirst : std::min(2 * between_, kRare);
    left_ = was_worth ? 0 : between_;
  }

 private:
  int64_t began_ = 0;      // the wait before
  uint64_t received_ = 0;  // by then
  uint32_t left_ = kFirst, between_ = kFirst;
};

class MessageReceiver {
 public:
  explicit MessageReceiver(const Receiver& receiver) : receiver_(receiver) {}

  bool has_message() const { return receiver_.has_arrived(received_ + 1); }

  // Waits for the next message and shows it in its slot, where it stays until release().
  Fault receive(std::span<const std::byte>& message, const WaitContext& context) {
    if (!has_message()) nap_.before_wait(received_, [&](uint64_t n) { return receiver_.has_arrived(n); });
    if (Fault fault = receiver_.wait(received_ + 1, context)) return fault;
    const std::byte* slot = receiver_.slot(received_);
    uint64_t length = 0;
    std::memcpy(&length, slot, sizeof length);
    // The length is a peer's word: never read past the slot.
    const uint64_t capacity = receiver_.slot_bytes - kMessageHeader;
    if (length > capacity) {
      return {FaultKind::kBadRequest, receiver_.at("length of a message"), capacity, length};
    }
    message = {slot + kMessageHeader, length};
    return {};
  }

  // Gives the slot of the message that receive() showed back to the sender.
  Fault release(const WaitContext& context) {
    if (++received_ % detail::messages_per_credit(receiver_.slots) != 0) return {};
    return receiver_.release(context);
  }

 private:
  Receiver receiver_;
  uint64_t received_ = 0;
  BatchNap nap_;
};

}  // namespace ark::dma
