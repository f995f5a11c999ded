// Faults: what data paths and step loops return instead of throwing.
//
// A fault is a plain value (trivially copyable, so it can lie in shared or device memory) that names the
// place that stopped and the counter value it saw and needed. `Fault{}` means "no fault".
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace ark::dma {

enum class FaultKind : uint32_t {
  kNone,
  kAborted,     // the abort word was raised while waiting
  kDeadline,    // the deadline passed while waiting
  kBadRequest,  // a transfer outside its region, or to an unknown region or channel
  kCut,         // the wire to a peer lost a transfer more often than it may
};

// The place of a wait, for messages. -1 means "does not apply". `what` must be a string literal.
struct WaitPoint {
  const char* what = "";
  int32_t rank = -1;
  int32_t processor = -1;
  int32_t phase = -1;
  int32_t trip = -1;
  int32_t peer = -1;
};

struct [[nodiscard]] Fault {
  FaultKind kind = FaultKind::kNone;
  WaitPoint at;
  uint64_t seen = 0;    // last value read of what was waited for; for kBadRequest the region's size
  uint64_t needed = 0;  // value that would have ended the wait; for kBadRequest the end of the transfer

  explicit operator bool() const { return kind != FaultKind::kNone; }
  // One line, e.g. "rank 1, phase 12, trip 3: arrival from rank 0: deadline passed (saw 7, needed 9)".
  std::string text() const;
};
static_assert(std::is_trivially_copyable_v<Fault>);

}  // namespace ark::dma
