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
  print("transport  link        bytes   latency          p99     bandwidth    messages\n");
  for (const dma::BenchRow& row : rows) {
    char line[128];
    std::snprintf(line, sizeof line, "%-9s  %-6s  %9llu  %8.2f us  %8.2f us  %7.2f GB/s  %8.0f /s\n",
                  row.transport.c_str(), row.link.c_str(), static_cast<unsigned long long>(row.bytes),
                  row.latency_us.p50, row.latency_us.p99, row.gigabytes_per_second, row.messages_per_second);
    print(line);
  }
}

void print_loads(const std::vector<dma::LoadRow>& rows) {
  print(
      "\n4 KiB by the pump, median / p99 in us: alone, beside a stream of 4 MiB as bulk, in one queue with "
      "it\n"
      "transport               alone              beside           one queue        bulk   one queue\n");
  for (const dma::LoadRow& row : rows) {
    char line[160];
    std::snprintf(line, sizeof line,
                  "%-9s  %8.1f / %7.1f  %8.1f / %7.1f  %8.1f / %7.1f  %5.2f GB/s  %5.2f GB/s\n",
                  row.transport.c_str(), row.alone_us.p50, row.alone_us.p99, row.beside_us.p50,
                  row.beside_us.p99, row.one_queue_us.p50, row.one_queue_us.p99, row.gigabytes_per_second,
                  row.one_queue_gigabytes_per_second);
    print(line);
  }
}

void print_messages(const std::vector<dma::MessageRow>& rows) {
  print(
      "\n64 bytes each, as fast as they go; how often a thread was woken\n"
      "transport   link        messages  wakes per message\n");
  for (const dma::MessageRow& row : rows) {
    char line[96];
    std::snprintf(line, sizeof line, "%-10s  %-6s  %9.0f /s  %9.4f\n", row.transport.c_str(),
                  row.link.c_str(), row.per_second, row.wakes_per_message);
    print(line);
  }
}

Json json_of(const dma::Percentiles& percentiles) {
  return {{"p50", percentiles.p50}, {"p99", percentiles.p99}};
}

void run(const Options& options) {
  dma::BenchOptions bench = options.bench;
  bench.time_per_row = std::chrono::milliseconds(options.milliseconds);
  for (const uint64_t bytes : bench.sizes)
    if (bytes == 0 || bytes % 4 || bytes > kMostBytes)
      throw Error(Code::kUsage,
                  "--sizes: " + std::to_string(bytes) + " is no multiple of 4 from 4 to 1073741824");
  const std::vector<dma::BenchRow> rows = dma::run_bench(bench);
  const std::vector<dma::LoadRow> loads = dma::run_load_bench(bench);
  const std::vector<dma::MessageRow> messages = dma::run_message_bench(bench);
  if (!options.json) {
    print_table(rows);
    print_loads(loads);
    return print_messages(messages);
  }
  Json result = Json::array();
  for (const dma::BenchRow& row : rows)
    result.push_back({{"transport", row.transport},
                      {"link", row.link},
                      {"bytes", row.bytes},
                      {"latency_us", row.latency_us.p50},
                      {"p99_us", row.latency_us.p99},
                      {"gb_per_s", row.gigabytes_per_second},
                      {"messages_per_s", row.messages_per_second}});
  Json loaded = Json::array();
  for (const dma::LoadRow& row : loads)
    loaded.push_back({{"transport", row.transport},
                      {"alone_us", json_of(row.alone_us)},
                      {"beside_bulk_us", json_of(row.beside_us)},
                      {"one_queue_us", json_of(row.one_queue_us)},
                      {"bulk_gb_per_s", row.gigabytes_per_second},
                      {"one_queue_gb_per_s", row.one_queue_gigabytes_per_second}});
  Json sent = Json::array();
  for (const dma::MessageRow& row : messages)
    sent.push_back({{"transport", row.transport},
                    {"link", row.link},
                    {"per_s", row.per_second},
                    {"wakes_per_message", row.wakes_per_message}});
  print(to_text({{"rows", result}, {"beside_bulk", loaded}, {"messages", sent}}) + "\n");
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
