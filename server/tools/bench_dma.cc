#include <cstdio>
#include <memory>

#include "base/error.h"
#include "dma/bench.h"
#include "dma/mpi/bench.h"
#include "dma/mpi/meet.h"
#include "dma/transports.h"
#include "server/command_line.h"
#include "server/json.h"
#include "server/tools/bench_commands.h"
#include "server/tools/main_guard.h"
#include "server/tools/outside_tools.h"

namespace ark {
namespace {

struct Options {
  dma::BenchOptions bench;
  std::vector<int32_t> ranks = {2, 4};
  int32_t milliseconds = 100;
  bool json = false;
};

constexpr uint64_t kMostBytes = uint64_t{1} << 30;
// Of an all-reduce: threads, and processes of MPI.
constexpr int32_t kMostRanks = 64;

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

void print_reduces(const std::vector<dma::ReduceRow>& rows) {
  print(
      "\nall-reduce, median / p99 in us\n"
      "transport   link    ranks      bytes            time\n");
  for (const dma::ReduceRow& row : rows) {
    char line[96];
    std::snprintf(line, sizeof line, "%-10s  %-6s  %5d  %9llu  %9.1f / %9.1f\n", row.transport.c_str(),
                  row.link.c_str(), row.ranks, static_cast<unsigned long long>(row.bytes), row.latency_us.p50,
                  row.latency_us.p99);
    print(line);
  }
}

void print_tools(const std::vector<ToolRow>& rows) {
  print("\nbeside them, two processes of this machine\ntool                    bytes     figure\n");
  for (const ToolRow& row : rows) {
    char line[96];
    std::snprintf(line, sizeof line, "%-18s  %9llu  %9.3f\n", row.tool.c_str(),
                  static_cast<unsigned long long>(row.bytes), row.figure);
    print(row.why.empty() ? line : row.tool + ": " + row.why + "\n");
  }
}

Json json_of(const std::vector<dma::ReduceRow>& rows) {
  Json json = Json::array();
  for (const dma::ReduceRow& row : rows)
    json.push_back({{"transport", row.transport},
                    {"link", row.link},
                    {"ranks", row.ranks},
                    {"bytes", row.bytes},
                    {"latency_us", row.latency_us.p50},
                    {"p99_us", row.latency_us.p99}});
  return json;
}

Json json_of(const std::vector<ToolRow>& rows) {
  Json json = Json::array();
  for (const ToolRow& row : rows)
    json.push_back(row.why.empty() ? Json({{"tool", row.tool}, {"bytes", row.bytes}, {"figure", row.figure}})
                                   : Json({{"tool", row.tool}, {"why_none", row.why}}));
  return json;
}

// A rank of `mpirun ark-bench dma`: MPI's own all-reduce.
void run_by_mpi(const Options& options) {
  const std::vector<dma::ReduceRow> rows = dma::run_mpi_reduce_bench(options.bench);
  if (rows.empty()) return;
  if (!options.json) return print_reduces(rows);
  print(to_text({{"all_reduce", json_of(rows)}}) + "\n");
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
  if (!bench.transport.empty() && dma::measured_transports(bench).empty()) {
    const dma::TransportKind& kind = dma::transport_named(bench.transport);
    throw Error(Code::kUnavailable, "--transport: " + bench.transport +
                                        " cannot be measured here; it needs " + std::string(kind.needs));
  }
  if (dma::is_started_by_mpi()) return run_by_mpi({bench, options.ranks, options.milliseconds, options.json});
  const std::vector<dma::BenchRow> rows = dma::run_bench(bench);
  const std::vector<dma::LoadRow> loads = dma::run_load_bench(bench);
  const std::vector<dma::MessageRow> messages = dma::run_message_bench(bench);
  std::vector<dma::ReduceRow> reduces = dma::run_reduce_bench(bench, options.ranks);
  std::vector<ToolRow> tools = run_tools(bench.sizes);
  for (const int32_t ranks : options.ranks) {
    std::string why;
    for (dma::ReduceRow& row : run_mpi(bench, ranks, why)) reduces.push_back(std::move(row));
    if (!why.empty()) tools.push_back({"MPI_Allreduce, " + std::to_string(ranks) + " ranks", 0, 0, why});
  }
  if (!options.json) {
    print_table(rows);
    print_loads(loads);
    print_messages(messages);
    print_reduces(reduces);
    return print_tools(tools);
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
  print(to_text({{"rows", result},
                 {"beside_bulk", loaded},
                 {"messages", sent},
                 {"all_reduce", json_of(reduces)},
                 {"tools", json_of(tools)}}) +
        "\n");
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
  command.read(
      "--ranks",
      [options](const std::string& text) {
        options->ranks = numbers_of(text, 2, "number of ranks");
        for (const int32_t ranks : options->ranks)
          if (ranks > kMostRanks)
            throw Error(Code::kUsage,
                        "at most " + std::to_string(kMostRanks) + ", not " + std::to_string(ranks));
      },
      "of all-reduces, comma-separated", "2,4");
  command.text("--transport", options->bench.transport, "the one to measure; otherwise all that work here");
  command.number("--time", options->milliseconds, 1, 60000, "milliseconds that each figure is measured for");
  command.flag("--json", options->json, "one JSON line");
}

}  // namespace ark
