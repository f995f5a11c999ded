// --supervise of ranks that a launcher has started: of each but the first, a process that keeps its place in the job
// and starts another, which is the rank, as often as that dies. Rank 0 is kept by its server (supervised_runner.h).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>

namespace ark::supervise {

// Starts the rank, which finds `descriptor` as dma::kHandedDescriptor and calls tell_met() once it has met the others.
using StartRank = std::function<pid_t(int descriptor)>;

// Until the rank ends in good order, with what no new start mends, or has met nobody for `patience`; returns the exit
// code. One that is stopped for 2.5 s is killed. From meeting to death of the rank SIGTERM does nothing: rank 0 drains.
int keep_rank(int rank, const StartRank& start, std::chrono::milliseconds patience);

// In the process that was started.
void tell_met();

}  // namespace ark::supervise
