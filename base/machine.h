// What this process may still take of the machine: as its container, its limits and the machine itself allow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace ark {

// Bytes: the least of what the machine has left, what the process's control groups (v1 or v2, and those above them)
// leave of their limits, and what RLIMIT_AS leaves. `root` stands for "/" (tests). 4 GiB if nothing can be read.
int64_t available_memory(const std::filesystem::path& root = "/");

using CpuList = std::vector<int>;

// The affinity mask of the process's first thread, which nothing pins; a cpuset is seen there.
CpuList cpus_of_mask();

// Whole CPUs of the control groups' quota, beyond which threads are stopped in the middle of a step; INT_MAX: none.
int cpu_quota(const std::filesystem::path& root = "/");

// The least of both; at least 1.
int available_cpus(const std::filesystem::path& root = "/");

// Nanoseconds that the calling thread was ready but had no core, since it began, as the system counts them; 0 where it
// does not. Half a microsecond.
int64_t coreless_ns();

}  // namespace ark
