// ark-bench: measures a server over HTTP, a model without HTTP, or the transports.
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"

int main(int argc, char** argv) {
  ark::CommandLine line("ark-bench", "Measures a server, a model or the transports");
  ark::add_serve_bench(line);
  ark::add_model_bench(line);
  ark::add_schedule_bench(line);
  ark::add_plan_bench(line);
  ark::add_dma_bench(line);
  return ark::run_main(line, argc, argv, [&] {
    line.run_command();
    return 0;
  });
}
