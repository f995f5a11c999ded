// Runs the tiles of one kernel on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace ark {

// Runs f(0) ... f(n-1), in any order, on any threads; returns when all are done. What f throws is thrown.
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>& f)>;

// On the calling thread and threads - 1 of the process-wide pool.
ParallelFor parallel_for(int threads);

}  // namespace ark
