// ark-bench: measures a server over HTTP, a model without HTTP, or the transports.
#include <CLI/CLI.hpp>

#include "server/tools/bench/serve.h"
#include "server/tools/bench_dma.h"
#include "server/tools/bench_model.h"
#include "server/tools/main_guard.h"

int main(int argc, char** argv) {
  CLI::App app("Measures a server, a model or the transports", "ark-bench");
  app.require_subcommand(1);
  const std::pair<const char*, std::function<void()>> commands[] = {
      {"serve", ark::add_serve_bench(app)},
      {"model", ark::add_model_bench(app)},
      {"dma", ark::add_dma_bench(app)},
  };
  return ark::run_main(app, argc, argv, [&] {
    for (const auto& [name, run] : commands)
      if (app.got_subcommand(name)) run();
    return 0;
  });
}
