// Ranks whose devices are files of memory, mapped here, and what they say to each other.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "dma/group.h"
#include "tests/dma/deadline.h"

namespace ark::dma::test {

// A rank's device: files of memory, whose mapping here stands for the device's.
struct FakeDevice {
  int refuses = 0;  // the n-th box, from 1
  int made = 0;
  std::shared_ptr<int> users = std::make_shared<int>();

  NamedMemory allocate(uint64_t bytes) {
    if (++made == refuses) throw Error(Code::kExhausted, "the device is full");
    constexpr uint64_t kBefore = 4096;  // of other memory behind the descriptor
    NamedMemory memory;
    memory.file = Descriptor(memfd_create("device", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.file.number, static_cast<off_t>(kBefore + bytes)), 0);
    const auto mapping = std::make_shared<Memory>(map_shared(memory.file.number, kBefore + bytes, "device"));
    memory.offset = kBefore;
    memory.region = {mapping->region.base + kBefore, bytes};
    memory.owner = std::shared_ptr<void>(mapping.get(), [mapping, users = users](void*) {});
    return memory;
  }
};

// One of the host, two of devices.
inline std::vector<ChannelSpec> channels_of_devices() {
  return {{.name = "host", .slot_bytes = 256},
          {.name = "device", .slot_bytes = 4096, .by_devices = true},
          {.name = "odd", .slots = 3, .slot_bytes = 100, .by_devices = true}};
}

inline std::byte byte_of(int from, int to, uint32_t channel, uint64_t message, uint64_t at) {
  return static_cast<std::byte>(from * 11 + to * 17 + static_cast<int>(channel) * 29 +
                                static_cast<int>(message) * 7 + static_cast<int>(at) * 3 + 1);
}

// More messages than slots, of all channels between all ranks. Returns how many bytes were not what was sent.
inline int wrong_bytes(std::vector<std::unique_ptr<Group>>& groups, uint64_t messages) {
  std::atomic<int> wrong{0};
  std::vector<std::jthread> threads;
  const auto size = static_cast<int>(groups.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Group& group = *groups[rank];
      const WaitContext context{&group.abort(), soon(), {}};
      for (uint64_t m = 0; m < messages; ++m) {
        for (uint32_t channel = 0; channel < 3; ++channel) {
          for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) continue;
            const Sender to = group.sender(peer, channel);
            if (to.acquire(m, context)) return;
            for (uint64_t at = 0; at < to.slot_bytes; ++at)
              to.slot(m)[at] = byte_of(rank, peer, channel, m, at);
            if (to.commit(m, 0, to.slot_bytes, context)) return;
          }
          for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) continue;
            const Receiver from = group.receiver(peer, channel);
            if (from.wait(m + 1, context)) return;
            for (uint64_t at = 0; at < from.slot_bytes; ++at)
              wrong += from.slot(m)[at] != byte_of(peer, rank, channel, m, at);
            if (from.release(context)) return;
          }
        }
      }
    });
  }
  threads.clear();
  for (auto& group : groups) EXPECT_EQ(group->trouble(), "");
  return wrong;
}

}  // namespace ark::dma::test
