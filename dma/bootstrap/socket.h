// Stream sockets (unix, TCP) and the frames that ranks exchange over them at set-up. Layout: docs/dma.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "dma/wait.h"

namespace ark::dma {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();
  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  // `address` as in Environment. Throw Error(kUsage) for a malformed address, Error(kOs) otherwise.
  static Socket listen(const std::string& address);
  // Tries until `deadline`: rank 0 may come later than we do.
  static Socket connect(const std::string& address, Deadline deadline);
  // The next waiting connection of our own user (TCP: of anyone); not open if there is none.
  Socket accept() const;

 private:
  int descriptor_ = -1;
};

// Removes the socket file of a unix path address, if it is one.
void remove_socket_file(const std::string& address);

enum class FrameKind : uint16_t {
  kHelloGather = 1,  // first frame of a connection for all_gather
  kHelloWatch = 2,   // first frame of a connection for death and life
  kWelcome = 3,      // rank 0: all are here
  kRefused = 4,      // payload: why
  kBlob = 5,         // payload: one rank's blob
  kTable = 6,        // payload: all blobs
  kAlive = 7,        // heartbeat
  kLeaving = 8,      // the sender goes in good order
  kDead = 9,         // `rank` is dead; payload: why
  kHelloWire = 10,   // first frame of a connection of transport socket; payload: the secret of who is visited
  kStep = 11,        // to the process of a supervised model
  kResult = 12,      // from it
};

struct FrameHeader {
  uint32_t magic = 0;
  uint16_t version = 0;
  FrameKind kind = FrameKind::kAlive;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  uint64_t bytes = 0;  // of the payload

  static constexpr uint32_t kMagic = 0x4b524121;
  static constexpr uint16_t kVersion = 1;
};
static_assert(sizeof(FrameHeader) == 24);

inline constexpr uint64_t kMaxPayload = uint64_t{64} << 20;
inline constexpr uint64_t kMaxReason = 1024;

struct Frame {
  FrameHeader header;
  std::string payload;
};

enum class Received : uint8_t { kFrame, kClosed, kLate, kMalformed };

// As it is sent, for those who cannot wait.
std::string frame_bytes(FrameKind kind, int rank, int ranks, std::string_view payload);
// Both wait until `deadline`, never raise SIGPIPE. False: closed or too late; then the connection is shut down, as what
// follows half a frame means nothing: both sides know at once.
bool send_frame(const Socket& socket, FrameKind kind, int rank, int ranks, std::string_view payload,
                Deadline deadline);
// Payloads over `limit` bytes, other magic or version: kMalformed.
Received receive_frame(const Socket& socket, Frame& frame, uint64_t limit, Deadline deadline);

}  // namespace ark::dma
