#include <cstdio>
#include <memory>

#include "base/error.h"
#include "dma/bench.h"
#include "server/command_line.h"
#include "server/json.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"

namespace ark {
namespace {

struct Options {
  dma::BenchOptions bench;
  int32_t milliseconds = 100;
  bool json = false;
};

constexpr uint64_t kMostBytes = uint64_t{1} << 30;

void print_table(const std::vector<dma::BenchRow>& rows) {
  print("transport  link    bytes       latency     bandwidth\n");
  for (const dma::BenchRow& row : rows) {
    char line[128];
    std::snprintf(line, sizeof line, "%-9s  %-6s  %9llu  %8.2f us  %7.2f GB/s\n", row.transport.c_str(),
                  row.link.c_str(), static_cast<unsigned long long>(row.bytes), row.latency_us,
                  row.gigabytes_per_second);
    print(line);
  }
}

void run(const Options& options) {
  dma::BenchOptions bench = options.bench;
  bench.time_per_row = std::chrono::milliseconds(options.milliseconds);
  for (const uint64_t bytes : bench.sizes)
    if (bytes == 0 || bytes % 4 || bytes > kMostBytes)
      throw Error(Code::kUsage,
                  "--sizes: " + std::to_string(bytes) + " is no multiple of 4 from 4 to 1073741824");
  const std::vector<dma::BenchRow> rows = dma::run_bench(bench);
  if (!options.json) return print_table(rows);
  Json result = Json::array();
  for (const dma::BenchRow& row : rows)
    result.push_back({{"transport", row.transport},
                      {"link", row.link},
                      {"bytes", row.bytes},
                      {"latency_us", row.latency_us},
                      {"gb_per_s", row.gigabytes_per_second}});
  print(to_text({{"rows", result}}) + "\n");
}

}  // namespace

void add_dma_bench(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CommandLine command = line.command("dma", "latency and bandwidth of each transport by message size",
                                     [options] { run(*options); });
  command.read(
      "--sizes",
      [options](const std::string& text) {
        const std::vector<int32_t> sizes = numbers_of(text, 0, "number of bytes");
        options->bench.sizes.assign(sizes.begin(), sizes.end());
      },
      "bytes of a message, comma-separated");
  command.number("--time", options->milliseconds, 1, 60000, "milliseconds that each figure is measured for");
  command.flag("--json", options->json, "one JSON line");
}

}  // namespace ark
