// Stream sockets (unix, TCP) and the frames that ranks exchange over them at set-up. Layout: docs/dma.md.
#pragma once

#include <cstddef>
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

  // `address` as in Environment. Throw Error(kUsage) for a malformed address, Error(kOs) otherwise, naming `option`.
  static Socket listen(const std::string& address, const std::string& option = "ARK_BOOTSTRAP");
  static Socket listen_everywhere(uint16_t port);  // TCP, IPv6 and IPv4; 0: any port
  // Tries until `deadline`, now and then saying so in the log: rank 0, or the name of its machine, may come later than
  // we do. `address`: also several, with commas between, of which one must answer.
  static Socket connect(const std::string& address, Deadline deadline);
  // Tries once. Throws Error(kUnavailable).
  static Socket connect_once(const std::string& address, Deadline deadline);
  // The next waiting connection of our own user (TCP: of anyone); not open if there is none.
  Socket accept() const;

  // Numeric; "" of unix sockets.
  std::string local_host() const;
  std::string peer_host() const;
  uint16_t local_port() const;
  std::string peer_address() const;  // with the port, for people

 private:
  int descriptor_ = -1;
};

// "host:port", with brackets where they are needed.
std::string address_of(const std::string& host, uint16_t port);
// Of any kind of address: whether only this machine can be meant. A name that is not known (yet) could be any.
bool is_local(const std::string& address);
bool is_unix(const std::string& address);

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
  kHelloWire = 10,   // first frame of a connection of transport socket
  kStep = 11,        // to the process of a supervised model
  kResult = 12,      // from it
  kChallenge = 13,   // from who was visited: its nonce
  kProof = 14,       // of knowing the key, from either
  kHelloPages = 15,  // first frame of a connection between servers (server/peers)
  kPageQuestion = 16,
  kPage = 17,
  kPagesEnd = 18,
  kGiveUp = 19,  // to the process of a supervised model: `rank` is the slot
};

struct FrameHeader {
  uint32_t magic = 0;
  uint16_t version = 0;
  FrameKind kind = FrameKind::kAlive;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  uint64_t bytes = 0;  // of the payload
  uint32_t payload_sum = 0;
  uint32_t head_sum = 0;  // of what stands before it

  static constexpr uint32_t kMagic = 0x4b524121;
  static constexpr uint16_t kVersion = 3;

  // Both are CRC-32C, as those of WireFrame.
  uint32_t sum_of_head() const;
  void seal(std::string_view payload);
};
static_assert(sizeof(FrameHeader) == 32);

inline constexpr uint64_t kMaxPayload = uint64_t{64} << 20;
inline constexpr uint64_t kMaxReason = 1024;

struct Frame {
  FrameHeader header;
  std::string payload;
};

// kDamaged: a frame of this version that was changed on its way; nothing of it is meant.
enum class Received : uint8_t { kFrame, kMore, kClosed, kLate, kMalformed, kOtherVersion, kDamaged };
// For messages, of what is none of the others.
inline constexpr const char* kDamagedOnItsWay = " sends what is damaged on its way (its sum is another)";

// The frame that `bytes` are: kFrame, kMalformed, kOtherVersion, kDamaged, or kMore while fewer than `whole` bytes are
// there.
Received parse_frame(std::string_view bytes, uint64_t limit, Frame& frame, std::size_t& whole);
// As it is sent, for those who cannot wait.
std::string frame_bytes(FrameKind kind, int rank, int ranks, std::string_view payload);
// Both wait until `deadline`, never raise SIGPIPE. False: closed or too late; then the connection is shut down, as what
// follows half a frame means nothing: both sides know at once.
bool send_frame(const Socket& socket, FrameKind kind, int rank, int ranks, std::string_view payload,
                Deadline deadline);
// Payloads over `limit` bytes or another magic: kMalformed.
Received receive_frame(const Socket& socket, Frame& frame, uint64_t limit, Deadline deadline);

}  // namespace ark::dma
