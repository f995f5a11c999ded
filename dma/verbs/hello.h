// What ranks tell each other before their queue pairs connect. It comes from outside: what does not fit its field of
// the protocol is refused here, before the device is given any of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dma/blob.h"
#include "dma/ring.h"

namespace ark::dma {

// By peer and priority; decode and bulk have queue pairs of their own.
inline size_t link_index(int peer, Priority priority) {
  return static_cast<size_t>(peer) * kPriorities + static_cast<size_t>(priority);
}

// Where a rank's port is.
struct VerbsAddress {
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;  // within an InfiniBand subnet; 0 on Ethernet
  uint8_t mtu = 0;   // ibv_mtu: 1 to 5 are 256 to 4096 bytes

  void write(BlobWriter& blob) const {
    blob.text({reinterpret_cast<const char*>(gid.data()), gid.size()}).number(lid).number(mtu);
  }
  static VerbsAddress read(BlobReader& blob) {
    VerbsAddress address;
    const std::string_view gid = blob.text();
    if (gid.size() != address.gid.size()) blob.malformed("has no GID");
    std::copy(gid.begin(), gid.end(), address.gid.begin());
    address.lid = blob.number<uint16_t>();
    address.mtu = blob.number<uint8_t>();
    if (address.mtu < 1 || address.mtu > 5) blob.malformed("has an MTU that there is not");
    return address;
  }
};

struct VerbsHello {
  struct Queue {
    uint32_t number = 0;  // of the queue pair, 24 bits
    uint32_t packet = 0;  // where its packet numbers start, 24 bits
  };
  static constexpr uint32_t kLeastDepth = 16, kMostDepth = 256;

  VerbsAddress at;
  uint32_t depth = 0;         // receives that are posted at each queue pair
  uint64_t told_key = 0;      // memory of counts that peers write, as Memory::key
  std::vector<Queue> queues;  // by link_index; zeros for the rank itself and where it uses another transport

  std::string write() const {
    BlobWriter blob;
    at.write(blob);
    blob.number(depth).number(told_key);
    for (const Queue& queue : queues) blob.number(queue.number).number(queue.packet);
    return blob.take();
  }

  // What `rank` of `ranks` has sent, as `reader` needs it. Throws Error(kUnavailable) that names it.
  static VerbsHello read(std::string_view bytes, int rank, int ranks, int reader) {
    BlobReader blob(bytes, "rank " + std::to_string(rank) + ": its hello of transport verbs");
    VerbsHello hello;
    hello.at = VerbsAddress::read(blob);
    hello.depth = blob.number<uint32_t>();
    if (hello.depth < kLeastDepth || hello.depth > kMostDepth)
      blob.malformed("has queues of no usable depth");
    hello.told_key = blob.number<uint64_t>();
    hello.queues.resize(link_index(ranks, Priority::kDecode));
    for (size_t link = 0; link < hello.queues.size(); ++link) {
      Queue& queue = hello.queues[link];
      queue = {blob.number<uint32_t>(), blob.number<uint32_t>()};
      const int peer = static_cast<int>(link) / kPriorities;
      if ((peer == rank && queue.number != 0) || (peer == reader && queue.number == 0) ||
          queue.number >> 24 != 0 || queue.packet >> 24 != 0)
        blob.malformed("has a queue pair that cannot be");
    }
    blob.end();
    return hello;
  }
};

// The same for transport verbs-ud.
struct DatagramHello {
  // Datagrams that each peer may have under way with each priority: receives are posted for all of them.
  static constexpr uint32_t kLeastWindow = 2, kMostWindow = 64;

  VerbsAddress at;
  uint32_t window = kLeastWindow;
  uint32_t key = 0;  // that the device wants to see (Q_Key); its top bit is the system's
  std::array<uint32_t, kPriorities> queues = {};  // numbers of the queue pairs, 24 bits
  std::vector<uint64_t> secrets;                  // by rank: what each shows

  std::string write() const {
    BlobWriter blob;
    at.write(blob);
    blob.number(window).number(key);
    for (const uint32_t queue : queues) blob.number(queue);
    for (const uint64_t secret : secrets) blob.number(secret);
    return blob.take();
  }

  // What `rank` of `ranks` has sent. Throws Error(kUnavailable) that names it.
  static DatagramHello read(std::string_view bytes, int rank, int ranks) {
    BlobReader blob(bytes, "rank " + std::to_string(rank) + ": its hello of transport verbs-ud");
    DatagramHello hello;
    hello.at = VerbsAddress::read(blob);
    hello.window = blob.number<uint32_t>();
    if (hello.window < kLeastWindow || hello.window > kMostWindow) blob.malformed("has no usable window");
    hello.key = blob.number<uint32_t>();
    if (hello.key >> 31 != 0) blob.malformed("has a key that cannot be");
    for (uint32_t& queue : hello.queues) {
      queue = blob.number<uint32_t>();
      if (queue == 0 || queue >> 24 != 0) blob.malformed("has a queue pair that cannot be");
    }
    for (int of = 0; of < ranks; ++of) hello.secrets.push_back(blob.number<uint64_t>());
    blob.end();
    return hello;
  }
};

}  // namespace ark::dma
