// ark-bench serve: measures a server that speaks OpenAI's API, as `vllm bench serve` does.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace ark {

// Adds the subcommand `serve` with its options to `app`; returns what runs it, after app has parsed.
std::function<void()> add_serve_bench(CLI::App& app);

}  // namespace ark
