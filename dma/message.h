// Messages of any length up to a slot over one channel: step descriptors and results (the mailbox).
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

class MessageReceiver {
 public:
  explicit MessageReceiver(const Receiver& receiver) : receiver_(receiver) {}

  bool has_message() const { return receiver_.has_arrived(received_ + 1); }

  // Waits for the next message and shows it in its slot, where it stays until release().
  Fault receive(std::span<const std::byte>& message, const WaitContext& context) {
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
};

}  // namespace ark::dma
