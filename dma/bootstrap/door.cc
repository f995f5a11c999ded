#include "dma/bootstrap/door.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sha256.h"
#include "dma/blob.h"

namespace ark::dma {
namespace {

constexpr std::size_t kNonce = 32, kProofBytes = 32;
constexpr uint64_t kMostToStrangers = 128;  // bytes of a payload
constexpr std::size_t kMaxStrangers = 1024;
constexpr std::size_t kMostLines = 32;  // of the log: strangers must not fill it
constexpr int kLook = 50;               // ms
// Who is meant: of 0 ranks are servers that are no group.
std::string name_of(uint32_t rank, uint32_t ranks) {
  return ranks == 0 ? "this server" : "rank " + std::to_string(rank);
}

std::string same_key(uint32_t ranks) {
  return std::string("; give all ") + (ranks == 0 ? "servers" : "ranks") + " the same --cluster-key-file";
}

// What is unread when a connection closes resets it, and our last frame with it.
void forget_unread(const Socket& socket) {
  char bytes[4096];
  while (recv(socket.descriptor(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

Admission::Verdict Admission::take(const Frame& frame, std::string& answer) {
  const bool is_hello = encounter_.host_nonce.empty();
  if (is_hello) {
    const FrameHeader& head = frame.header;
    const bool is_known = head.kind == FrameKind::kHelloGather || head.kind == FrameKind::kHelloWatch ||
                          head.kind == FrameKind::kHelloWire || head.kind == FrameKind::kHelloPages;
    try {
      BlobReader hello(frame.payload, "its hello");
      encounter_ = {static_cast<uint16_t>(head.kind), head.rank, host_, head.ranks};
      encounter_.visitor = hello.text();
      has_key_ = hello.number<uint8_t>() != 0;
      encounter_.guest_nonce = hello.text();
      hello.end();
    } catch (const Error& error) {
      answer = error.what();
      return Verdict::kRefused;
    }
    if (!is_known || encounter_.guest_nonce.size() != kNonce) {
      answer = "it begins with what is no hello";
      return Verdict::kRefused;
    }
    answer = encounter_.host_nonce = random_bytes(kNonce);
    return Verdict::kMore;
  }
  if (frame.header.kind != FrameKind::kProof ||
      !is_same_secret(proof_of(key_, Side::kGuest, encounter_), frame.payload)) {
    answer = (has_key_ == !key_.empty() ? "it has another cluster key than "
              : has_key_                ? "it has a cluster key, which is not known to "
                                        : "it has no cluster key, unlike ") +
             name_of(host_, encounter_.ranks) + same_key(encounter_.ranks);
    return Verdict::kRefused;
  }
  answer = proof_of(key_, Side::kHost, encounter_);
  return Verdict::kProven;
}

Door::Door(Socket listener, std::string key, int rank, int ranks, std::chrono::milliseconds patience)
    : listener_(std::move(listener)), key_(std::move(key)), rank_(rank), ranks_(ranks), patience_(patience) {}

void Door::attend(const Seat& seat) {
  std::vector<pollfd> waiting = {{listener_.descriptor(), POLLIN, 0}};
  for (const Stranger& stranger : strangers_) waiting.push_back({stranger.socket.descriptor(), POLLIN, 0});
  poll(waiting.data(), waiting.size(), kLook);
  for (Socket next = listener_.accept(); next.is_open(); next = listener_.accept()) {
    if (strangers_.size() >= kMaxStrangers) continue;
    std::string name = next.peer_address();
    strangers_.push_back({std::move(next), std::move(name), Deadline::after(patience_),
                          Admission(key_, static_cast<uint32_t>(rank_))});
  }
  std::erase_if(strangers_, [&](Stranger& stranger) { return is_settled(stranger, seat); });
}

// True: seated, sent away or gone.
bool Door::is_settled(Stranger& stranger, const Seat& seat) {
  for (;;) {
    std::string& bytes = stranger.bytes;
    Frame frame;
    std::size_t whole = 0;
    const Received state = parse_frame(bytes, kMostToStrangers, frame, whole);
    if (state == Received::kFrame) {
      bytes.clear();
      if (take(stranger, frame, seat)) return true;
      continue;
    }
    if (state == Received::kDamaged) {
      // Whoever it is may be a rank, which comes again: a refusal would end it.
      tell(stranger, std::string("it") + kDamagedOnItsWay);
      return true;
    }
    if (state != Received::kMore) {
      refuse(stranger, state == Received::kOtherVersion
                           ? "it speaks version " + std::to_string(frame.header.version) + ", this rank " +
                                 std::to_string(FrameHeader::kVersion) +
                                 "; run the same build of ark everywhere"
                           : "it sends what no rank does");
      return true;
    }
    // No byte more than the frame has: what follows is for whom it is seated with.
    const std::size_t have = bytes.size();
    bytes.resize(whole);
    const ssize_t got = recv(stranger.socket.descriptor(), bytes.data() + have, whole - have, MSG_DONTWAIT);
    bytes.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    const bool is_gone = got == 0 || errno != EAGAIN;
    if (!is_gone && !stranger.until.passed()) return false;
    // One that only looks whether the port is open is no event.
    if (!bytes.empty() || !is_gone) refuse(stranger, is_gone ? "it breaks off" : "it does not say who it is");
    return true;
  }
}

bool Door::take(Stranger& stranger, const Frame& frame, const Seat& seat) {
  std::string answer;
  const Admission::Verdict verdict = stranger.admission.take(frame, answer);
  if (verdict == Admission::Verdict::kRefused) {
    refuse(stranger, answer);
    return true;
  }
  const Deadline now = Deadline::after({});
  const bool is_proven = verdict == Admission::Verdict::kProven;
  if (!send_frame(stranger.socket, is_proven ? FrameKind::kProof : FrameKind::kChallenge, rank_, ranks_,
                  answer, now))
    return true;
  if (!is_proven) return false;
  if (const std::string why = seat(stranger.admission.encounter(), stranger.socket); !why.empty())
    refuse(stranger, why);
  return true;
}

void Door::tell(const Stranger& stranger, const std::string& why) {
  if (told_.size() < kMostLines && told_.insert(stranger.socket.peer_host() + " " + why).second)
    log_line(LogLevel::kWarning, name_of(static_cast<uint32_t>(rank_), static_cast<uint32_t>(ranks_)) +
                                     " refuses a connection from " + stranger.name + ": " + why);
}

void Door::refuse(Stranger& stranger, const std::string& why) {
  tell(stranger, why);
  forget_unread(stranger.socket);
  send_frame(stranger.socket, FrameKind::kRefused, rank_, ranks_, why.substr(0, kMaxReason),
             Deadline::after({}));
}

void introduce(const Socket& socket, FrameKind hello, int rank, int host, int ranks,
               const std::string& visitor, std::string_view key, const std::string& who, Deadline deadline) {
  Encounter e = {static_cast<uint16_t>(hello),
                 static_cast<uint32_t>(rank),
                 static_cast<uint32_t>(host),
                 static_cast<uint32_t>(ranks),
                 visitor,
                 random_bytes(kNonce)};
  const std::string me = name_of(e.guest, e.ranks);
  const auto expect = [&](FrameKind kind, std::size_t bytes) {
    Frame frame;
    const Received got = receive_frame(socket, frame, kMaxReason, deadline);
    if (got == Received::kFrame && frame.header.kind == kind && frame.payload.size() == bytes)
      return frame.payload;
    if (got == Received::kFrame && frame.header.kind == FrameKind::kRefused)
      throw Error(Code::kUsage, me + " is refused by " + who + ": " + escaped(frame.payload, kMaxReason));
    throw Error(
        Code::kUnavailable,
        me + ": " + who +
            (got == Received::kLate ? " does not answer in time"
             : got == Received::kOtherVersion
                 ? " speaks another version; run the same build of ark everywhere"
             : got == Received::kClosed
                 ? " closed the connection; it may have ended, be no rank of this group, or have got what "
                   "was damaged on its way"
             : got == Received::kDamaged ? kDamagedOnItsWay
                                         : " answers with what no rank sends"));
  };
  send_frame(socket, hello, rank, ranks,
             BlobWriter().text(visitor).number(uint8_t{!key.empty()}).text(e.guest_nonce).take(), deadline);
  e.host_nonce = expect(FrameKind::kChallenge, kNonce);
  send_frame(socket, FrameKind::kProof, rank, ranks, proof_of(key, Side::kGuest, e), deadline);
  if (!is_same_secret(proof_of(key, Side::kHost, e), expect(FrameKind::kProof, kProofBytes)))
    throw Error(Code::kUnavailable,
                me + ": " + who + " does not know the cluster key: it is no rank of this group");
}

}  // namespace ark::dma
