// ark-bench model: load time, prefill and decode speed, memory of one model, without HTTP.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace ark {

// Adds the subcommand `model` with its options to `app`; returns what runs it, after app has parsed.
std::function<void()> add_model_bench(CLI::App& app);

}  // namespace ark
