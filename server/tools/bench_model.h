// ark-bench model: load time, prefill and decode speed, memory of one model, without HTTP.
#pragma once

#include <CLI/CLI.hpp>

namespace ark {

// Adds the subcommand `model` with its options; app.parse() runs it through its callback, which throws Error.
void add_model_bench(CLI::App& app);

}  // namespace ark
