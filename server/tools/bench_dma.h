// ark-bench dma: latency and bandwidth of the transports by message size.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace ark {

// Adds the subcommand `dma` with its options to `app`; returns what runs it, after app has parsed.
std::function<void()> add_dma_bench(CLI::App& app);

}  // namespace ark
