#include "server/tools/outside_tools.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "dma/bootstrap/socket.h"
#include "server/json.h"

namespace ark {
namespace {

struct Tool {
  const char* name;
  const char* test;     // options that choose what it measures
  const char* size;     // what stands before the number of bytes
  const char* repeats;  // and of messages
  std::size_t column;   // of its figure
  char separator;
  double unit;  // of it, in us or GB/s
  bool is_rate;
};

constexpr double kMebi = double(1 << 20) / 1e9;
constexpr std::array<Tool, 4> kTools = {{
    {"ib_write_lat", "-F", "-s", "-n", 4, ' ', 1, false},
    {"ib_write_bw", "-F", "-s", "-n", 3, ' ', kMebi, true},
    {"ucx_perftest", "-t ucp_put_lat -v -f -w 100", "-s", "-n", 1, ',', 1, false},
    {"ucx_perftest", "-t ucp_put_bw -v -f -w 100", "-s", "-n", 5, ',', kMebi, true},
}};

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

struct Ran {
  int status = -1;
  std::string output;
};

Ran run_shell(const std::string& script) {
  constexpr std::size_t kMost = 1 << 20;  // of what is printed
  const auto close = [](FILE* pipe) { pclose(pipe); };
  std::unique_ptr<FILE, decltype(close)> pipe(popen(script.c_str(), "re"), close);
  if (!pipe) return {};
  Ran ran;
  for (char part[4096]; const std::size_t n = fread(part, 1, sizeof part, pipe.get());)
    if (ran.output.size() < kMost) ran.output.append(part, n);
  const int status = pclose(pipe.release());
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ran;
}

bool is_installed(const std::string& name) {
  return run_shell("command -v " + quoted(name) + " > /dev/null").status == 0;
}

// The server in the background; the client as soon as it is heard.
std::string pair_script(const Tool& tool, uint64_t bytes) {
  const int port = dma::Socket::listen_everywhere(0).local_port();  // free again at once
  const std::string command = std::string("timeout 20 ") + tool.name + " -p " + std::to_string(port);
  const bool both = std::string(tool.name).starts_with("ib_");  // are told what is measured
  const std::string test = std::string(" ") + tool.test + " " + tool.size + " " + std::to_string(bytes) +
                           " " + tool.repeats + " " + (bytes > 65536 ? "100" : "2000");
  return command + (both ? test : "") + " > /dev/null 2>&1 & server=$!; i=0; while [ $i -lt 50 ]; do if " +
         command + test + " 127.0.0.1 2>&1; then break; fi; kill -0 $server 2> /dev/null || break; " +
         "i=$((i + 1)); sleep 0.1; done; kill $server 2> /dev/null";
}

std::string why_none(const Tool& tool) {
  if (!is_installed(tool.name)) return "not installed";
  const std::filesystem::path devices = "/sys/class/infiniband";
  if (std::string(tool.name).starts_with("ib_") && (!exists(devices) || is_empty(devices)))
    return "no RDMA device";
  return "";
}

// What they have printed: the number in column `column` (from 0) of the last line that begins with a number; < 0: none.
double figure_of(const std::string& output, std::size_t column, char separator) {
  double figure = -1;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::replace(line.begin(), line.end(), separator, ' ');
    std::istringstream words(line);
    double number = 0;
    std::size_t i = 0;
    while (i <= column && words >> number) ++i;
    if (i == column + 1) figure = number;
  }
  return figure;
}

}  // namespace

std::vector<ToolRow> run_tools(const std::vector<uint64_t>& sizes) {
  std::vector<ToolRow> rows;
  for (const Tool& tool : kTools) {
    const std::string name = std::string(tool.name) + (tool.is_rate ? ", GB/s" : ", us");
    std::string why = why_none(tool);
    for (std::size_t i = 0; why.empty() && i < sizes.size(); ++i) {
      const Ran ran = run_shell(pair_script(tool, sizes[i]));
      const double figure = figure_of(ran.output, tool.column, tool.separator);
      if (figure < 0)
        why = "says nothing that is a figure: " +
              escaped(ran.output.substr(0, std::min(ran.output.find('\n'), std::size_t{100})));
      else
        rows.push_back({name, sizes[i], figure * tool.unit, ""});
    }
    if (!why.empty()) rows.push_back({name, 0, 0, why});
  }
  return rows;
}

std::vector<dma::ReduceRow> run_mpi(const dma::BenchOptions& options, int32_t ranks, std::string& why) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  if (!is_installed("mpirun"))
    why = "no mpirun";
  else if (std::getenv("ARK_LIBMPI") == nullptr && !exists(self.parent_path() / "libark_mpi.so"))
    why = "no libark_mpi.so (scripts/build.sh --with-cluster)";
  if (!why.empty()) return {};
  std::string sizes;
  for (const uint64_t bytes : options.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(bytes);
  const Ran ran = run_shell("timeout 120 mpirun -n " + std::to_string(ranks) +
                            " --oversubscribe --allow-run-as-root --bind-to none " + quoted(self.string()) +
                            " dma --json --sizes " + sizes + " --time " +
                            std::to_string(options.time_per_row.count()) + " 2>&1");
  std::vector<dma::ReduceRow> rows;
  try {
    // mpirun may have warned before it.
    const Json result = parse_json(ran.output.substr(std::min(ran.output.find('{'), ran.output.size())));
    for (const Json& row : result.at("all_reduce"))
      rows.push_back({"Open MPI",
                      "",
                      ranks,
                      row.at("bytes").get<uint64_t>(),
                      {row.at("latency_us").get<double>(), row.at("p99_us").get<double>()}});
  } catch (const std::exception&) {
    why =
        "mpirun failed: " + escaped(ran.output.substr(0, std::min(ran.output.find('\n'), std::size_t{100})));
  }
  return rows;
}

}  // namespace ark
