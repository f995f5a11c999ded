// Sums of what has arrived, made by the pump where it has nothing else to do (StRoM), else by the processors (iPipe).
//
// A rank's program exchanges the same messages in each round (step). A *sum* is the total of one message of each of
// several peers and the own part, vectors of f32 added up in a given order. For each sum of each round there is one
// claim: the pump's or the processors'. All processors of the rank see the same one and act alike.
//
//   leader, between rounds     any processor                         pump
//   open(sum, round, floats)
//                              commits the own part's bytes to all
//                              await(sum, round)                     look(): takes a sum whose parts are all there
//                              in_place(sum, round)                  if it has nothing to send; adds it up
//                              releases the inboxes' slots
//
// Where it is made: the pump adds into the inbox slot of the sum's first peer. So it takes no memory, and the channel's
// credits hold for it as they do for what arrived: the peer overwrites the slot when it has the credit, which the last
// processor returns after it has read; and no processor goes past await() while a pump that has claimed still adds.
// The own part it reads from an outbox slot, once it has taken all commits of it (acquire, in Ring::try_pop). These
// bytes stay until message + slots, which processors write behind await(): the maker of the sums sees to it.
//
// Waits: where the pump itself raises the arrivals (Wire::counts_arrivals), processors sleep on one counter,
// `passed`, in place of one for each peer: the pump raises it for each sum, in the order of the program, when all has
// arrived, whoever adds. Else they sleep on the arrivals, as they need no pump then. Nobody waits for a pump to claim:
// who finds all there and no claim, claims. Only kPump, which is for tests and measurements, leaves it to the pump.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "dma/channel.h"
#include "dma/foresight.h"

namespace ark::dma {

enum class SumsBy : uint8_t {
  kDepth,       // the pump, where it comes first and nothing waits for it
  kProcessors,  // never the pump
  kPump,        // always the pump
  kMixed,       // for tests: one of these three, by chance for each sum
};
// What ARK_SUMS says; kDepth without it. Throws Error(kUsage) on a word that it does not know.
SumsBy sums_wish();

// Adds n floats of each of `count` parts. `sum` may be one of them.
struct Adder {
  void (*add)(const void* context, const float* const* parts, int count, float* sum, int64_t n) = nullptr;
  const void* context = nullptr;
};

class ArrivalSums {
 public:
  // One message of a channel in each round.
  struct Part {
    Counter64* counter = nullptr;  // raised `commits` times for each message
    uint64_t first_count = 0, commits = 1;
    std::byte* slots = nullptr;
    uint32_t slot_count = 0;
    uint64_t slot_bytes = 0;
    uint64_t message = 0, per_round = 1;  // of round 0; by how much it grows
    int32_t peer = -1;                    // -1: the own part

    // What a peer sends.
    static Part of(const Receiver& from, uint64_t message, uint64_t per_round, uint64_t commits);
    // The own part, as it is sent to a peer by a posted link; `taken`: of the channel, Pump::taken().
    static Part of(const Sender& to, Counter64& taken, uint64_t message, uint64_t per_round,
                   uint64_t commits);

    uint64_t needed(uint64_t round) const { return first_count + (message_of(round) + 1) * commits; }
    bool is_there(uint64_t round) const { return counter->has_reached(needed(round)); }
    std::byte* slot(uint64_t round) const { return slots + message_of(round) % slot_count * slot_bytes; }
    uint64_t message_of(uint64_t round) const { return message + round * per_round; }
  };
  struct Sum {
    std::vector<Part> parts;      // in the order in which they are added; one is the own
    bool counts_arrivals = true;  // Wire::counts_arrivals of all its peers
  };

  // `sums` in the order in which processors come to them in a round; at least one.
  ArrivalSums(std::vector<Sum> sums, Adder adder, SumsBy by);

  // One thread, while no processor is inside a round: `round` begins, from 0 on; in it the sum's vectors have so many
  // elements.
  void open(std::size_t sum, uint64_t round, int64_t floats);

  // ---- processors

  // Whether await() waits for the arrivals itself; else the caller has done so before.
  bool awaits_arrivals(std::size_t sum, uint64_t round) const;
  // Until it is settled who adds, and the pump has done so if it is the pump. A fault names the peer that is missing.
  // Writes of all parts are visible then.
  Fault await(std::size_t sum, uint64_t round, WaitPoint at, const WaitContext& context, Foresight& foresight,
              std::size_t place);
  // After await(): where the pump has made the sum; null: the processors are to add.
  const std::byte* in_place(std::size_t sum, uint64_t round) const;

  // ---- the pump's thread

  // Goes on over the sums whose parts are there. Returns how many; after it has added, at once. `is_idle`: nothing
  // waits for the pump.
  size_t look(bool is_idle);
  // Whether look() has to be called again soon, though nobody rings.
  bool must_look() const;

 private:
  enum Claim : uint64_t { kOpen = 1, kProcessors = 2, kPump = 3 };
  // What is said of a sum in a round. It grows: who has exchanged it for another value knows that no other round began.
  static uint64_t word(uint64_t round, Claim claim) { return round << 2 | claim; }

  struct alignas(64) State {
    // open(): release, after `floats`. Claims: acquire-release, by compare-and-swap from kOpen.
    std::atomic<uint64_t> word{0};
    std::atomic<int64_t> floats{0};
    std::atomic<int32_t> last_peer{-1};  // the one for which the pump has waited last; for meters alone
  };
  struct Ready;

  // The number of a sum, over all rounds.
  uint64_t number(std::size_t sum, uint64_t round) const { return round * sums_.size() + sum; }
  SumsBy by(uint64_t number) const;
  bool have_arrived(const Sum& sum, uint64_t round) const;
  const Part& accumulator(const Sum& sum) const;
  void add(const Sum& sum, uint64_t round, int64_t floats);

  const std::vector<Sum> sums_;
  const Adder adder_;
  const SumsBy by_;
  const std::unique_ptr<State[]> states_;  // by sum
  Counter64 passed_;                       // sums that the pump has gone over, of all rounds
  // The pump's alone.
  uint64_t next_ = 0;                // number of the sum that it looks at
  std::size_t part_ = 0;             // its parts before this one have arrived
  std::vector<const float*> found_;  // of one sum
};

}  // namespace ark::dma
