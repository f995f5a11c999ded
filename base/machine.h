// What this process may still take of the machine: as its container, its limits and the machine itself allow.
#pragma once

#include <cstdint>
#include <filesystem>

namespace ark {

// Bytes: the least of what the machine has left, what the process's control groups (v1 or v2, and those above them)
// leave of their limits, and what RLIMIT_AS leaves. `root` stands for "/" (tests). 4 GiB if nothing can be read.
int64_t available_memory(const std::filesystem::path& root = "/");

// CPUs: those of the affinity mask (a cpuset is seen there), but no more than whole ones of the control groups' quota,
// since threads beyond it are stopped in the middle of a step. At least 1.
int available_cpus(const std::filesystem::path& root = "/");

// Whether `threads` take every CPU of the affinity mask, and no quota takes time from these. Only then may pinning be
// right: with CPUs to spare, or less time than CPUs, a pinned thread would wait for a busy CPU beside an idle one. That
// others run on them shows only as steps go by (engine/cpu/company.h).
bool fills_cpus(int threads, const std::filesystem::path& root = "/");

// Nanoseconds that the calling thread was ready but had no core, since it began, as the system counts them; 0 where it
// does not. Half a microsecond.
int64_t coreless_ns();

}  // namespace ark
