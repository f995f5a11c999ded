// One loop over several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace ark {

// Runs `work` on 0 .. count - 1 with up to `threads` threads, this one among them; rethrows the first error, after
// which no more are begun.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work);

}  // namespace ark
