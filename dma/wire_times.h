// How long the wires between machines (socket, ucx, verbs), and the bootstrap that watches over them, wait for what.
#pragma once

#include <chrono>
#include <cstdint>

namespace ark::dma {

// Of a wait on memory whose writer cannot wake who waits: while something comes, and once nothing has for kBusyFor.
inline constexpr int64_t kBusySleepNs = 50'000, kIdleSleepNs = 1'000'000;
inline constexpr std::chrono::milliseconds kBusyFor{10};
// A process that dies also leaves the bootstrap, which tells all ranks its name; a cut is told where nobody does.
inline constexpr std::chrono::milliseconds kCutGrace{200};
// How long another system may confirm nothing of a TCP connection, though it was asked to: longer than life signs wait
// (dma/bootstrap/watch.cc), which name the machine and not only the link.
inline constexpr std::chrono::milliseconds kMostUnanswered{2000};
// What who leaves in good order waits at most, until the other has all that was sent.
inline constexpr std::chrono::seconds kFarewell{1};

}  // namespace ark::dma
