// How a connection between ranks begins. The guest connects and says who it is; both then show that they know the key,
// by HMACs over a nonce of either. Only then does anything of one reach the other.
//   guest: hello (rank, ranks; visitor, whether it has a key, nonce)       host: challenge (nonce)
//   guest: proof                                                           host: proof, or refused (why)
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dma/bootstrap/key.h"
#include "dma/bootstrap/socket.h"

namespace ark::dma {

// What the host needs of one connection to decide: fed with frames, answers with frames. Knows no socket.
class Admission {
 public:
  Admission(std::string_view key, uint32_t host) : key_(key), host_(host) {}

  enum class Verdict : uint8_t { kMore, kProven, kRefused };
  // `answer`: what to send; why, where refused (to the log as well).
  Verdict take(const Frame& frame, std::string& answer);
  const Encounter& encounter() const { return encounter_; }

 private:
  std::string_view key_;
  uint32_t host_;
  Encounter encounter_;  // with a host's nonce once it is challenged
  bool has_key_ = false;
};

// The host's side of many connections at once: none waits for another.
class Door {
 public:
  // `rank` of `ranks`, who listens; each guest gets `patience` for all that it says.
  Door(Socket listener, std::string key, int rank, int ranks, std::chrono::milliseconds patience);

  // Takes the connection of a guest who has proven the key, unless there is a reason to refuse.
  using Seat = std::function<std::string(const Encounter& guest, Socket& socket)>;
  // Looks after all who are at the door, for at most 50 ms. Refusals are lines of the log, one for a machine and
  // reason.
  void attend(const Seat& seat);

 private:
  struct Stranger {
    Socket socket;
    std::string name;  // its address
    Deadline until;
    Admission admission;
    std::string bytes = {};  // of a frame that is coming
  };
  bool is_settled(Stranger& stranger, const Seat& seat);
  bool take(Stranger& stranger, const Frame& frame, const Seat& seat);
  void tell(const Stranger& stranger, const std::string& why);
  void refuse(Stranger& stranger, const std::string& why);

  const Socket listener_;
  const std::string key_;
  const int rank_, ranks_;
  const std::chrono::milliseconds patience_;
  std::vector<Stranger> strangers_;
  std::set<std::string> told_;  // machines and reasons
};

// The guest's side, until the host has proven the key. `who`: "rank 0 at ADDRESS", for messages. Throws Error(kUsage)
// with the host's reason where it refuses, kUnavailable where it is no host of this group.
void introduce(const Socket& socket, FrameKind hello, int rank, int host, int ranks,
               const std::string& visitor, std::string_view key, const std::string& who, Deadline deadline);

}  // namespace ark::dma
