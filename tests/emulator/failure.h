// What the emulator reports: one exception, with a kind that tests can ask for.
#pragma once

#include <stdexcept>
#include <string>

namespace ark::emulator {

enum class Fault {
  kRace,           // two accesses, one of them a write, without an order between them
  kDeadlock,       // nobody can go on
  kBounds,         // outside every allocation, or in another block's shared memory
  kHostMemory,     // memory of the process that no kernel may reach
  kAlignment,      //
  kScope,          // a word of the host or another GPU with less than sys scope
  kConstant,       // a write to constant memory, or a read-only load of memory that is not constant
  kUninitialised,  // a read of bytes that nobody wrote
  kInFlight,       // a read or write of bytes that an asynchronous copy has yet to deliver
  kProxy,          // a bulk copy of bytes that threads wrote, without fence_proxy_async between
  kDivergence,     // lanes of a warp in different collectives
  kBarrier,   // a barrier with different thread counts, or more arrivals than it expects; registers misnamed
  kMbarrier,  // used before init, too many arrivals, in flight at exit
  kCopy,      // an asynchronous copy that nobody waits for
  kTrap,      // the kernel ended itself
  kPtx,       // a register that nothing has written, an address of another space (ptx/)
};

const char* name_of(Fault fault);

// The report: first line says what and where, further lines who waits for what.
class Failure : public std::runtime_error {
 public:
  Failure(Fault fault, const std::string& report) : std::runtime_error(report), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

}  // namespace ark::emulator
