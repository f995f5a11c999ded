// ark-bench dma: latency and bandwidth of the transports by message size.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace ark {

// Adds the subcommand `dma` with its options to `app`; returns what runs it, after app has parsed.
std::function<void()> add_dma_bench(CLI::App& app);

}  // namespace ark
