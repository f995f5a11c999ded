// Messages of any length up to a slot over one channel: step descriptors and results (the mailbox).
//
// A slot holds the length (64 bits), padding to 64 bytes, then the message. Either end is used by one thread.
#pragma once

#include <cstring>
#include <span>

#include "dma/channel.h"

namespace ark::dma {

inline constexpr uint64_t kMessageHeader = 64;
// ChannelSpec::slot_bytes for messages of up to `capacity` bytes.
constexpr uint64_t message_slot_bytes(uint64_t capacity) { return kMessageHeader + capacity; }

class MessageSender {
 public:
  explicit MessageSender(const Sender& sender) : sender_(sender) {}

  uint64_t capacity() const { return sender_.slot_bytes - kMessageHeader; }

  // Waits for a free slot; the bytes are copied, `message` may be reused. kBadRequest if it is too long.
  Fault send(std::span<const std::byte> message, const WaitContext& context) {
    if (message.size() > capacity()) {
      return {FaultKind::kBadRequest, sender_.at("message longer than its slot"), capacity(), message.size()};
    }
    if (Fault fault = sender_.acquire(sent_, context)) return fault;
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
    ++received_;
    return receiver_.release(context);
  }

 private:
  Receiver receiver_;
  uint64_t received_ = 0;
};

}  // namespace ark::dma
